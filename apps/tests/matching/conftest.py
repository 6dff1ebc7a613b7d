"""A small run that many tests read, published-looking weights, and the command."""

import runpy
from pathlib import Path

import pytest
import torch

from isoattn.core import Linear
from isoattn.matching import make_matcher

run_command = runpy.run_path(str(Path(__file__).parents[1] / "conftest.py"))["run_command"]

SMALL = (
    "--config=tiny_context",
    "--data.source.size=48",
    "--data.source.train_pairs=12",
    "--data.source.val_pairs=4",
    "--data.source.test_pairs=6",
    "--data.batch_size=4",
    "--model.network.widths=[4,8,16]",
    "--model.network.heads=2",
    "--model.network.layers=2",
    "--trainer.max_epochs=2",
    "--trainer.log_every_n_steps=1",
    "--tracker=none",
)


@pytest.fixture
def isoattn(monkeypatch, tmp_path):
    """``isoattn matching ARGUMENTS`` in an empty folder -> exit status, output, errors."""
    monkeypatch.chdir(tmp_path)
    return lambda *argv: run_command("matching", *map(str, argv))


@pytest.fixture(scope="session")
def small_run(tmp_path_factory):
    """The folder of a run of six steps. Not to be changed."""
    root = tmp_path_factory.mktemp("matching")
    result = run_command("matching", "fit", *SMALL, f"--run.root={root}", "--run.name=a")
    assert result.code == 0, result.err
    return root / "matching" / "a"


@pytest.fixture
def best(small_run):
    """Its checkpoint."""
    return small_run / "checkpoints" / "best.ckpt"


@pytest.fixture(scope="session")
def published(tmp_path_factory):
    """A file as zju3dv publishes them: the full size, prefix ``matcher.``, random weights."""
    file = tmp_path_factory.mktemp("weights") / "outdoor_ds.ckpt"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        weights = make_matcher("loftr", Linear).state_dict()
    torch.save({"state_dict": {f"matcher.{name}": w for name, w in weights.items()}}, file)
    return file
