"""Which cells of a pair belong together, from a homography, depth and poses, maps or matches."""

from isoattn.matching.supervision.cells import Supervision
from isoattn.matching.supervision.depth import gt_from_depth
from isoattn.matching.supervision.given import gt_from_matches
from isoattn.matching.supervision.homography import gt_from_homography
from isoattn.matching.supervision.maps import gt_from_maps
from isoattn.matching.supervision.of_batch import supervise

__all__ = [
    "Supervision",
    "gt_from_depth",
    "gt_from_homography",
    "gt_from_maps",
    "gt_from_matches",
    "supervise",
]
