"""A NaN or infinity anywhere stops the run before the optimiser step, and says where it was."""

import json
from pathlib import Path

import pytest
import torch

from isoattn.apps.base.guard import attention_of
from isoattn.core.training.checkpoint import read_checkpoint
from isoattn.vision.classifier import ImageClassifier
from isoattn.vision.data.module import ImageDataModule

ARGUMENTS = (
    "--trainer.max_epochs=3",
    "--trainer.limit_train_batches=3",
    "--tracker=none",
    "--run.name=a",
)
STEP = 4  # the second step of the second epoch: one checkpoint has been written by then
RUN = Path("runs/vision/a")


def _spoil_input(model, batch):
    batch["image"][0, 0, 0, 0] = float("nan")


def _spoil_parameter(model, batch):
    with torch.no_grad():
        model.network.blocks[1].mlp.fc1.weight[0, 0] = float("inf")


def _spoil_state(model, batch):
    optimizer = model.optimizers().optimizer
    parameter = model.network.blocks[0].mlp.fc1.weight
    optimizer.state[parameter]["exp_avg"][0, 0] = float("nan")


def _spoil_gradient(model, batch):
    weight = model.network.blocks[1].attn.qkv.weight
    weight.register_hook(lambda grad: torch.full_like(grad, float("inf")))


@pytest.fixture
def spoil(monkeypatch):
    """Spoil a run at one step, from inside; keeps the weights as they were then."""
    kept = {}

    def arrange(how=None, loss=None):
        step = ImageClassifier.training_step

        def training_step(self, batch, index):
            if self.trainer.global_step != STEP:
                return step(self, batch, index)
            kept["model"] = self
            if how is not None:
                how(self, batch)
            kept["before"] = {n: p.detach().clone() for n, p in self.named_parameters()}
            value = step(self, batch, index)
            return value * loss if loss is not None else value

        monkeypatch.setattr(ImageClassifier, "training_step", training_step)
        if how is _spoil_input:

            def spoiled(self, batch, index):
                if self.trainer.training and self.trainer.global_step == STEP:
                    kept["model"] = self.trainer.lightning_module
                    kept["before"] = {
                        n: p.detach().clone() for n, p in kept["model"].named_parameters()
                    }
                    _spoil_input(None, batch)
                return batch

            monkeypatch.setattr(ImageDataModule, "on_after_batch_transfer", spoiled)
        return kept

    return arrange


CASES = {
    "input": (_spoil_input, None, ["input 'image'", "NaN"]),
    "loss": (None, float("nan"), ["the loss", "NaN"]),
    "infinite loss": (None, float("inf"), ["the loss", "not finite"]),
    "gradient": (
        _spoil_gradient,
        None,
        ["gradient of network.blocks.1.attn.qkv.weight", "in network.blocks.1.attn"],
    ),
    "parameter": (_spoil_parameter, None, ["network.blocks.1.mlp.fc1.weight"]),
    "state": (_spoil_state, None, ["optimiser's state"]),
}


@pytest.mark.parametrize("attention", ["CrossCovariance", "Softmax"])
@pytest.mark.parametrize("case", CASES)
def test_stops_before_the_step(command, spoil, case, attention):
    how, loss, said = CASES[case]
    kept = spoil(how, loss)
    chosen = ("--config=xcit_digits", f"--model.attention={attention}")
    result = command("fit", *chosen, *ARGUMENTS)
    assert result.code == 3, result
    assert result.short
    for words in [*said, f"Step {STEP}", "epoch 1", attention, "last.ckpt"]:
        assert words in result.err, words
    weights = dict(kept["model"].named_parameters())
    assert all(
        torch.equal(weights[name].nan_to_num(), before.nan_to_num())
        for name, before in kept["before"].items()
    )
    outcome = json.loads((RUN / "result.json").read_text())
    assert outcome["status"] == "diverged" and f"Step {STEP}" in outcome["error"]
    content = read_checkpoint(RUN / "checkpoints" / "last.ckpt")
    assert content["global_step"] == 3
    floats = [v for v in content["state_dict"].values() if v.is_floating_point()]
    assert all(torch.isfinite(v).all() for v in floats)


def test_in_the_first_step_there_is_no_checkpoint_to_name(command, monkeypatch):
    step = ImageClassifier.training_step
    monkeypatch.setattr(
        ImageClassifier, "training_step", lambda self, b, i: step(self, b, i) * float("nan")
    )
    result = command("fit", "--config=xcit_digits", *ARGUMENTS)
    assert result.code == 3 and "No checkpoint was written yet" in result.err
    assert not (RUN / "checkpoints").exists()


def test_diverging_by_itself(command):
    """No trick: a rate at which the weights overflow."""
    result = command(
        "fit",
        "--config=xcit_digits",
        *ARGUMENTS,
        "--model.optim.lr=1e30",
        "--model.optim.warmup=0",
        "--trainer.gradient_clip_val=null",
    )
    assert result.code == 3 and "--model.optim.lr" in result.err


def test_a_finite_run_passes(command):
    result = command("fit", "--config=xcit_digits", *ARGUMENTS)
    assert result.code == 0, result.err


def test_attention_of_a_layer():
    model = ImageClassifier(10)
    name = next(n for n, _ in model.named_parameters() if "blocks.2." in n)
    assert attention_of(model, name).startswith("CrossCovariance in network.blocks.2.")
    assert attention_of(model, None) == "CrossCovariance"
    assert attention_of(torch.nn.Linear(2, 2), None) == "none"
