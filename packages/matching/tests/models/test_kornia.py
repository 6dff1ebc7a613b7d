"""Against kornia's LoFTR with the same random weights; skipped where kornia is not installed."""

import copy
from functools import partial

import pytest
import torch

from isoattn.core import Linear
from isoattn.matching.models import Matcher, make_matcher
from isoattn.matching.weights import load_weights

RELEASED = partial(Linear, eps=1e-6)

loftr = pytest.importorskip("kornia.feature.loftr.loftr", reason="kornia is not installed")


def twins(seed=0, *, fix=False, threshold=0.0, border=0):
    """Kornia's model of small sizes and ours with its weights, both in evaluation mode."""
    config = copy.deepcopy(loftr.default_cfg)
    config["resnetfpn"] = {"initial_dim": 16, "block_dims": [16, 24, 32]}
    config["coarse"].update(d_model=32, nhead=4, temp_bug_fix=fix)
    config["fine"].update(d_model=16, nhead=4)
    config["match_coarse"].update(thr=threshold, border_rm=border)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        theirs = loftr.LoFTR(None, config).eval()
        for module in theirs.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_mean.uniform_(-0.2, 0.2)
                module.running_var.uniform_(0.5, 2.0)
    pe = "fixed" if fix else "released"
    ours = Matcher(
        RELEASED, widths=(16, 24, 32), heads=4, pe=pe, threshold=threshold, border=border
    ).eval()
    load_weights(ours, theirs.state_dict(), pe=pe)
    return ours, theirs


def images(size0, size1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.rand(1, 1, *size, generator=generator) for size in (size0, size1))


def their_confidence(theirs, image0, image1, **masks):
    """What its coarse matching computes, which its output leaves out."""
    kept = {}
    matching = theirs.coarse_matching.get_coarse_match
    theirs.coarse_matching.get_coarse_match = lambda conf, data: (
        kept.setdefault("conf", conf.clone()),
        matching(conf, data),
    )[1]
    out = theirs({"image0": image0, "image1": image1, **masks})
    return kept["conf"], out


@torch.no_grad()
@pytest.mark.parametrize("fix", [False, True])
@pytest.mark.parametrize(
    ("size0", "size1"), [((64, 80), (64, 80)), ((64, 80), (48, 56)), ((61, 77), (83, 50))]
)
def test_confidence_and_points(size0, size1, fix):
    """In float64: single precision differs by its rounding of logits in the hundreds."""
    ours, theirs = (model.double() for model in twins(fix=fix))
    image0, image1 = (image.double() for image in images(size0, size1))
    want, out = their_confidence(theirs, image0, image1)
    x0, x1 = ours.attend(*ours.features_of_pair(image0, image1))
    got = ours.log_confidence(x0, x1).exp()
    assert (got - want).abs().max() < 1e-5
    assert want.max() > 1e-3
    matches = ours(image0, image1)
    assert len(matches) > 5 and torch.equal(matches.batch_index, out["batch_indexes"])
    torch.testing.assert_close(matches.keypoints0, out["keypoints0"])
    torch.testing.assert_close(matches.keypoints1, out["keypoints1"], rtol=0, atol=1e-5)
    torch.testing.assert_close(matches.confidence, out["confidence"], rtol=1e-5, atol=1e-9)


@torch.no_grad()
def test_published_size_in_single_precision():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        theirs = loftr.LoFTR(None).eval()
    ours = make_matcher("loftr", RELEASED, pe="released").eval()
    load_weights(ours, theirs.state_dict(), pe="released")
    image0, image1 = images((64, 96), (64, 96))
    want, _ = their_confidence(theirs, image0, 0.7 * image0 + 0.3 * image1)
    x0, x1 = ours.attend(*ours.features_of_pair(image0, 0.7 * image0 + 0.3 * image1))
    assert (ours.log_confidence(x0, x1).exp() - want).abs().max() < 1e-5
    assert want.max() > 1e-3


@torch.no_grad()
def test_confidence_with_masks():
    ours, theirs = (model.double() for model in twins())
    image0, image1 = (image.double() for image in images((64, 80), (64, 80)))
    mask0, mask1 = torch.ones(2, 1, 64, 80, dtype=torch.bool)
    mask0[:, 40:], mask1[:, :, 64:] = False, False
    want, _ = their_confidence(theirs, image0, image1, mask0=mask0, mask1=mask1)
    x0, x1 = ours.attend(*ours.features_of_pair(image0, image1, mask0, mask1))
    assert (ours.log_confidence(x0, x1).exp() - want).abs().max() < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("border", [0, 2])
def test_border(border):
    ours, theirs = twins(border=border)
    image0, image1 = images((64, 80), (72, 64))
    _, out = their_confidence(theirs, image0, image1)
    torch.testing.assert_close(ours(image0, image1).keypoints0, out["keypoints0"])


def test_names():
    ours, theirs = twins()
    assert ours.state_dict().keys() == theirs.state_dict().keys()
