"""All that is said of a slide's scores, in one folder: picture, objects for QuPath, ground truth.

Shape suffixes: H, W cells of the mask.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from isoattn.wsi.heatmap.geojson import save_geojson, tiles_to_geojson
from isoattn.wsi.heatmap.picture import Scale, save_heat_map
from isoattn.wsi.heatmap.tile_scores import TileScores
from isoattn.wsi.heatmap.truth import Mask, TruthScores, compare_with_truth
from isoattn.wsi.slides import Slide

PICTURE_SIDE = 1024


def write_heat_map(
    folder: Path,
    slide: Slide,
    scores: TileScores,
    *,
    truth_HW: Mask | None = None,
    threshold: float | None = None,
    scale: Scale = "auto",
) -> TruthScores | None:
    """Write ``NAME.png`` and ``NAME.geojson``; compare with the truth where there is any.

    Args:
        folder: to write to.
        slide: whose tiles they are; needs no mpp.
        scores: of the tiles.
        truth_HW: mask of the whole slide, of any resolution.
        threshold: declared beforehand; for IoU, and for classes in QuPath.
        scale: of the colours.

    Returns:
        the comparison; ``None`` without a mask, or with an empty one.
    """
    thumbnail = slide.thumbnail(PICTURE_SIDE)
    width = slide.dimensions[0]
    found = None
    if truth_HW is not None and truth_HW.any():
        found = compare_with_truth(scores, truth_HW, width / truth_HW.shape[1], threshold=threshold)
    save_heat_map(
        folder / f"{scores.slide}.png",
        np.asarray(thumbnail),
        width / thumbnail.width,
        scores,
        scale=scale,
        truth_HW=truth_HW,
        caption=_caption(found),
    )
    save_geojson(folder / f"{scores.slide}.geojson", tiles_to_geojson(scores, threshold=threshold))
    return found


def _caption(found: TruthScores | None) -> str:
    if found is None:
        return ""
    parts = [] if found.auc is None else [f"AUC over tiles {found.auc:.3f}"]
    if found.iou is not None:
        parts.append(f"IoU {found.iou:.2f} at {found.threshold:.3g}")
    parts.append(f"best IoU {found.best_iou:.2f}")
    return ", ".join(parts)
