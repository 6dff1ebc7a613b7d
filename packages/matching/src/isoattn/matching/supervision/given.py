"""Ground truth from matches that are given (LoFTR#238; EfficientLoFTR#71).

Shape suffixes: B pairs, L cells of image 0, S of image 1, M matches; a last 2 is (x, y).
"""

from __future__ import annotations

import torch
from torch import Tensor

from isoattn.matching.models.cells import Grid, cell_points, grid_of
from isoattn.matching.supervision.cells import Supervision, nearest_cells


def gt_from_matches(
    keypoints0_M2: Tensor,
    keypoints1_M2: Tensor,
    batch_index_M: Tensor,
    known_B: Tensor,
    size0: tuple[int, int],
    size1: tuple[int, int],
    *,
    keep0_BL: Tensor | None = None,
    keep1_BS: Tensor | None = None,
) -> Supervision:
    """Each match belongs to the cells nearest to its ends.

    Where several fall into one cell, the one whose ends lie nearest to the centres of their cells
    stays; a match stays only if it wins in both images. A cell of image 0 is taken to go where its
    match says, moved along by as much as the match lies off the cell's centre.

    Args:
        keypoints0_M2, keypoints1_M2: pixels of the two images; matches with an end off its image,
            or in padding, are left out.
        batch_index_M: int64, pair of each match.
        known_B: bool, pairs whose matches are given.
        size0, size1: (H, W) of the images.
        keep0_BL, keep1_BS: bool, cells that are no padding; ``None``: all.

    Returns:
        The supervision of the batch.
    """
    grid0, grid1 = grid_of(*size0), grid_of(*size1)
    cell0_M, offset0_M2 = _own_cells(keypoints0_M2, batch_index_M, grid0, keep0_BL)
    cell1_M, offset1_M2 = _own_cells(keypoints1_M2, batch_index_M, grid1, keep1_BS)
    usable = ((cell0_M >= 0) & (cell1_M >= 0)).nonzero()[:, 0]
    distance_M = offset0_M2.norm(dim=1) + offset1_M2.norm(dim=1)
    nearest_first = usable[distance_M[usable].argsort(stable=True)]
    key0_M = batch_index_M * (grid0[0] * grid0[1]) + cell0_M
    key1_M = batch_index_M * (grid1[0] * grid1[1]) + cell1_M
    won = _first(key0_M[nearest_first]) & _first(key1_M[nearest_first])
    chosen = nearest_first[won]
    chosen = chosen[key0_M[chosen].argsort()]
    b, i, j = batch_index_M[chosen], cell0_M[chosen], cell1_M[chosen]
    warped0_BL2 = keypoints1_M2.new_full((len(known_B), grid0[0] * grid0[1], 2), torch.nan)
    warped0_BL2[b, i] = keypoints1_M2[chosen] - offset0_M2[chosen]
    return Supervision(b, i, j, warped0_BL2, known_B, grid0, grid1)


def _own_cells(
    keypoints_M2: Tensor, batch_index_M: Tensor, grid: Grid, keep_BN: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The cell of each keypoint, -1 for none, and the way from the cell's centre to it."""
    cell_M = nearest_cells(keypoints_M2[None], grid)[0]
    if keep_BN is not None:
        cell_M = cell_M.masked_fill(~keep_BN[batch_index_M, cell_M.clamp(min=0)], -1)
    return cell_M, keypoints_M2 - cell_points(cell_M.clamp(min=0), grid, keypoints_M2.dtype)


def _first(key_M: Tensor) -> Tensor:
    """Bool, the first occurrence of each number."""
    order = key_M.argsort(stable=True)
    ordered_M = key_M[order]
    starts_M = torch.ones_like(ordered_M, dtype=torch.bool)
    starts_M[1:] = ordered_M[1:] != ordered_M[:-1]
    first_M = torch.empty_like(starts_M)
    first_M[order] = starts_M
    return first_M
