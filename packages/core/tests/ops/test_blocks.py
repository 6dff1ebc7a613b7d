"""The blocked forms at sizes where they really have several blocks."""

import pytest
import torch

from isoattn.core import CrossCovariance, Linear
from isoattn.core.ops import blocks
from isoattn.core.testing.algebra import _like_reference
from isoattn.core.testing.suite import Draw, Sizes, build


@pytest.fixture
def small_blocks(monkeypatch):
    """One sample a block and 64 tokens a block."""
    monkeypatch.setattr(blocks, "NUMBERS", 64)


@pytest.mark.parametrize("tokens", [1, 63, 64, 65, 129, 211])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("feature_map", ["elu1", "relu", "softplus", "exp"])
def test_linear(small_blocks, feature_map, masked, tokens):
    sizes = Sizes(4, 3, tokens, 3)
    module = build(lambda h, d: Linear(h, d, feature_map=feature_map), sizes)
    for keys, groups in ((tokens, 4), (150, 2), (1, 1)):
        draw = Draw()
        mask = draw.mask(3, keys) if masked else None
        _like_reference(module, draw.qkv(sizes, keys=keys, groups=groups), mask, False)


@pytest.mark.parametrize("tokens", [1, 63, 64, 65, 129, 211])
@pytest.mark.parametrize("masked", [False, True])
def test_cross_covariance(small_blocks, masked, tokens):
    sizes, draw = Sizes(4, 3, tokens, 3), Draw()
    mask = draw.mask(3, tokens) if masked else None
    _like_reference(build(CrossCovariance, sizes), draw.qkv(sizes), mask, False)


def test_blocks_cover_everything_once(monkeypatch):
    monkeypatch.setattr(blocks, "NUMBERS", 1000)
    x = torch.empty(7, 2, 50, 3)
    seen = torch.zeros(7, 50)
    for b in blocks.batch_blocks(x):
        for n in blocks.token_blocks(x):
            seen[b, n] += 1
    assert torch.equal(seen, torch.ones(7, 50))
    assert [b.stop - b.start for b in blocks.batch_blocks(x)] == [3, 3, 1]


def test_other_devices_are_not_cut():
    x = torch.empty(70, 8, 5000, 64, device="meta")
    assert list(blocks.batch_blocks(x)) == [slice(0, 70)]
    assert list(blocks.token_blocks(x)) == [slice(0, 5000)]
