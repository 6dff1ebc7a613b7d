"""Ground truth of a plane: two warps, by a homography and its inverse (LoFTR#324, #254).

Shape suffixes: B pairs, L cells of image 0, S of image 1, N cells of either.
"""

from __future__ import annotations

import torch
from torch import Tensor

from isoattn.matching.geometry import warp_points
from isoattn.matching.models.cells import grid_of
from isoattn.matching.supervision.cells import Supervision, all_points, mutual_cells


def gt_from_homography(
    homography_B33: Tensor,
    size0: tuple[int, int],
    size1: tuple[int, int],
    *,
    keep0_BL: Tensor | None = None,
    keep1_BS: Tensor | None = None,
) -> Supervision:
    """Cells that are each other's nearest when warped by H and by its inverse.

    Args:
        homography_B33: pixels of image 0 -> pixels of image 1, any scale; a pair whose matrix is
            singular or not finite has no ground truth.
        size0, size1: (H, W) of the images.
        keep0_BL, keep1_BS: bool, cells that are no padding; ``None``: all.

    Returns:
        The supervision of the batch.
    """
    finite_B = homography_B33.isfinite().flatten(1).all(1)
    eye_33 = torch.eye(3, dtype=homography_B33.dtype, device=homography_B33.device)
    forward_B33 = torch.where(finite_B[:, None, None], homography_B33, eye_33)
    backward_B33, singular_B = torch.linalg.inv_ex(forward_B33)
    known_B = finite_B & (singular_B == 0)
    grid0, grid1 = grid_of(*size0), grid_of(*size1)
    warped = []
    for matrix_B33, grid in ((forward_B33, grid0), (backward_B33, grid1)):
        points_N2 = all_points(grid, matrix_B33)
        moved_BN2 = warp_points(points_N2.expand(len(matrix_B33), -1, -1), matrix_B33)
        warped.append(torch.where(known_B[:, None, None], moved_BN2, torch.nan))
    b, i, j = mutual_cells(warped[0], warped[1], grid0, grid1, keep0_BL, keep1_BS)
    return Supervision(b, i, j, warped[0], known_B, grid0, grid1)
