"""Counts of right matches, and the average precision, against cases worked out by hand."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isoattn.matching.metrics import accuracy_at, average_precision, coarse_counts
from isoattn.matching.supervision import gt_from_homography, gt_from_matches


def ids(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


def shifts(*shift: float) -> torch.Tensor:
    return torch.stack([torch.tensor([[1.0, 0, x], [0, 1, 0], [0, 0, 1]]) for x in shift])


def test_exact_near_and_wrong():
    truth = gt_from_homography(shifts(8, 8, 900), (16, 32), (16, 32))  # grids of 2 x 4
    # Pair 0: cell 0 -> 1 is exact, 1 -> 1 one cell off, 2 -> 0 wrong, 3 has no partner: it goes to
    # x = 32, one cell beyond cell 3. Pair 1: nothing. Pair 2 does not overlap: any match is wrong.
    counts = coarse_counts(truth, ids(0, 0, 0, 0, 2), ids(0, 1, 2, 3, 0), ids(1, 1, 0, 3, 0))
    assert counts.matches.tolist() == [4, 0, 1]
    assert counts.judged.tolist() == [4, 0, 1]
    assert counts.exact.tolist() == counts.found.tolist() == [1, 0, 0]
    assert counts.near.tolist() == [3, 0, 0]
    assert counts.found_near.tolist() == [2, 0, 0]
    assert counts.truth.tolist() == [6, 6, 0]


def test_no_match_at_all():
    # M8: training and validation live with none.
    truth = gt_from_homography(shifts(0, 8), (16, 32), (16, 32))
    counts = coarse_counts(truth, ids(), ids(), ids())
    for name, value in vars(counts).items():
        assert value.tolist() == ([8, 6] if name == "truth" else [0, 0])


def test_what_is_not_known_cannot_be_judged():
    points = torch.tensor([[0.0, 0.0]])
    known = torch.tensor([True, False])
    truth = gt_from_matches(points, points, ids(0), known, (16, 16), (16, 16))
    counts = coarse_counts(truth, ids(0, 0, 1), ids(0, 1, 0), ids(0, 1, 0))
    assert counts.matches.tolist() == [2, 1] and counts.judged.tolist() == [1, 0]
    assert counts.exact.tolist() == [1, 0]


@given(st.data())
@settings(deadline=None, max_examples=25)
def test_average_precision_is_the_mean_precision_at_the_truth(data):
    count = data.draw(st.integers(1, 12))
    confidence = data.draw(st.lists(st.integers(0, 4), min_size=count, max_size=count))
    positive = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    truth = sum(positive) + data.draw(st.integers(0, 3))
    got = average_precision(
        torch.tensor(confidence) / 4,
        torch.tensor(positive),
        torch.zeros(count, dtype=torch.int64),
        torch.tensor([truth]),
    )
    if not truth:
        assert math.isnan(float(got[0]))
        return
    total = 0.0
    for score, right in zip(confidence, positive, strict=True):
        if right:
            above = [p for s, p in zip(confidence, positive, strict=True) if s >= score]
            total += sum(above) / len(above)
    assert float(got[0]) == pytest.approx(total / truth)


def test_average_precision_by_pair_and_without_candidates():
    confidence = torch.tensor([0.9, 0.8, 0.7])
    right = torch.tensor([True, False, True])
    got = average_precision(confidence, right, ids(1, 0, 0), ids(1, 2, 3, 0))
    assert got[:3].tolist() == pytest.approx([0.5, 0.5, 0.0]) and math.isnan(float(got[3]))


def test_accuracy_at_thresholds():
    error = torch.tensor([0.5, 3.0, 7.0, torch.nan, 20.0])
    shares = accuracy_at(error, ids(0, 0, 0, 0, 1), 3, (1, 3, 10))
    assert shares[1].tolist() == pytest.approx([1 / 3, 0, 0])
    assert shares[3].tolist() == pytest.approx([2 / 3, 0, 0])
    assert shares[10].tolist() == pytest.approx([1, 0, 0])
