"""Partial assignment by entropic optimal transport with a dustbin, in log space.

Sarlin et al. 2020 ("SuperGlue", section 3.2), written from the formula: the scores get a row and
a column of constant score z for cells without partner; every cell has mass 1, the dustbins have
the mass of all cells of the other image, and Sinkhorn's iteration scales rows and columns to it.

Shape suffixes: B pairs, N cells of image 0, M cells of image 1; N+ and M+ with the dustbin.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from isoattn.core.ops.masking import no_autocast


def log_optimal_transport(
    scores_BNM: Tensor,
    bin_score: Tensor,
    iterations: int,
    mask0: Tensor | None = None,
    mask1: Tensor | None = None,
) -> Tensor:
    """Log assignment with dustbins (B, N+, M+), in which every cell has mass 1.

    A masked cell has no mass and takes none: its entries are -inf, and the others are those of the
    cropped problem. (The released code lets masked cells fill the dustbin.)

    Args:
        scores_BNM: scores in float32 at least.
        bin_score: z, a scalar.
        iterations: of Sinkhorn's scaling; each sets the rows, then the columns.
        mask0: bool (B, N), True = keep.
        mask1: bool (B, M).

    Raises:
        ValueError: fewer than one iteration.
    """
    if iterations < 1:
        raise ValueError(f"Sinkhorn needs at least one iteration, got {iterations}")
    with no_autocast(scores_BNM.device.type):
        padded_scores = F.pad(scores_BNM, (0, 1, 0, 1)) + _dustbins(scores_BNM, bin_score)
        mass0 = _log_mass(scores_BNM, 1, mask0, mask1)
        mass1 = _log_mass(scores_BNM, 2, mask1, mask0)
        v = torch.zeros_like(mass1).masked_fill(mass1 == -torch.inf, -torch.inf)
        for _ in range(iterations):
            u = mass0 - (padded_scores + v[:, None, :]).logsumexp(2)
            v = mass1 - (padded_scores + u[:, :, None]).logsumexp(1)
        return padded_scores + u[:, :, None] + v[:, None, :]


def match_log_confidence(log_assignment: Tensor, *, prefilter: bool) -> Tensor:
    """The assignment of cells to cells (B, N, M).

    Args:
        log_assignment: with dustbins, (B, N+, M+).
        prefilter: cells that go to their dustbin rather than to any cell match nothing.
    """
    inner = log_assignment[:, :-1, :-1]
    if not prefilter:
        return inner
    lost0 = log_assignment.argmax(2)[:, :-1, None] == inner.shape[2]
    lost1 = log_assignment.argmax(1)[:, None, :-1] == inner.shape[1]
    return inner.masked_fill(lost0 | lost1, -torch.inf)


def _dustbins(scores: Tensor, bin_score: Tensor) -> Tensor:
    """The score z in the last row and column, 0 elsewhere, (N+, M+)."""
    rows, columns = scores.shape[1:]
    place = torch.zeros(rows + 1, columns + 1, dtype=scores.dtype, device=scores.device)
    place[-1] = 1.0
    place[:, -1] = 1.0
    return place * bin_score.to(scores.dtype)


def _log_mass(scores: Tensor, axis: int, own: Tensor | None, other: Tensor | None) -> Tensor:
    """Log mass of the cells along an axis and of their dustbin, (B, N+): 0, and log of M."""
    batch, cells = scores.shape[0], scores.shape[axis]
    mass = scores.new_zeros(batch, cells + 1)
    if own is not None:
        mass[:, :-1].masked_fill_(~own, -torch.inf)
    if other is None:
        count = scores.new_full((batch,), scores.shape[3 - axis])
    else:
        count = other.sum(1).clamp(min=1).to(scores.dtype)
    mass[:, -1] = count.log()
    return mass
