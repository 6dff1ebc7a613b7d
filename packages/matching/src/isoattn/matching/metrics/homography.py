"""How well matches give a homography: estimation by RANSAC, corner errors.

Shape suffixes: N points, R repeats; 33 a matrix; a last 2 is (x, y).
"""

from __future__ import annotations

from typing import Literal

import cv2
import numpy as np
import torch
from torch import Tensor

from isoattn.matching.geometry import homogeneous
from isoattn.matching.metrics.robust import RobustOptions, shuffled

Corners = Literal["centres", "edges"]
LEAST_POINTS = 4
# OpenCV's own confidence and iterations, with which the published figures were made.
HOMOGRAPHY_RANSAC = RobustOptions(threshold=3.0, confidence=0.995, iterations=2000)


def corner_error(
    predicted_33: Tensor | None,
    true_33: Tensor,
    size: tuple[int, int],
    *,
    corners: Corners = "centres",
) -> float:
    """Mean distance, in pixels of image 1, of image 0's corners moved by two homographies.

    Args:
        predicted_33: image 0 -> image 1; ``None``: the estimation failed.
        true_33: the ground truth, in the same frame.
        size: (H, W) of image 0 in that frame.
        corners: ``centres`` of the corner pixels, 0 and W - 1, as for HPatches; ``edges``, 0 and W,
            as glue-factory has it.

    Returns:
        The error; inf where there is none.
    """
    if predicted_33 is None:
        return float("inf")
    less = 1 if corners == "centres" else 0
    right, bottom = size[1] - less, size[0] - less
    points_42 = torch.tensor(
        [[0, 0], [right, 0], [right, bottom], [0, bottom]], dtype=torch.float64
    )
    moved = [homogeneous(points_42) @ m.cpu().double().T for m in (predicted_33, true_33)]
    first_42, second_42 = (points[:, :2] / points[:, 2:] for points in moved)
    error = float((first_42 - second_42).norm(dim=1).mean())
    return error if np.isfinite(error) else float("inf")


def estimate_homography(
    points0_N2: Tensor, points1_N2: Tensor, options: RobustOptions = HOMOGRAPHY_RANSAC
) -> list[Tensor | None]:
    """Homographies by OpenCV, image 0 -> image 1, one for each repeat.

    Args:
        points0_N2, points1_N2: matches in pixels; the threshold is in those of image 1.
        options: of the estimation.

    Returns:
        R matrices, float64 (3, 3); ``None`` for a failure, or fewer than four matches.
    """
    return [
        _one_homography(*points, options) for points in shuffled(points0_N2, points1_N2, options)
    ]


def _one_homography(
    points0: np.ndarray, points1: np.ndarray, options: RobustOptions
) -> Tensor | None:
    if len(points0) < LEAST_POINTS:
        return None
    method = cv2.USAC_MAGSAC if options.method == "magsac" else cv2.RANSAC
    try:
        found, _ = cv2.findHomography(
            points0,
            points1,
            method,
            options.threshold,
            maxIters=options.iterations,
            confidence=options.confidence,
        )
    except cv2.error:  # points in one place, or on a line
        return None
    if found is None or not np.isfinite(found).all():
        return None
    return torch.from_numpy(found)
