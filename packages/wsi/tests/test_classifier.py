"""The bag classifier: loss, counts, optimisers, checkpoints, predictions."""

import json
from functools import partial
from pathlib import Path

import lightning.pytorch as L
import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from safetensors.torch import load_file

from isoattn.core import (
    CrossCovariance,
    Linear,
    Nystrom,
    SlidingWindow,
    Softmax,
    UnsupportedAttention,
)
from isoattn.wsi.bags import BagData, Difficulty, MeetingBags, NeedleBags
from isoattn.wsi.classifier import BagClassifier, LossOptions
from isoattn.wsi.models import ABMIL, MaxPooling, TransMIL
from isoattn.wsi.optim import OptimOptions

NETWORK = partial(TransMIL, dim=16, heads=2)
NYSTROM = partial(Nystrom, landmarks=8, compat="nystrom-attention")
SMALL = Difficulty(bags=32, tiles=(9, 16), features=6, marked=0.2)

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*logging interval"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
]


def trainer(tmp_path, *callbacks, **options):
    return L.Trainer(
        **{
            "accelerator": "cpu",
            "logger": False,
            "enable_checkpointing": any(isinstance(c, ModelCheckpoint) for c in callbacks),
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "default_root_dir": tmp_path,
            "num_sanity_val_steps": 0,
            "callbacks": list(callbacks),
            **options,
        }
    )


def data(**options):
    return BagData(NeedleBags(SMALL), **{"batch_size": 4, "seed": 0, **options})


def build(classes=2, **options):
    torch.manual_seed(0)
    return BagClassifier(classes, 6, **{"network": NETWORK, "attention": NYSTROM, **options})


def batch(seed=0, sizes=(5, 9), features=6):
    generator = torch.Generator().manual_seed(seed)
    bags = [torch.randn(n, features, generator=generator) for n in sizes]
    cells = [torch.stack([torch.arange(n), torch.zeros(n).long()], 1) for n in sizes]
    return {
        "features": bags,
        "cells": cells,
        "coords": [256 * c for c in cells],
        "side": [256.0 for _ in cells],
        "label": torch.arange(len(sizes)) % 2,
        "index": torch.arange(len(sizes)),
        "id": [f"s{i}" for i in range(len(sizes))],
    }


@pytest.mark.parametrize(
    "network", [partial(ABMIL, dim=16, gate_dim=8), partial(MaxPooling, dim=16)]
)
def test_it_learns(tmp_path, network):
    model = build(network=network, optim=OptimOptions("adamw", 1e-2))
    run = trainer(tmp_path, max_epochs=25)
    run.fit(model, data())
    assert float(run.callback_metrics["train/loss"]) < 0.2
    [result] = run.test(model, data(), verbose=False)
    assert result["test/auc"] > 0.9


def test_bags_of_a_batch_do_not_see_each_other():
    model, both = build().eval(), batch()
    with torch.no_grad():
        together = model(both)
        for number in range(2):
            one = {k: v[number : number + 1] for k, v in both.items()}
            torch.testing.assert_close(model(one), together[number : number + 1])


def test_scores_are_over_all_bags_of_unequal_batches(tmp_path):
    model = build()
    answers = iter([0.0, 3.0, 1.0, 2.0])  # in batches of 3 and 1; in order 0 < 1 < 2 < 3
    model.network.forward = lambda *_: torch.tensor([[0.0, next(answers)]])
    first, second = batch(sizes=(2, 2, 2)), batch(sizes=(2,))
    first["label"], second["label"] = torch.tensor([0, 1, 0]), torch.tensor([1])
    loader = torch.utils.data.DataLoader(
        [first, second], batch_size=1, collate_fn=lambda b: b[0], generator=torch.Generator()
    )
    [result] = trainer(tmp_path).test(model, loader, verbose=False)
    assert result["test/auc"] == 1.0 and result["test/accuracy"] == 0.75
    assert [x["id"] for x in model.test_outputs] == [["s0", "s1", "s2"], ["s0"]]


def test_the_loss_is_that_of_the_reference():
    golden = Path(__file__).parent / "golden"
    tensors = load_file(golden / "metric_bag_multiclass.safetensors")
    cases = {c["id"]: c for c in json.loads((golden / "manifest.json").read_text())["cases"]}
    loss = build(classes=4).bag_loss(tensors["in.logits"].double(), tensors["in.label"])
    want = tensors["out.cross_entropy"]
    torch.testing.assert_close(loss, want, **cases["metric_bag_multiclass"]["tolerance"]["f64"])


def test_weights_of_classes_count_in_batches_of_one():
    model = build(loss=LossOptions(class_weight=(1.0, 5.0), smoothing=0.1))
    logits, label = torch.randn(6, 2), torch.tensor([0, 1, 0, 1, 1, 1])
    want = F.cross_entropy(
        logits, label, weight=torch.tensor([1.0, 5.0]), label_smoothing=0.1, reduction="sum"
    )
    torch.testing.assert_close(model.bag_loss(logits, label), want / 6)
    single = [model.bag_loss(logits[i : i + 1], label[i : i + 1]) for i in range(6)]
    torch.testing.assert_close(torch.stack(single).mean(), want / 6)


