"""How well matches give the relative pose: estimation, its error, epipolar distances.

Shape suffixes: B pairs, N matches, R repeats; 33, 44 matrices; a last 2 is (x, y).
"""

from __future__ import annotations

import math

import cv2
import numpy as np
import torch
from torch import Tensor

from isoattn.matching.geometry import (
    apply_matrix,
    essential_matrix,
    homogeneous,
    normalise_points,
)
from isoattn.matching.metrics.robust import RobustOptions, shuffled

LEAST_POINTS = 5
POSE_RANSAC = RobustOptions(threshold=0.5, confidence=0.99999, iterations=1000)


def pose_error(rotation_33: Tensor, translation_3: Tensor, true_44: Tensor) -> tuple[float, float]:
    """Angles in degrees between an estimated and the true relative pose.

    Args:
        rotation_33, translation_3: estimated, camera 0 -> camera 1, the translation of any length
            and sign: an essential matrix gives neither.
        true_44: T_0to1.

    Returns:
        The angle of the rotation between the two, and that between the translations, in [0, 90].
        Where the cameras share their centre there is no direction to be wrong about: 0.
    """
    rotation_33, true_44 = rotation_33.double(), true_44.double()
    cosine = (float((rotation_33 * true_44[:3, :3]).sum()) - 1) / 2
    rotation = math.degrees(math.acos(min(max(cosine, -1.0), 1.0)))
    lengths = float(translation_3.double().norm() * true_44[:3, 3].norm())
    if lengths == 0:
        return rotation, 0.0
    cosine = float(translation_3.double() @ true_44[:3, 3]) / lengths
    return rotation, math.degrees(math.acos(min(abs(cosine), 1.0)))


def estimate_pose(
    points0_N2: Tensor,
    points1_N2: Tensor,
    intrinsics0_33: Tensor,
    intrinsics1_33: Tensor,
    options: RobustOptions = POSE_RANSAC,
) -> list[tuple[Tensor, Tensor] | None]:
    """Relative poses by OpenCV's essential matrix, one for each repeat.

    The threshold becomes one of normalised points by the mean focal length of both cameras. (The
    released code takes the mean of K0[0, 0] and K1[1, 1] alone.)

    Args:
        points0_N2, points1_N2: matches in pixels.
        intrinsics0_33, intrinsics1_33: K in the frame of the points.
        options: of the estimation; the threshold is in pixels of that frame.

    Returns:
        R times the rotation (3, 3) and the direction of the translation (3,), float64; ``None`` for
        a failure, or fewer than five matches.
    """
    matrices = [matrix.detach().cpu().double() for matrix in (intrinsics0_33, intrinsics1_33)]
    focal = float(torch.stack([matrix.diagonal()[:2] for matrix in matrices]).mean())
    ends = [
        normalise_points(points.detach().cpu().double(), matrix)
        for points, matrix in zip((points0_N2, points1_N2), matrices, strict=True)
    ]
    return [
        _one_pose(first, second, options.threshold / focal, options)
        for first, second in shuffled(ends[0], ends[1], options)
    ]


def _one_pose(
    points0: np.ndarray, points1: np.ndarray, threshold: float, options: RobustOptions
) -> tuple[Tensor, Tensor] | None:
    if len(points0) < LEAST_POINTS:
        return None
    method = cv2.USAC_MAGSAC if options.method == "magsac" else cv2.RANSAC
    eye = np.eye(3)
    try:
        essential, inlier = cv2.findEssentialMat(
            points0,
            points1,
            eye,
            method=method,
            prob=options.confidence,
            threshold=threshold,
            maxIters=options.iterations,
        )
    except cv2.error:  # points in one place
        return None
    if essential is None:
        return None
    best, found = 0, None
    for matrix in np.split(essential, len(essential) // 3):  # up to ten fit five points
        # 1e9: points at any distance count as before the cameras.
        count, rotation, translation = cv2.recoverPose(
            matrix, points0, points1, eye, 1e9, mask=inlier.copy()
        )[:3]
        if count > best and np.isfinite(rotation).all():
            best, found = count, (torch.from_numpy(rotation), torch.from_numpy(translation[:, 0]))
    return found


def epipolar_errors(
    points0_N2: Tensor,
    points1_N2: Tensor,
    batch_index_N: Tensor,
    intrinsics0_B33: Tensor,
    intrinsics1_B33: Tensor,
    pose_B44: Tensor,
) -> Tensor:
    """Symmetric epipolar distance, squared, between normalised points (LoFTR's metrics.py).

    (x1^T E x0)^2 (1 / |(E x0)_xy|^2 + 1 / |(E^T x1)_xy|^2), a number without unit.

    Args:
        points0_N2, points1_N2: matches in pixels.
        batch_index_N: int64, pair of each.
        intrinsics0_B33, intrinsics1_B33: K in the frame of the points.
        pose_B44: T_0to1.

    Returns:
        (N,).
    """
    ends = [
        homogeneous(normalise_points(points_N2[:, None], matrix_B33[batch_index_N])[:, 0])
        for points_N2, matrix_B33 in ((points0_N2, intrinsics0_B33), (points1_N2, intrinsics1_B33))
    ]
    essential_N33 = essential_matrix(pose_B44)[batch_index_N]
    lines = [
        apply_matrix(essential_N33, ends[0][:, None])[:, 0],
        apply_matrix(essential_N33.transpose(-2, -1), ends[1][:, None])[:, 0],
    ]
    residual_N = (ends[1] * lines[0]).sum(-1)
    weights = [1 / line_N3[:, :2].square().sum(-1) for line_N3 in lines]
    return residual_N.square() * (weights[0] + weights[1])


def line_distance(points0_N2: Tensor, points1_N2: Tensor, fundamental_33: Tensor) -> Tensor:
    """Distance in pixels of image 1 from each point to the epipolar line of its partner, (N,).

    Args:
        points0_N2, points1_N2: matches in pixels.
        fundamental_33: F with x1^T F x0 = 0.
    """
    line_N3 = apply_matrix(fundamental_33, homogeneous(points0_N2))
    residual_N = (homogeneous(points1_N2) * line_N3).sum(-1)
    distance_N: Tensor = residual_N.abs() / line_N3[:, :2].norm(dim=-1)
    return distance_N
