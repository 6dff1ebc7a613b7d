"""A class path outside what we build is refused, and its module is never imported."""

import json
import sys
from pathlib import Path

import pytest
import torch

from isoattn.apps.base.class_paths import KINDS, known_classes
from isoattn.core.training.checkpoint import read_checkpoint, write_checkpoint

EVIL = """
from pathlib import Path
Path({flag!r}).write_text("ran")

class X:
    def __init__(self, *args, **kwargs): pass
"""

ARGUMENTS = {
    "attention": ["--model.attention=evil_module.X"],
    "attention apart": ["--model.attention", "evil_module.X"],
    "attention class_path": ["--model.attention.class_path=evil_module.X"],
    "attention json": ['--model.attention={"class_path": "evil_module.X"}'],
    "attention file": ["--model.attention=spec.yaml"],
    "attention help": ["--model.attention.help=evil_module.X"],
    "model json": ['--model={"attention": {"class_path": "evil_module.X"}}'],
    "model file": ["--model=model.yaml"],
    "config": ["--config=config.yaml"],
    "config short": ["--config=config_short.yaml"],
    "config in config": ["--config=outer.yaml"],
    "network": ["--model.network=evil_module.X"],
    "data": ["--data=evil_module.X"],
    "data file": ["--data=spec.yaml"],
    "callbacks": ["--trainer.callbacks=evil_module.X"],
    "callbacks append": ["--trainer.callbacks+=evil_module.X"],
    "callbacks json": ['--trainer.callbacks=[{"class_path": "evil_module.X"}]'],
    "trainer file": ["--trainer=trainer.yaml"],
    "logger": ["--trainer.logger=evil_module.X"],
    "plugins": ["--trainer.plugins=evil_module.X"],
    "strategy": ["--trainer.strategy=evil_module.X"],
    "profiler": ["--trainer.profiler=evil_module.X"],
    "accelerator": ["--trainer.accelerator=evil_module.X"],
    "nested": ['--trainer.callbacks=[{"class_path": "evil_module.sub.X", "init_args": {}}]'],
}


@pytest.fixture
def flag(tmp_path, monkeypatch):
    """The file that importing the module would write."""
    flag = tmp_path / "flag"
    folder = tmp_path / "path"
    folder.mkdir()
    (folder / "evil_module.py").write_text(EVIL.format(flag=str(flag)))
    monkeypatch.syspath_prepend(str(folder))
    yield flag
    sys.modules.pop("evil_module", None)


def _write_files():
    spec = "class_path: evil_module.X\n"
    Path("spec.yaml").write_text(spec)
    Path("model.yaml").write_text("attention: {class_path: evil_module.X}\n")
    Path("config.yaml").write_text("model: {attention: {class_path: evil_module.X}}\n")
    Path("config_short.yaml").write_text("model: {attention: evil_module.X}\n")
    Path("outer.yaml").write_text("config: config.yaml\n")
    Path("trainer.yaml").write_text("callbacks: [{class_path: evil_module.X}]\n")


@pytest.mark.parametrize("place", ARGUMENTS)
def test_foreign_class_is_refused_and_not_imported(fit, flag, place):
    _write_files()
    result = fit("--tracker=none", *ARGUMENTS[place])
    assert not flag.exists() and "evil_module" not in sys.modules
    assert result.code == 2 and result.short, result.err
    assert "evil_module" in result.err.lower() or place == "profiler"  # Lightning's own message
    assert not list(Path("runs").rglob("last.ckpt"))


def test_the_module_would_run_if_imported(flag):
    """The tests above can fail."""
    __import__("evil_module")
    assert flag.exists()


@pytest.mark.parametrize("path", ["os.system", "builtins.eval", "subprocess.Popen", "torch.load"])
def test_functions_are_no_attentions(fit, path):
    result = fit(f"--model.attention={path}")
    assert result.code == 2 and result.short and path in result.err
    assert "--import" not in result.err  # nothing that could help


def test_class_of_another_kind(fit):
    result = fit("--model.attention=torch.nn.Linear")
    assert result.code == 2 and result.short
    assert "torch.nn.Linear" in result.err and "Attention" in result.err


@pytest.mark.parametrize("option", ["--ckpt_path", "--init_from"])
def test_foreign_class_in_the_config_of_a_checkpoint(command, flag, xca_run, tmp_path, option):
    content = read_checkpoint(xca_run / "checkpoints" / "last.ckpt")
    content["isoattn"]["config"]["model"]["attention"] = {"class_path": "evil_module.X"}
    write_checkpoint(content, tmp_path / "foreign.ckpt")
    result = command("fit", f"{option}=foreign.ckpt")
    assert not flag.exists() and "evil_module" not in sys.modules
    assert result.code == 2 and result.short and "evil_module" in result.err


def test_foreign_class_in_the_hyper_parameters(flag, xca_run, tmp_path):
    from isoattn.vision.classifier import ImageClassifier

    content = read_checkpoint(xca_run / "checkpoints" / "last.ckpt")
    content["hyper_parameters"]["attention"] = {"class_path": "evil_module.X", "init_args": {}}
    torch.save(content, tmp_path / "foreign.ckpt")
    with pytest.raises(ValueError, match="no attention named 'evil_module.X'"):
        ImageClassifier.load_from_checkpoint(tmp_path / "foreign.ckpt", weights_only=True)
    assert not flag.exists()


def test_kinds_know_their_classes():
    import isoattn.apps.vision.app  # noqa: F401 - adds the networks

    assert {"model.attention", "model.network", "data"} <= KINDS.keys()
    assert "Softmax" in known_classes("model.attention")
    assert "XCiT" in known_classes("model.network")
    assert known_classes("model.optim.lr") == []


def test_import_makes_a_module_one_of_ours_to_name(fit, flag):
    """Said explicitly, the user's module is imported; a class that is no attention still fails."""
    result = fit("--import", "evil_module", "--model.attention=evil_module.X")
    assert flag.exists() and result.code == 2 and result.short
    assert json.dumps("Attention") not in result.err and "Attention" in result.err