def test_what_the_options_ask_of_the_data_is_taken(tmp_path):
    model = build(network=partial(NETWORK, norm="standard"), loss=LossOptions(balance=True))
    source = data()
    trainer(tmp_path, max_epochs=1, limit_train_batches=1, limit_val_batches=1).fit(model, source)
    mean, deviation = source.moments()
    torch.testing.assert_close(model.network.input_norm.mean.double(), mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        model.network.input_norm.deviation.double(), deviation, rtol=1e-6, atol=1e-6
    )
    assert model.class_weight.tolist() == [1.0, 1.0]
    loader = source.train_dataloader()
    with pytest.raises(ValueError, match="look at the training bags: fit with BagData"):
        trainer(tmp_path, max_epochs=1).fit(build(loss=LossOptions(balance=True)), loader, loader)


@pytest.mark.parametrize(
    "options",
    [OptimOptions(lr=1e-2), OptimOptions("adamw", 1e-2, 0.05, "warmup_cosine")],
    ids=["released", "adamw"],
)
def test_resuming_inside_an_epoch_equals_going_on(tmp_path, options):
    class Stop(Callback):
        def on_train_batch_start(self, trainer, *_):
            if trainer.global_step == 7:
                raise KeyError("stopped")

    network = partial(NETWORK, dropout=0.0)
    straight = build(network=network, optim=options)
    settings = {"max_epochs": 4, "limit_val_batches": 0}
    trainer(tmp_path / "a", **settings).fit(straight, data(max_tokens=10))
    keep = {"every_n_train_steps": 1}
    with pytest.raises(KeyError):
        trainer(tmp_path, ModelCheckpoint(tmp_path, **keep), Stop(), **settings).fit(
            build(network=network, optim=options), data(max_tokens=10)
        )
    [path] = tmp_path.glob("*.ckpt")
    torch.manual_seed(5)
    resumed = BagClassifier(2, 6, network=network, attention=NYSTROM, optim=options)
    trainer(tmp_path, ModelCheckpoint(tmp_path, **keep), **settings).fit(
        resumed, data(max_tokens=10), ckpt_path=str(path), weights_only=True
    )
    for name, x in straight.state_dict().items():
        assert torch.equal(x, resumed.state_dict()[name]), name


def test_warm_up_and_cosine(tmp_path):
    rates = []

    class Watch(Callback):
        def on_train_batch_start(self, trainer, *_):
            rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    options = OptimOptions("adamw", 1e-3, 0.0, "warmup_cosine", warmup=0.25, min_lr=0.1)
    model = build(optim=options)
    trainer(tmp_path, Watch(), max_epochs=2, limit_val_batches=0).fit(model, data())
    assert [rates[i] for i in (0, 1, -1)] == pytest.approx([5e-4, 1e-3, 1e-4])


@pytest.mark.parametrize("attention", [NYSTROM, Linear, Softmax])
def test_it_is_rebuilt_from_plain_data(tmp_path, attention):
    model = build(
        attention=attention,
        optim=OptimOptions("adamw", betas=(0.8, 0.9)),
        loss=LossOptions(class_weight=(1.0, 2.0)),
        class_names=["a", "b"],
    )
    path = tmp_path / "model.ckpt"
    torch.save({"hyper": dict(model.hparams), "state": model.state_dict()}, path)
    stored = torch.load(path, weights_only=True)
    again = BagClassifier(**stored["hyper"])
    again.load_state_dict(stored["state"])
    assert torch.equal(again.eval()(batch()), model.eval()(batch()))
    assert again.optim == model.optim and again.loss == model.loss
    assert again.class_names == ["a", "b"]


def test_predictions_and_heat_maps():
    model = build().eval()
    found = model.predict_step(batch(), 0)
    assert set(found) == {"id", "index", "probability"} and found["id"] == ["s0", "s1"]
    torch.testing.assert_close(found["probability"].sum(1), torch.ones(2))
    model.keep_attention = True
    found = model.predict_step(batch(), 0)
    assert [len(x) for x in found["weights"]] == [5, 9]
    assert torch.equal(found["weights"][1], model.network.cls_attention(batch()["features"][1]))
    assert [len(x) for x in found["coords"]] == [5, 9] and found["side"] == [256.0, 256.0]
    other = build(attention=CrossCovariance)
    other.keep_attention = True
    with pytest.raises(UnsupportedAttention, match="there is no heat map"):
        other.predict_step(batch(), 0)


@pytest.mark.parametrize("attention", [NYSTROM, Softmax, partial(SlidingWindow, window=3)])
def test_prediction_through_the_trainer(tmp_path, attention):
    source = BagData(
        MeetingBags(Difficulty(bags=16, tiles=(60, 64), features=6, marked=0.03)), seed=0
    )
    model = build(network=partial(NETWORK, ppeg="coords"), attention=attention)
    model.keep_attention = True
    outputs = trainer(tmp_path).predict(model, source)
    assert [i for x in outputs for i in x["index"].tolist()] == source.task.split.test.tolist()
    for found in outputs:
        [index] = found["index"].tolist()
        bag = source.task.reader.read(index)
        assert torch.equal(found["coords"][0], bag.coords)
        assert found["weights"][0].shape == (bag.tiles,)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: LossOptions(smoothing=1.0), r"smoothing must be in \[0, 1\), got 1.0"),
        (lambda: LossOptions(class_weight=(0.0, 0.0)), "numbers of 0 or more, not all 0"),
        (lambda: LossOptions((1.0, 1.0), balance=True), "class_weight must be None beside balance"),
        (lambda: build(class_names=["a"]), "2 classes but 1 class names"),
        (
            lambda: build(loss=LossOptions(class_weight=(1.0,))),
            "class_weight has one number for each of the 2 classes, got 1",
        ),
    ],
)
def test_messages(call, words):
    with pytest.raises(ValueError, match=words):
        call()
