"""Training, validation, test and prediction; hyper-parameters; public cases of training."""

import io
from dataclasses import asdict
from functools import partial

import lightning.pytorch as L
import pytest
import torch
from torch.utils.data import DataLoader

from isoattn.core import CosineSoftmax, Linear, Mean, Softmax, Zero, swappable_layers
from isoattn.matching.data.batch import Pair, collate
from isoattn.matching.losses import CoarseLossOptions
from isoattn.matching.matcher_module import FineOptions, MatcherModule, OptimOptions
from isoattn.matching.models import Matcher

TINY = partial(
    Matcher, backbone="patch", widths=(8, 12, 16), heads=2, layers=2, fine=False, border=0
)
FINE = partial(Matcher, widths=(8, 12, 16), heads=2, layers=2, border=0)
ARMS = pytest.mark.parametrize("attention", [Linear, Softmax, Mean, Zero], ids=lambda a: a.__name__)


def shifted(index, size=(48, 64), by=8, far=False):
    """A pair whose second image is the first, moved by whole cells; or far beyond any overlap."""
    generator = torch.Generator().manual_seed(index)
    wide = torch.rand(size[0], size[1] + by, generator=generator)
    homography = torch.eye(3)
    homography[0, 2] = 1e4 if far else -by
    return Pair(
        wide[:, : size[1]],
        wide[:, by:],
        index,
        f"a{index}",
        f"b{index}",
        scale0=(2.0, 2.0),
        scale1=(2.0, 2.0),
        homography=homography,
    )


def module(network=TINY, attention=Linear, seed=0, **options):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MatcherModule(network, attention, **options)


def loader(pairs, batch_size=2):
    return DataLoader(pairs, batch_size, collate_fn=collate)


def trainer(**options):
    quiet = {
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "gradient_clip_val": 2.0,
    }
    return L.Trainer(**{**quiet, **options})


def fit(model, pairs, **options):
    run = trainer(**options)
    with pytest.warns():  # few workers, short epochs
        run.fit(model, loader(pairs), loader(pairs))
    return run.callback_metrics


@ARMS
@pytest.mark.parametrize("network", [TINY, FINE], ids=["coarse", "fine"])
def test_a_few_steps_with_padding(network, attention):
    """zju3dv's softmax gives NaN as soon as a batch is padded."""
    pairs = [shifted(0), shifted(1, (40, 48))]
    model = module(network, attention)
    before = {n: p.clone() for n, p in model.named_parameters()}
    metrics = fit(model, pairs, max_epochs=2)
    assert all(torch.isfinite(value) for value in metrics.values())
    assert {"train/loss", "val/loss", "val/recall", "val/average_precision"} <= metrics.keys()
    assert ("train/fine_loss" in metrics) == (network is FINE)
    for name, parameter in model.named_parameters():
        assert parameter.isfinite().all(), name
    assert any(not torch.equal(p, before[n]) for n, p in model.named_parameters())


def test_training_learns_a_shift():
    """Also that the threshold-free number rises while no match passes the threshold."""
    pairs = [shifted(i) for i in range(4)]
    model = module(optim=OptimOptions(lr=5e-3, warmup=0, weight_decay=0.0))
    first = fit(model, pairs, max_epochs=1)
    start = float(first["val/average_precision"]), float(first["train/log_confidence"])
    last = fit(model, pairs, max_epochs=15)
    assert last["val/average_precision"] > start[0] + 0.2
    assert last["train/log_confidence"] > start[1] + 1.0
    assert last["train/loss"] < first["train/loss"]


def one_step(model, pairs):
    model.log = lambda *args, **options: None
    loss = model.training_step(collate(pairs), 0)
    model.zero_grad()
    loss.backward()
    return loss, {n: p.grad for n, p in model.named_parameters()}


@pytest.mark.parametrize("network", [TINY, FINE], ids=["coarse", "fine"])
def test_a_pair_without_overlap_contributes_nothing(network):
    """zju3dv/LoFTR#175: NaN loss."""
    model = module(network).eval()  # no batch statistics, which pairs share
    model._trainer = trainer()
    loss, grads = one_step(model, [shifted(0, far=True)])
    assert loss == 0
    assert all(g is None or not g.any() for g in grads.values())
    if network is FINE:  # how many windows are drawn depends on the number of pairs
        return
    alone, own = one_step(model, [shifted(1)])
    both, grads = one_step(model, [shifted(0, far=True), shifted(1)])
    torch.testing.assert_close(both, alone)
    for name, grad in grads.items():
        torch.testing.assert_close(grad, own[name], msg=name)


def test_no_match_above_the_threshold():
    """zju3dv/LoFTR#6, #21: at the start nothing passes 0.2; validation still says something."""
    model = module(partial(FINE, threshold=0.999))
    run = trainer()
    with pytest.warns():
        (scores,) = run.validate(model, loader([shifted(0), shifted(1)]), verbose=False)
    assert scores["val/matches"] == 0 and scores["val/precision"] == 0
    assert 0 <= scores["val/average_precision"] <= 1


