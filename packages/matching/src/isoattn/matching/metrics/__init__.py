"""Scores of matches: coarse precision and recall, average precision, MMA, corner and pose AUC."""

from isoattn.matching.metrics.auc import error_auc
from isoattn.matching.metrics.coarse import (
    CoarseCounts,
    accuracy_at,
    average_precision,
    coarse_counts,
    judge,
)
from isoattn.matching.metrics.homography import (
    HOMOGRAPHY_RANSAC,
    corner_error,
    estimate_homography,
)
from isoattn.matching.metrics.pose import (
    POSE_RANSAC,
    epipolar_errors,
    estimate_pose,
    line_distance,
    pose_error,
)
from isoattn.matching.metrics.robust import RobustOptions
from isoattn.matching.metrics.score import STRATUM_EDGES, MatchScore, PairScore, summarise

__all__ = [
    "HOMOGRAPHY_RANSAC",
    "POSE_RANSAC",
    "STRATUM_EDGES",
    "CoarseCounts",
    "MatchScore",
    "PairScore",
    "RobustOptions",
    "accuracy_at",
    "average_precision",
    "coarse_counts",
    "corner_error",
    "epipolar_errors",
    "error_auc",
    "estimate_homography",
    "estimate_pose",
    "judge",
    "line_distance",
    "pose_error",
    "summarise",
]
