"""Matches of a batch: split, best of each pair, other coordinates, nothing at all."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isoattn.matching.matches import Matches


def make(pairs: list[int], seed: int = 0) -> Matches:
    """Random matches, ``pairs[i]`` of them in pair i."""
    generator = torch.Generator().manual_seed(seed)
    count = sum(pairs)
    return Matches(
        torch.rand(count, 2, generator=generator),
        torch.rand(count, 2, generator=generator),
        torch.rand(count, generator=generator),
        torch.arange(len(pairs)).repeat_interleave(torch.tensor(pairs, dtype=torch.int64)),
        len(pairs),
        cell0=torch.arange(count),
        cell1=torch.arange(count),
    )


COUNTS = st.lists(st.integers(0, 6), min_size=1, max_size=5)


@settings(deadline=None)
@given(COUNTS)
def test_split_gives_every_pair_in_order(counts):
    matches = make(counts)
    pieces = matches.split()
    assert [len(piece) for piece in pieces] == counts == matches.counts().tolist()
    assert all(piece.batch_size == 1 and not piece.batch_index.any() for piece in pieces)
    assert torch.equal(torch.cat([p.keypoints1 for p in pieces]), matches.keypoints1)
    assert torch.equal(torch.cat([p.cell0 for p in pieces]), matches.cell0)
    assert matches.std is None and all(piece.std is None for piece in pieces)


@settings(deadline=None)
@given(COUNTS, st.integers(0, 8))
def test_topk_is_of_each_pair(counts, k):
    matches = make(counts)
    best = matches.topk(k)
    for piece, found in zip(matches.split(), best.split(), strict=True):
        want = piece.confidence.sort(descending=True).values[:k]
        assert torch.equal(found.confidence, want)
        assert torch.equal(piece.confidence[found.cell0 - piece.cell0[:1]], want)


def test_topk_keeps_the_order_of_equals():
    matches = make([4])
    equal = Matches(matches.keypoints0, matches.keypoints1, torch.ones(4), matches.batch_index, 1)
    assert torch.equal(equal.topk(2).keypoints0, matches.keypoints0[:2])
    with pytest.raises(ValueError, match="topk takes a count of 0 or more matches a pair, got -1"):
        matches.topk(-1)


def test_above_is_strict():
    matches = make([3, 3])
    threshold = float(matches.confidence.double()[2])
    kept = matches.above(threshold)
    assert torch.equal(kept.confidence, matches.confidence[matches.confidence > threshold])


def test_scaled_in_both_conventions():
    matches = make([2, 1])
    scale0, scale1 = torch.tensor([[2.0, 3.0], [4.0, 5.0]]), torch.tensor([0.5, 0.25])
    plain = matches.scaled(scale0, scale1)
    assert torch.equal(plain.keypoints0[2], matches.keypoints0[2] * scale0[1])
    assert torch.equal(plain.keypoints1, matches.keypoints1 * scale1)
    half = matches.scaled(scale0, scale1, half_pixel=True)
    torch.testing.assert_close(half.keypoints1, (matches.keypoints1 + 0.5) * scale1 - 0.5)
    assert torch.equal(plain.confidence, matches.confidence)


def test_another_device_and_nothing_at_all():
    empty = make([0, 0])
    assert len(empty) == 0 and [len(p) for p in empty.split()] == [0, 0]
    assert len(empty.topk(3)) == len(empty.above(0.5)) == len(empty.to("cpu")) == 0
    assert make([2]).to("meta").keypoints0.device.type == "meta"


def test_lengths_that_differ_are_refused():
    points = torch.zeros(3, 2)
    index = torch.zeros(3, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"keypoints1 of shape \(3, 2\) for 3 .* got \(2, 2\)"):
        Matches(points, points[:2], torch.ones(3), index, 1)
    with pytest.raises(ValueError, match=r"cell1 of shape \(3,\)"):
        Matches(points, points, torch.ones(3), index, 1, cell1=index[:1])
