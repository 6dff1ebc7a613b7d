"""A checkpoint never overrules the command line, and the command line never a checkpoint."""

import hashlib
import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from isoattn.apps.base.arguments import _flat, contradictions

SUBCOMMANDS = ("fit", "validate", "test", "predict")
# option, what it says of the checkpoint, what of the command line
ALWAYS = [
    ("--model.attention=Softmax", "model.attention", "CrossCovariance", "Softmax"),
    ("--model.attention=cosine_scale10", "model.attention", "CrossCovariance", "CosineSoftmax"),
    ("--model.attention.temperature_init=2", "model.attention", "1.0", "2.0"),
    ("--model.network.depth=3", "model.network", "2", "3"),
    ("--model.network=ViT", "model.network", "XCiT", "ViT"),
    ("--model.optim.lr=0.5", "model.optim.lr", "0.003", "0.5"),
    ("--data=MnistData", "data", "DigitsData", "MnistData"),
]
FIT_ONLY = [
    ("--seed_everything=5", "seed_everything", "0", "5"),
    ("--trainer.max_epochs=7", "trainer.max_epochs", "1", "7"),
    ("--data.batch_size=16", "data", "64", "16"),
    ("--trainer.gradient_clip_val=9", "gradient_clip_val", "1.0", "9"),
]


def _content(folder):
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


def _refused(command, xca_run, subcommand, option, key, old, new):
    before = _content(xca_run)
    result = command(subcommand, f"--ckpt_path={xca_run}/checkpoints/best.ckpt", option)
    assert result.code == 2 and result.short, result.err
    assert key in result.err
    assert f"{old} in the checkpoint" in result.err
    assert f"{new} on the command line" in result.err
    assert "--init_from" in result.err
    assert _content(xca_run) == before
    assert not Path("runs").exists()


@pytest.mark.parametrize("option, key, old, new", ALWAYS)
@pytest.mark.parametrize("subcommand", SUBCOMMANDS)
def test_contradiction_stops(command, xca_run, subcommand, option, key, old, new):
    _refused(command, xca_run, subcommand, option, key, old, new)


@pytest.mark.parametrize("option, key, old, new", FIT_ONLY)
def test_contradiction_stops_a_resume(command, xca_run, option, key, old, new):
    _refused(command, xca_run, "fit", option, key, old, new)


def test_the_flag_may_stand_anywhere_and_come_from_a_config(command, xca_run):
    ckpt = f"--ckpt_path={xca_run}/checkpoints/best.ckpt"
    Path("s.yaml").write_text("model: {attention: Softmax}\n")
    for argv in (
        ("--model.attention=Softmax", ckpt),
        (ckpt, "--config", "s.yaml"),
        ("--config=s.yaml", *ckpt.split("=")),
        (ckpt, '--model={"attention": "Softmax"}'),
    ):
        result = command("test", *argv)
        assert result.code == 2 and "Softmax on the command line" in result.err, argv


def test_many_contradictions_stay_short(command, xca_run):
    result = command(
        "fit",
        f"--ckpt_path={xca_run}/checkpoints/best.ckpt",
        "--config=marked_rows",
        "--seed_everything=5",
    )
    assert result.code == 2 and result.short
    assert " more" in result.err


def test_saying_the_same_again_is_no_contradiction(command, xca_run, tmp_path):
    ckpt = f"--ckpt_path={xca_run}/checkpoints/best.ckpt"
    same = ("--model.attention=CrossCovariance", "--model.optim.lr=0.003", "--data=DigitsData")
    result = command("test", ckpt, *same, f"--output={tmp_path}/out")
    assert result.code == 0, result.err
    result = command("test", ckpt, f"--config={xca_run}/config.yaml", f"--output={tmp_path}/two")
    assert result.code == 0, result.err


def test_what_may_differ(command, xca_run, tmp_path):
    ckpt = f"--ckpt_path={xca_run}/checkpoints/best.ckpt"
    free = ("--data.num_workers=1", "--data.batch_size=7", "--tracker=csv", "--trainer.devices=1")
    result = command("test", ckpt, *free, f"--output={tmp_path}/out", "--seed_everything=9")
    assert result.code == 0, result.err
    first = json.loads((tmp_path / "out" / "result.json").read_text())["metrics"]
    result = command("test", ckpt, f"--output={tmp_path}/out2")
    second = json.loads((tmp_path / "out2" / "result.json").read_text())["metrics"]
    assert first == pytest.approx(second, abs=1e-6)


def test_tests_of_the_same_checkpoint_are_of_its_attention(command, xca_run, tmp_path):
    result = command(
        "test", f"--ckpt_path={xca_run}/checkpoints/best.ckpt", f"--output={tmp_path}/out"
    )
    assert result.code == 0, result.err
    outcome = json.loads((tmp_path / "out" / "result.json").read_text())
    assert outcome["attention"]["class_path"] == "isoattn.core.CrossCovariance"


