"""A cohort of small slides and its features, a run on made bags, and the command."""

import runpy
from pathlib import Path

import pytest

run_command = runpy.run_path(str(Path(__file__).parents[1] / "conftest.py"))["run_command"]

REAL = Path(__file__).parents[4] / "shared" / "data" / "wsi"
NETWORK = ("--model.network.dim=16", "--model.network.heads=2", "--model.attention.landmarks=8")
BAGS = (
    "--data.source.difficulty.bags=24",
    "--data.source.difficulty.tiles=[20, 30]",
    "--data.source.difficulty.features=8",
    *NETWORK,
    "--trainer.max_epochs=2",
    "--tracker=none",
)
COHORT = (
    "--patients=12",
    "--slides_per_patient=1",
    "--sites=1",
    "--size=512",
    "--tumour",
    "0.08",
    "0.12",
)


@pytest.fixture
def isoattn(monkeypatch, tmp_path):
    """``isoattn wsi ARGUMENTS`` in an empty folder -> exit status, output, errors."""
    monkeypatch.chdir(tmp_path)
    return lambda *argv: run_command("wsi", *map(str, argv))


@pytest.fixture(scope="session")
def cohort(tmp_path_factory):
    """A folder with ``cohort`` and ``features`` of twelve slides. Not to be changed."""
    root = tmp_path_factory.mktemp("slides")
    made = run_command("wsi", "synthesize", str(root / "cohort"), *COHORT)
    assert made.code == 0, made.err
    assert "12 slides of 12 patients" in made.out
    done = run_command(
        "wsi", "encode", str(root / "cohort" / "slides"), f"--out={root / 'features'}",
        "--encoder=hed_statistics", "--tile=64",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "12 slides done, 0 skipped, 0 failed" in done.out and "tiles/s" in done.out
    return root


@pytest.fixture(scope="session")
def bag_run(tmp_path_factory):
    """The folder of a run of two epochs on made bags. Not to be changed."""
    root = tmp_path_factory.mktemp("bags")
    result = run_command("wsi", "fit", *BAGS, f"--run.root={root}", "--run.name=a")
    assert result.code == 0, result.err
    return root / "wsi" / "a"


@pytest.fixture(scope="session")
def slide_run(cohort, tmp_path_factory):
    """The folder of a run of two epochs on the cohort. Not to be changed."""
    root = tmp_path_factory.mktemp("run")
    result = run_command(
        "wsi", "fit", str(cohort / "features"), str(cohort / "cohort" / "labels.csv"),
        "--config=demo", *NETWORK, "--trainer.max_epochs=2", "--tracker=none",
        f"--run.root={root}", "--run.name=a",
    )  # fmt: skip
    assert result.code == 0, result.err
    return root / "wsi" / "a"


@pytest.fixture
def real():
    """The folder of slides beside the repository."""
    if not REAL.is_dir():
        pytest.skip("the real slides are not beside the repository")
    return REAL
