"""Mutual nearest neighbours between the cells of two images, and which of them are matches.

Shape suffixes: B pairs, N cells of image 0, M cells of image 1, K matches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Nearest:
    """For each cell of image 0 the cell of image 1 with the highest confidence.

    Args:
        cell: int64 (B, N), the first of equal ones.
        score: (B, N), the logarithm of its confidence; -inf for a masked cell.
        mutual: bool (B, N), whether this cell is in turn the first best of that one.
    """

    cell: Tensor
    score: Tensor
    mutual: Tensor

    @classmethod
    def none(cls, like: Tensor) -> Nearest:
        """Nothing found yet: scores of -inf, of the shape (B, N), dtype and device of ``like``."""
        return cls(
            torch.zeros_like(like, dtype=torch.int64),
            torch.full_like(like, -torch.inf),
            torch.zeros_like(like, dtype=torch.bool),
        )


@dataclass(frozen=True)
class CellMatches:
    """Matched cells.

    Args:
        batch: int64 (K,), the pair, ascending.
        cell0: int64 (K,), ascending within a pair.
        cell1: int64 (K,).
        confidence: (K,).
    """

    batch: Tensor
    cell0: Tensor
    cell1: Tensor
    confidence: Tensor

    def __len__(self) -> int:
        return len(self.batch)


@torch.no_grad()
def nearest(log_confidence_BNM: Tensor) -> Nearest:
    """The mutual nearest neighbours of a matrix; the first index wins a tie."""
    score_BN, cell_BN = log_confidence_BNM.max(2)
    row_BM = log_confidence_BNM.argmax(1)
    place = torch.arange(cell_BN.shape[1], device=cell_BN.device)
    mutual_BN = (row_BM.gather(1, cell_BN) == place) & (score_BN > -torch.inf)
    return Nearest(cell_BN, score_BN, mutual_BN)


@torch.no_grad()
def select(
    found: Nearest,
    threshold: float,
    inner0: Tensor | None = None,
    inner1: Tensor | None = None,
) -> CellMatches:
    """Mutual nearest neighbours above the threshold, both inside their image's border.

    Cells of the border are left out last: one of them that is the nearest neighbour still keeps
    another from being it, as in the released code.

    Args:
        found: of all cells.
        threshold: confidence that a match must exceed; 0 keeps every mutual pair.
        inner0: bool (B, N), cells of image 0 that may match; ``None``: all.
        inner1: bool (B, M), likewise of image 1.

    Raises:
        ValueError: a threshold outside [0, 1].
    """
    if not 0.0 <= threshold <= 1.0:
        raise ValueError(f"threshold is a confidence in [0, 1], got {threshold}")
    least = math.log(threshold) if threshold > 0 else -math.inf
    kept = found.mutual & (found.score > least)
    if inner0 is not None:
        kept = kept & inner0.to(kept.device)
    if inner1 is not None:
        kept = kept & inner1.to(kept.device).gather(1, found.cell)
    batch, cell0 = kept.nonzero().unbind(1)
    return CellMatches(batch, cell0, found.cell[batch, cell0], found.score[batch, cell0].exp())
