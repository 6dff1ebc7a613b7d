"""Ground truth from depth maps and the relative pose, LoFTR's rule (its supervision.py).

Shape suffixes: B pairs, N cells of either image, L of image 0, S of image 1, H, W pixels of a depth
map; a last 2 is (x, y).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from isoattn.matching.geometry import transfer_points
from isoattn.matching.models.cells import STRIDE, Grid, grid_of
from isoattn.matching.supervision.cells import Supervision, all_points, mutual_cells

Fidelity = Literal["exact", "released"]
RELEASED_OFFSET = 1e-4


@dataclass
class DepthView:
    """What one image of a pair contributes.

    Args:
        depth_BHW: along the optical axis, in the unit of the pose's translation; 0 = unknown.
        intrinsics_B33: K in the frame of the depth map.
        size: (H, W) of the image that the matcher sees.
        keep_BN: bool, cells that are no padding; ``None``: all.
        scale_B2: size of the depth frame / size of the image, as (w, h); ``None``: the same. Pixel
            p of the image reads the depth at p * scale, without a half-pixel shift, as released.
    """

    depth_BHW: Tensor
    intrinsics_B33: Tensor
    size: tuple[int, int]
    keep_BN: Tensor | None = None
    scale_B2: Tensor | None = None

    @property
    def grid(self) -> Grid:
        """Rows and columns of cells."""
        return grid_of(*self.size)

    def scale(self) -> Tensor:
        """(B, 1, 2)."""
        if self.scale_B2 is None:
            return torch.ones_like(self.intrinsics_B33[:, :1, :2])
        return self.scale_B2[:, None]


def gt_from_depth(
    view0: DepthView, view1: DepthView, pose_B44: Tensor, *, fidelity: Fidelity = "exact"
) -> Supervision:
    """Cells that are each other's nearest when moved by their depth and the pose.

    Depth is read at the rounded pixel. Whether the two depths agree is not checked, which LoFTR's
    authors found to do harm.

    Args:
        view0, view1: depth and camera of each image.
        pose_B44: camera 0 -> camera 1, T_0to1.
        fidelity: ``"released"`` follows the released code to the letter: a position off the map
            becomes cell 0, cell 0 of image 0 never matches, unknown depth is used as it is, and
            1e-4 is added to the depth that divides. ``"exact"`` leaves such cells without a match.

    Returns:
        The supervision of the batch, ``warped0_BL2`` in pixels of the image 1 that the matcher
        sees. A pair without any depth, or with a pose or K that is not finite, has no ground truth.
    """
    known_B = _known(view0, view1, pose_B44)
    eye_44 = torch.eye(4, dtype=pose_B44.dtype, device=pose_B44.device)
    pose_B44 = torch.where(known_B[:, None, None], pose_B44, eye_44)
    released = fidelity == "released"
    warped0_BL2 = _warp_cells(view0, view1, pose_B44, known_B, released)
    warped1_BS2 = _warp_cells(view1, view0, torch.linalg.inv(pose_B44), known_B, released)
    grids = view0.grid, view1.grid
    if released:
        b, i, j = _released_matches(warped0_BL2, warped1_BS2, *grids)
        kept = known_B[b]
        b, i, j = b[kept], i[kept], j[kept]
    else:
        warped0_BL2 = torch.where(known_B[:, None, None], warped0_BL2, torch.nan)
        b, i, j = mutual_cells(warped0_BL2, warped1_BS2, *grids, view0.keep_BN, view1.keep_BN)
    return Supervision(b, i, j, warped0_BL2, known_B, *grids)


def _known(view0: DepthView, view1: DepthView, pose_B44: Tensor) -> Tensor:
    known_B = pose_B44.isfinite().flatten(1).all(1)
    for view in (view0, view1):
        known_B = known_B & view.intrinsics_B33.isfinite().flatten(1).all(1)
        known_B = known_B & (view.depth_BHW > 0).flatten(1).any(1)
    return known_B


def _warp_cells(
    view: DepthView, other: DepthView, pose_B44: Tensor, known_B: Tensor, released: bool
) -> Tensor:
    """Cells of a view in pixels of the other's image, (B, N, 2)."""
    points_BN2 = all_points(view.grid, view.depth_BHW) * view.scale()
    if released and view.keep_BN is not None:
        points_BN2 = torch.where(view.keep_BN[..., None], points_BN2, 0.0)
    depth_BN = _read_depth(view.depth_BHW, points_BN2)
    eye_33 = torch.eye(3, dtype=pose_B44.dtype, device=pose_B44.device)
    own_B33, others_B33 = (
        torch.where(known_B[:, None, None], v.intrinsics_B33, eye_33) for v in (view, other)
    )
    offset = RELEASED_OFFSET if released else 0.0
    moved_BN2, ahead_BN = transfer_points(
        points_BN2, depth_BN, own_B33, others_B33, pose_B44, offset=offset
    )
    if not released:
        seen_BN = (depth_BN > 0) & (ahead_BN > 0)
        moved_BN2 = torch.where(seen_BN[..., None], moved_BN2, torch.nan)
    return moved_BN2 / other.scale()


def _read_depth(depth_BHW: Tensor, points_BN2: Tensor) -> Tensor:
    """Depth at the rounded pixel, 0 off the map."""
    height, width = depth_BHW.shape[1:]
    x_BN, y_BN = points_BN2.round().long().unbind(-1)
    inside_BN = (x_BN < width) & (y_BN < height)
    flat_BN = y_BN.clamp(max=height - 1) * width + x_BN.clamp(max=width - 1)
    return torch.where(inside_BN, depth_BHW.flatten(1).gather(1, flat_BN), 0.0)


def _released_matches(
    warped0_BL2: Tensor, warped1_BS2: Tensor, grid0: Grid, grid1: Grid
) -> tuple[Tensor, Tensor, Tensor]:
    """What is off a map goes to its cell 0, and cell 0 of image 0 is dropped."""
    cornered = []
    for warped_BN2, grid in ((warped0_BL2, grid1), (warped1_BS2, grid0)):
        cell_BN2 = (warped_BN2 / STRIDE).round()
        last_2 = cell_BN2.new_tensor([grid[1] - 1, grid[0] - 1])
        inside_BN = ((cell_BN2 >= 0) & (cell_BN2 <= last_2)).all(-1)
        cornered.append(torch.where(inside_BN[..., None], warped_BN2, 0.0))
    b, i, j = mutual_cells(cornered[0], cornered[1], grid0, grid1)
    return b[i > 0], i[i > 0], j[i > 0]