def test_checkpoint_of_another_app_and_of_none(command, xca_run, tmp_path):
    import torch

    from isoattn.core.training.checkpoint import read_checkpoint, write_checkpoint

    content = read_checkpoint(xca_run / "checkpoints" / "best.ckpt")
    content["isoattn"]["app"] = "graph"
    write_checkpoint(content, tmp_path / "graph.ckpt")
    result = command("test", "--ckpt_path=graph.ckpt")
    assert result.code == 2 and result.short and "isoattn graph" in result.err
    del content["isoattn"]
    write_checkpoint(content, tmp_path / "plain.ckpt")
    result = command("test", "--ckpt_path=plain.ckpt")
    assert result.code == 2 and result.short and "--init_from" in result.err
    torch.save(content, tmp_path / "foreign.ckpt")
    result = command("test", "--ckpt_path=foreign.ckpt")
    assert result.code == 2 and result.short and "no checksum" in result.err


# --- crossing over ------------------------------------------------------------------------------


def test_init_from_crosses_over_with_a_report(command, xca_run):
    result = command(
        "fit",
        f"--init_from={xca_run}/checkpoints/best.ckpt",
        "--model.attention=Softmax",
        "--trainer.max_epochs=1",
        "--trainer.limit_train_batches=1",
        "--tracker=none",
        "--run.name=crossed",
    )
    assert result.code == 0, result.err
    assert "loaded " in result.err and "temperature" in result.err  # what Softmax has no use for
    run = Path("runs/vision/crossed")
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["model"]["attention"]["class_path"] == "isoattn.core.Softmax"
    assert config["model"]["network"]["init_args"]["depth"] == 2  # the checkpoint's, as a default
    assert json.loads((run / "result.json").read_text())["attention"]["class_path"].endswith(
        "Softmax"
    )


def test_init_from_starts_from_the_weights(command, xca_run):
    """One step at rate almost zero leaves them as they were."""
    from isoattn.core.training.checkpoint import read_checkpoint

    result = command(
        "fit",
        f"--init_from={xca_run}/checkpoints/best.ckpt",
        "--model.optim.lr=1e-12",
        "--model.optim.weight_decay=0",
        "--trainer.max_epochs=1",
        "--trainer.limit_train_batches=1",
        "--tracker=none",
        "--run.name=near",
    )
    assert result.code == 0, result.err
    old = read_checkpoint(xca_run / "checkpoints" / "best.ckpt")["state_dict"]
    new = read_checkpoint(Path("runs/vision/near/checkpoints/last.ckpt"))["state_dict"]
    for name, weight in old.items():
        if weight.is_floating_point() and "running" not in name:
            assert (new[name] - weight).abs().max() < 1e-6, name


def test_init_from_evaluates_too(command, xca_run):
    result = command("validate", f"--init_from={xca_run}/checkpoints/best.ckpt")
    assert result.code == 0, result.err
    value = json.loads(next(Path("runs").rglob("validate/result.json")).read_text())["metrics"]
    stored = json.loads((xca_run / "result.json").read_text())["metrics"]
    assert value["val/accuracy"] == pytest.approx(stored["val/accuracy"], abs=1e-6)


def test_init_from_that_does_not_fit_is_a_short_error(command, xca_run):
    result = command(
        "fit", f"--init_from={xca_run}/checkpoints/best.ckpt", "--model.network.embed_dim=64"
    )
    assert result.code == 2 and result.short
    assert "shape" in result.err


# --- laws ---------------------------------------------------------------------------------------

KEYS = ("model", "data", "trainer", "seed_everything", "run", "tracker", "max_epochs", "lr", "root")
LEAVES = st.one_of(st.none(), st.integers(0, 3), st.sampled_from(["a", "b"]), st.booleans())
CONFIGS = st.recursive(
    LEAVES, lambda c: st.dictionaries(st.sampled_from(KEYS), c, max_size=3), max_leaves=8
).filter(lambda c: isinstance(c, dict))


@given(CONFIGS, st.sampled_from(SUBCOMMANDS))
def test_nothing_contradicts_itself(config, subcommand):
    assert contradictions(config, config, subcommand) == []
    assert contradictions(config, json.loads(json.dumps(config)), subcommand) == []


@given(CONFIGS, CONFIGS, st.sampled_from(SUBCOMMANDS))
def test_contradictions_are_symmetric(old, new, subcommand):
    there = contradictions(old, new, subcommand)
    back = contradictions(new, old, subcommand)
    assert [(k, b, a) for k, a, b in there] == back
    assert all(a != b for _, a, b in there)


@given(CONFIGS, CONFIGS)
def test_a_resume_is_the_strictest(old, new):
    fit = {k for k, _, _ in contradictions(old, new, "fit")}
    for subcommand in ("validate", "test", "predict"):
        assert {k for k, _, _ in contradictions(old, new, subcommand)} <= fit


@given(CONFIGS, CONFIGS)
def test_every_difference_in_the_model_is_found(old, new):
    left, right = _flat(old.get("model"), "model."), _flat(new.get("model"), "model.")
    found = {k: (a, b) for k, a, b in contradictions(old, new, "test") if k.startswith("model")}
    differing = {k for k in left.keys() | right.keys() if left.get(k) != right.get(k)}
    assert found.keys() == {k.rstrip(".") for k in differing}


@given(CONFIGS)
def test_flat_loses_nothing(config):
    flat = _flat(config)

    def leaves(value):
        if isinstance(value, dict):
            return sum(map(leaves, value.values()))
        return value is not None

    assert len(flat) == leaves(config)
    for key, value in flat.items():
        place = config
        for part in key.split("."):
            place = place[part]
        assert place == value
