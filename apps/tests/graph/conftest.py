"""A graph of two clubs as files, a run on it that many tests read, and the command."""

import runpy
from pathlib import Path

import networkx
import pytest

run_command = runpy.run_path(str(Path(__file__).parents[1] / "conftest.py"))["run_command"]

TABLES = ("--data.source.label_column=club", "--data.source.split_column=part")
SMALL = (
    *TABLES,
    "--model.network.hidden=8",
    "--model.network.heads=2",
    "--trainer.max_epochs=2",
    "--trainer.check_val_every_n_epoch=1",
    "--tracker=none",
)


def write_karate(folder: Path) -> Path:
    """Zachary's club as nodes.csv and edges.csv; a node's name says its number."""
    graph = networkx.karate_club_graph()
    parts = ("train", "val", "test")
    folder.mkdir(parents=True, exist_ok=True)
    nodes = [
        f"m{n:02d},{graph.nodes[n]['club']},{parts[(n // 2) % 3]},{graph.degree(n)},{n % 5}"
        for n in graph
    ]
    edges = [f"m{a:02d},m{b:02d}" for a, b in graph.edges()]
    (folder / "nodes.csv").write_text("\n".join(["id,club,part,degree,other", *nodes]) + "\n")
    (folder / "edges.csv").write_text("\n".join(["source,target", *edges]) + "\n")
    return folder


@pytest.fixture
def isoattn(monkeypatch, tmp_path):
    """``isoattn graph ARGUMENTS`` in an empty folder -> exit status, output, errors."""
    monkeypatch.chdir(tmp_path)
    return lambda *argv: run_command("graph", *map(str, argv))


@pytest.fixture
def karate(tmp_path):
    """The club's files, to be changed at will."""
    return write_karate(tmp_path / "club")


@pytest.fixture(scope="session")
def club_run(tmp_path_factory):
    """The files and the folder of a run of two epochs on them. Not to be changed."""
    root = tmp_path_factory.mktemp("club")
    files = write_karate(root / "files")
    result = run_command("graph", "fit", str(files), *SMALL, f"--run.root={root}", "--run.name=a")
    assert result.code == 0, result.err
    return files, root / "graph" / "a"


@pytest.fixture(scope="session")
def train(tmp_path_factory):
    """``train(*options)`` -> checkpoint of another run of two epochs on the club."""

    def run(*options):
        root = tmp_path_factory.mktemp("other")
        files = write_karate(root / "files")
        argv = [*SMALL, *options, f"--run.root={root}", "--run.name=a"]
        result = run_command("graph", "fit", str(files), *argv)
        assert result.code == 0, result.err
        return root / "graph" / "a" / "checkpoints" / "last.ckpt"

    return run
