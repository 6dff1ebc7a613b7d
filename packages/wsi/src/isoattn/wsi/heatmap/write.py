"""All that is said of a slide's scores, in one folder: picture, objects for QuPath, ground truth.

Shape suffixes: H, W cells of the mask.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from isoattn.wsi.heatmap.geojson import save_geojson, tiles_to_geojson
from isoattn.wsi.heatmap.picture import Scale, save_heat_map
from isoattn.wsi.heatmap.tile_scores import TileScores
from isoattn.wsi.heatmap.truth import Mask, TruthScores, compare_with_truth
from isoattn.wsi.slides import Slide

PICTURE_SIDE = 1024


def write_heat_map(
    folder: Path,
    slide: Slide | None,
    scores: TileScores,
    *,
    truth_HW: Mask | None = None,
    threshold: float | None = None,
    scale: Scale = "auto",
    extent: tuple[int, int] | None = None,
    heading: str = "",
) -> TruthScores | None:
    """Write ``NAME.png`` and ``NAME.geojson``; compare with the truth where there is any.

    Args:
        folder: to write to.
        slide: whose tiles they are; needs no mpp. ``None``: the scores alone, on white.
        scores: of the tiles.
        truth_HW: mask of the whole slide, of any resolution.
        threshold: declared beforehand; for IoU, and for classes in QuPath.
        scale: of the colours.
        extent: width and height in level-0 pixels where there is no slide; ``None``: up to the last
            tile.
        heading: said in the picture before the comparison.

    Returns:
        the comparison; ``None`` without a mask, or with an empty one.

    Raises:
        SlideError: the slide cannot be read.
    """
    size = slide.dimensions if slide is not None else extent or _extent(scores)
    found = None
    if truth_HW is not None and truth_HW.any():
        downsample = size[0] / truth_HW.shape[1]
        found = compare_with_truth(scores, truth_HW, downsample, threshold=threshold)
    pixels = _white(size) if slide is None else np.asarray(slide.thumbnail(PICTURE_SIDE))
    save_heat_map(
        folder / f"{scores.slide}.png",
        pixels,
        size[0] / pixels.shape[1],
        scores,
        scale=scale,
        truth_HW=truth_HW,
        caption=", ".join(part for part in (heading, _caption(found)) if part),
        beside=slide is not None,
    )
    objects = tiles_to_geojson(scores, threshold=threshold, origin=_origin(slide))
    save_geojson(folder / f"{scores.slide}.geojson", objects)
    return found


def _extent(scores: TileScores) -> tuple[int, int]:
    width, height = np.ceil(scores.coords_N2.max(0) + scores.side).astype(int).tolist()
    return width, height


def _white(size: tuple[int, int]) -> NDArray[np.uint8]:
    """An empty ground of the slide's shape."""
    zoom = PICTURE_SIDE / max(size)
    width, height = (max(1, round(side * zoom)) for side in size)
    return np.full((height, width, 3), 255, dtype=np.uint8)


def _origin(slide: Slide | None) -> tuple[int, int]:
    """The level-0 pixel from which QuPath counts: the corner of the scanned box, if any."""
    properties = {} if slide is None else slide.facts.properties
    x, y = (int(properties.get(f"openslide.bounds-{axis}", 0)) for axis in "xy")
    return x, y


def _caption(found: TruthScores | None) -> str:
    if found is None:
        return ""
    parts = [] if found.auc is None else [f"AUC over tiles {found.auc:.3f}"]
    if found.iou is not None:
        parts.append(f"IoU {found.iou:.2f} at {found.threshold:.3g}")
    parts.append(f"best IoU {found.best_iou:.2f}")
    return ", ".join(parts)
