"""Coarse matches against the ground truth, pair by pair: counts from which every score is made.

Shape suffixes: B pairs, L cells of image 0, K matches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from isoattn.matching.models.cells import STRIDE
from isoattn.matching.supervision.cells import Supervision


@dataclass(frozen=True)
class CoarseCounts:
    """Counts of each pair, int64 (B,).

    A match can be judged where it is known to which place its cell of image 0 goes. It is *exact*
    if it is in the ground truth, and *near* if the cell of image 1 lies within one cell (8 pixels
    of image 1, Euclidean) of that place.

    Args:
        matches: predicted.
        judged: of these, the ones that can be judged.
        exact, near: of the judged.
        truth: matches of the ground truth.
        found, found_near: of the truth, the ones whose cell of image 0 has a match that is exact,
            or near.
    """

    matches: Tensor
    judged: Tensor
    exact: Tensor
    near: Tensor
    truth: Tensor
    found: Tensor
    found_near: Tensor


@dataclass(frozen=True)
class Verdict:
    """What is known of each match, bool (K,).

    Args:
        judged: the place that its cell of image 0 goes to is known.
        exact: it is in the ground truth.
        near: it is within one cell of that place.
        has_truth: its cell of image 0 is in the ground truth.
    """

    judged: Tensor
    exact: Tensor
    near: Tensor
    has_truth: Tensor


def judge(truth: Supervision, b: Tensor, i: Tensor, j: Tensor) -> Verdict:
    """Compare matches (pair, cell of image 0, cell of image 1; int64 (K,) each) with the truth."""
    partner_K = truth.partner()[b, i]
    error_K = truth.offsets(b, i, j).norm(dim=-1)
    judged_K = ~error_K.isnan() & truth.known_B[b]
    return Verdict(
        judged_K,
        judged_K & (partner_K == j),
        judged_K & (error_K <= STRIDE),
        partner_K >= 0,
    )


def coarse_counts(truth: Supervision, b: Tensor, i: Tensor, j: Tensor) -> CoarseCounts:
    """Count right and wrong matches of each pair; each cell of image 0 has at most one.

    Args:
        truth: of the batch.
        b, i, j: int64 (K,), predicted matches: pair and cells; K may be 0.
    """
    verdict = judge(truth, b, i, j)
    pairs = len(truth.known_B)

    def of_pair(chosen_K: Tensor) -> Tensor:
        return torch.bincount(b[chosen_K], minlength=pairs)

    return CoarseCounts(
        torch.bincount(b, minlength=pairs),
        of_pair(verdict.judged),
        of_pair(verdict.exact),
        of_pair(verdict.near),
        truth.counts(),
        of_pair(verdict.exact),
        of_pair(verdict.near & verdict.has_truth),
    )


def average_precision(
    confidence_K: Tensor, positive_K: Tensor, group_K: Tensor, truth_B: Tensor
) -> Tensor:
    """Area under precision over recall of each pair, free of any threshold.

    The mean over the truth of the precision among all matches that are at least as confident; a
    match of the truth that is not among the candidates counts 0. Equal confidences are one step.

    Args:
        confidence_K: of candidates, which no threshold has thinned out.
        positive_K: bool, right ones.
        group_K: int64, pair of each.
        truth_B: int64, matches of the ground truth of each pair.

    Returns:
        float64 (B,); NaN for a pair without truth.
    """
    area_B = torch.full((len(truth_B),), torch.nan, dtype=torch.float64)
    confidence_K, positive_K, group_K = confidence_K.cpu(), positive_K.cpu(), group_K.cpu()
    for pair, truth in enumerate(truth_B.tolist()):
        if truth:
            own = group_K == pair
            area_B[pair] = _area(confidence_K[own], positive_K[own]) / truth
    return area_B


def _area(confidence_K: Tensor, positive_K: Tensor) -> float:
    """Sum over the positives of the precision down to their confidence."""
    order = confidence_K.argsort(descending=True)
    _, step_K = torch.unique_consecutive(confidence_K[order], return_inverse=True)
    size_S = torch.bincount(step_K)
    right_S = torch.bincount(step_K, weights=positive_K[order].double(), minlength=len(size_S))
    precision_S = right_S.cumsum(0) / size_S.cumsum(0)
    return float((right_S * precision_S).sum())


def accuracy_at(
    error_K: Tensor, b: Tensor, pairs: int, thresholds: Sequence[float]
) -> dict[float, Tensor]:
    """Share of matches whose error is at most t, of each pair (MMA before the mean over pairs).

    Args:
        error_K: in pixels; NaN where it is not known, which is left out.
        b: int64 (K,), pair of each.
        pairs: B.
        thresholds: t, in pixels.

    Returns:
        float64 (B,) for each threshold; a pair without a match has 0.
    """
    known = ~error_K.isnan()
    count_B = torch.bincount(b[known], minlength=pairs).clamp(min=1)
    return {
        t: torch.bincount(b[known & (error_K <= t)], minlength=pairs).double() / count_B
        for t in thresholds
    }
