"""Which matches the fine part is trained on: found ones, and true ones.

zju3dv/LoFTR ``coarse_matching.py`` fills up with true matches drawn with repetition, however few
they are; here none is taken twice, which trains on the same windows for less.

Shape suffixes: K matches.
"""

from __future__ import annotations

import torch
from torch import Tensor

from isoattn.matching.models.nearest import CellMatches


def training_cells(
    found: CellMatches,
    truth: tuple[Tensor, Tensor, Tensor],
    count: int,
    *,
    least_truth: int,
    generator: torch.Generator,
) -> CellMatches:
    """Up to ``count`` matches to refine in a training step; confidence 0 marks the true ones.

    Found matches take what the true ones leave: at least ``least_truth`` places, or as many as
    there are true matches, are for these, and all places that found matches do not fill.

    Args:
        found: by the coarse part.
        truth: pair, cell of image 0, cell of image 1, int64 (T,) each.
        count: most matches, of all pairs together.
        least_truth: places for true matches.
        generator: on the CPU; draws depend on it alone.

    Raises:
        ValueError: fewer places than those for true matches.
    """
    if not 0 <= least_truth <= count:
        raise ValueError(
            f"least_truth must lie in 0..{count}, the number of places, got {least_truth}"
        )
    total = len(truth[0])
    places = count - min(least_truth, total)
    kept = _drawn(len(found), places, generator).to(found.batch.device)
    padded = _drawn(total, count - len(kept), generator).to(found.batch.device)
    batch, cell0, cell1 = (
        torch.cat([mine[kept], true[padded]])
        for mine, true in zip((found.batch, found.cell0, found.cell1), truth, strict=True)
    )
    confidence = torch.cat([found.confidence[kept], found.confidence.new_zeros(len(padded))])
    order = batch.argsort(stable=True)
    return CellMatches(batch[order], cell0[order], cell1[order], confidence[order])


def _drawn(total: int, most: int, generator: torch.Generator) -> Tensor:
    """All of ``total`` numbers in order, or ``most`` of them at random, ascending."""
    if total <= most:
        return torch.arange(total)
    return torch.randperm(total, generator=generator)[:most].sort().values
