"""Ground truth from maps that say where each pixel goes, such as disparity gives.

Shape suffixes: B pairs, L cells of image 0, S of image 1, N cells of either, H, W pixels.
"""

from __future__ import annotations

from torch import Tensor

from isoattn.matching.models.cells import STRIDE, grid_of
from isoattn.matching.supervision.cells import Supervision, mutual_cells


def gt_from_maps(
    map0_BHW2: Tensor,
    map1_BHW2: Tensor,
    *,
    keep0_BL: Tensor | None = None,
    keep1_BS: Tensor | None = None,
) -> Supervision:
    """Cells that are each other's nearest under two maps.

    Args:
        map0_BHW2: (x, y) in image 1 of every pixel of image 0; NaN = not known or not visible.
        map1_BHW2: the reverse, of the size of image 1.
        keep0_BL, keep1_BS: bool, cells that are no padding; ``None``: all.

    Returns:
        The supervision of the batch; a pair whose first map has no number has no ground truth.
    """
    grid0, grid1 = (grid_of(m.shape[1], m.shape[2]) for m in (map0_BHW2, map1_BHW2))
    warped0_BL2, warped1_BS2 = (
        map_BHW2[:, ::STRIDE, ::STRIDE].flatten(1, 2) for map_BHW2 in (map0_BHW2, map1_BHW2)
    )
    known_B = ~map0_BHW2.isnan().flatten(1).all(1)
    b, i, j = mutual_cells(warped0_BL2, warped1_BS2, grid0, grid1, keep0_BL, keep1_BS)
    return Supervision(b, i, j, warped0_BL2, known_B, grid0, grid1)
