"""Points from one image to the other: homographies, depth with poses, resizing, epipolar lines.

One frame everywhere: pixel (x, y) has its *centre* at integer x and y, (0, 0) is the centre of the
top left pixel, and cell (column j, row i) of a coarse map sits on pixel (stride j, stride i).

Shape suffixes: B pairs, N points of K coordinates; a last 2 is (x, y).
"""

from __future__ import annotations

import torch
from torch import Tensor


def warp_points(points_BN2: Tensor, homography_B33: Tensor) -> Tensor:
    """Move points by a homography.

    A point beyond the horizon has no image. The sign of a homography is arbitrary, so what counts
    is the side on which the middle of the points lies.

    Args:
        points_BN2: (x, y) in pixels of image 0.
        homography_B33: image 0 -> image 1, of any scale.

    Returns:
        (B, N, 2) in pixels of image 1; NaN beyond the horizon.
    """
    moved_BN3 = apply_matrix(homography_B33, homogeneous(points_BN2))
    depth_BN1 = moved_BN3[..., 2:]
    side_B11 = moved_BN3.mean(-2, keepdim=True)[..., 2:].sign()
    visible_BN1 = depth_BN1 * side_B11 > 0
    warped_BN2 = moved_BN3[..., :2] / torch.where(visible_BN1, depth_BN1, 1.0)
    return torch.where(visible_BN1, warped_BN2, torch.nan)


def homogeneous(points_BN2: Tensor) -> Tensor:
    """(x, y) -> (x, y, 1)."""
    return torch.cat([points_BN2, torch.ones_like(points_BN2[..., :1])], -1)


def apply_matrix(matrix_BKK: Tensor, points_BNK: Tensor) -> Tensor:
    """M x of every point x, (B, N, K).

    Summed here, for a matrix product is rounded to half precision inside autocast, and to 10 bits
    where a GPU may use TF32: pixels off by whole cells.
    """
    return (points_BNK[..., None, :] * matrix_BKK[..., None, :, :]).sum(-1)


def normalise_points(points_BN2: Tensor, intrinsics_B33: Tensor) -> Tensor:
    """Pixels -> the camera's image plane at depth 1: K^-1 (x, y, 1), first two."""
    rays_BN3 = apply_matrix(torch.linalg.inv(intrinsics_B33), homogeneous(points_BN2))
    return rays_BN3[..., :2] / rays_BN3[..., 2:]


def transfer_points(
    points_BN2: Tensor,
    depth_BN: Tensor,
    intrinsics0_B33: Tensor,
    intrinsics1_B33: Tensor,
    pose_B44: Tensor,
    *,
    offset: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Move points by their depth and the relative pose.

    Args:
        points_BN2: pixels of image 0.
        depth_BN: along the optical axis of camera 0, in the unit of the pose's translation.
        intrinsics0_B33, intrinsics1_B33: K of each camera.
        pose_B44: camera 0 -> camera 1, T_0to1.
        offset: added to the depth before it divides; the released code has 1e-4.

    Returns:
        (B, N, 2) in pixels of image 1, and the depth there (B, N); nothing is filtered.
    """
    at_depth_BN3 = homogeneous(points_BN2) * depth_BN[..., None]
    rays_BN3 = apply_matrix(torch.linalg.inv(intrinsics0_B33), at_depth_BN3)
    moved_BN3 = apply_matrix(pose_B44[..., :3, :3], rays_BN3) + pose_B44[..., None, :3, 3]
    pixels_BN3 = apply_matrix(intrinsics1_B33, moved_BN3)
    return pixels_BN3[..., :2] / (pixels_BN3[..., 2:] + offset), moved_BN3[..., 2]


def relative_pose(to_camera0_B44: Tensor, to_camera1_B44: Tensor) -> Tensor:
    """T_0to1 = T1 T0^-1 of two poses world -> camera."""
    back_B44 = torch.linalg.inv(to_camera0_B44)
    return apply_matrix(to_camera1_B44, back_B44.transpose(-2, -1)).transpose(-2, -1)


def essential_matrix(pose_B44: Tensor) -> Tensor:
    """E = [t]x R with x1^T E x0 = 0 on normalised points; t keeps its length."""
    x, y, z = pose_B44[..., :3, 3].unbind(-1)
    zero = torch.zeros_like(x)
    cross_B9 = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], -1)
    cross_B33 = cross_B9.reshape(*cross_B9.shape[:-1], 3, 3)
    rotation_B33 = pose_B44[..., :3, :3]
    return apply_matrix(cross_B33, rotation_B33.transpose(-2, -1)).transpose(-2, -1)


def resize_matrix(from_hw: tuple[int, int], to_hw: tuple[int, int]) -> Tensor:
    """Where a pixel of an image goes when the image is resized: float64 (3, 3).

    The areas of the images coincide, not the centres of their corner pixels, as in Pillow and
    OpenCV: x' = (x + 0.5) s - 0.5.
    """
    scale_y, scale_x = (after / before for after, before in zip(to_hw, from_hw, strict=True))
    shifts = (scale_x - 1) / 2, (scale_y - 1) / 2
    rows = [[scale_x, 0, shifts[0]], [0, scale_y, shifts[1]], [0, 0, 1]]
    return torch.tensor(rows, dtype=torch.float64)