@pytest.mark.parametrize("entries", ["dense", "sparse"])
@pytest.mark.parametrize("match", ["dual_softmax", "sinkhorn"])
def test_losses_of_both_kinds_of_matching(match, entries):
    model = module(partial(TINY, match=match), loss=CoarseLossOptions(entries=entries))
    model._trainer = trainer()
    loss, grads = one_step(model, [shifted(0), shifted(1, (40, 48))])
    assert loss > 0
    for name, grad in grads.items():
        assert grad is not None and grad.isfinite().all(), name
    if match == "sinkhorn":
        assert grads["network.coarse_matching.bin_score"] != 0
    model.eval().validation_step(collate([shifted(0), shifted(1, (40, 48))]), 0)
    assert 0 < model.loss_sums["val"] < 1e3  # the prefilter makes confidences 0, not losses inf


def test_fine_part_is_trained_towards_the_truth():
    pairs = [shifted(i) for i in range(2)]
    model = module(FINE, fine=FineOptions(fraction=0.5, least_truth=20))
    model._trainer = trainer()
    _, grads = one_step(model, pairs)
    assert grads["network.loftr_fine.layers.0.q_proj.weight"].any()
    off = module(FINE, fine=FineOptions(weight=0.0))
    off._trainer = trainer()
    _, grads = one_step(off, pairs)
    assert grads["network.loftr_fine.layers.0.q_proj.weight"] is None


def test_hyper_parameters_are_plain_data_and_bring_the_attentions_back(tmp_path):
    model = module(
        partial(TINY, pe="released"),
        partial(Linear, eps=1e-6),
        attention_cross=Softmax,
        optim=OptimOptions(lr=1e-3, schedule="steps", milestones=(5, 9)),
    )
    run = trainer(max_steps=1)
    with pytest.warns():
        run.fit(model, loader([shifted(0)]))
    run.save_checkpoint(tmp_path / "last.ckpt")
    content = torch.load(tmp_path / "last.ckpt", weights_only=True)["hyper_parameters"]
    assert content["attention_cross"]["class_path"] == "isoattn.core.Softmax"
    assert content["attention_self"] is None
    again = MatcherModule.load_from_checkpoint(tmp_path / "last.ckpt", weights_only=True)
    assert asdict(again.optim) == asdict(model.optim)
    kinds = [type(site.core) for site in swappable_layers(again.network).values()]
    assert kinds == [Linear, Softmax] and again.network.pe == "released"
    for name, tensor in again.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name])


def test_arms_of_one_seed_differ_in_the_attention_alone():
    first = dict(module(FINE, Linear).named_parameters())
    for attention in (Softmax, Mean, Zero, CosineSoftmax):
        named = dict(module(FINE, attention).named_parameters())
        assert all(torch.equal(named[n], first[n]) for n in first)


def test_test_estimates_homographies_and_keeps_the_rows():
    model = module(TINY, test_matches=10)
    run = trainer()
    with pytest.warns():
        (scores,) = run.test(model, loader([shifted(i) for i in range(3)]), verbose=False)
    assert {"test/homography_auc_3", "test/recall_1cell", "test/loss"} <= scores.keys()
    rows = model.scores["test"].rows
    assert [row.index for row in rows] == [0, 1, 2]
    assert all(row.counts["matches"] <= 10 for row in rows)


def test_prediction_is_in_pixels_of_the_original_images():
    model = module(TINY).eval()
    batch = collate([shifted(3)])
    with torch.no_grad():
        seen = model(batch)
        found = model.predict_step(batch, 0)
    assert found["name0"] == ["a3"] and found["index"].tolist() == [3]
    torch.testing.assert_close(found["matches"].keypoints0, (seen.keypoints0 + 0.5) * 2 - 0.5)


def test_rates():
    cosine = OptimOptions(warmup=10, warmup_start=0.1)
    assert cosine.factor(0, 100) == pytest.approx(0.19)
    assert cosine.factor(9, 100) == 1.0 and cosine.factor(99, 100) == 0.0
    steps = OptimOptions(warmup=0, schedule="steps", milestones=(10, 20))
    rates = [steps.factor(s, 100) for s in (0, 9, 10, 19, 20, 99)]
    assert rates == [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
    assert OptimOptions(warmup=0.1).factor(4, 50) == 1.0
    assert OptimOptions(warmup=50).factor(9, 10) == 1.0  # shorter than its warm-up


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: OptimOptions(lr=0), "lr must be above 0, got 0"),
        (lambda: OptimOptions(warmup_start=1.0), r"warmup_start must be in \[0, 1\), got 1.0"),
        (lambda: OptimOptions(schedule="exp"), "schedule must be cosine or steps, got exp"),
        (lambda: OptimOptions(milestones=(3,)), "milestones must be empty unless schedule is st"),
        (
            lambda: OptimOptions(schedule="steps", milestones=(5, 3)),
            r"milestones must be rising steps above 0, got \(5, 3\)",
        ),
        (lambda: FineOptions(fraction=0.0), r"fraction must be in \(0, 1\], got 0.0"),
        (lambda: FineOptions(weight=-1.0), "weight must be 0 or more, got -1.0"),
        (lambda: FineOptions(pooling="all"), "pooling must be pair or batch, got all"),
        (lambda: module(attention="Softmaxx"), "no attention named 'Softmaxx'"),
    ],
)
def test_messages(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_a_checkpoint_in_memory_is_small_and_loads():
    model, buffer = module(), io.BytesIO()
    torch.save({"hyper_parameters": dict(model.hparams), "state": model.state_dict()}, buffer)
    buffer.seek(0)
    content = torch.load(buffer, weights_only=True)
    again = MatcherModule(**content["hyper_parameters"])
    again.load_state_dict(content["state"])
