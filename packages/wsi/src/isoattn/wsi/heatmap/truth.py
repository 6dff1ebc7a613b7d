"""Scores of tiles against a mask of what should be found.

Shape suffixes: N tiles; H, W cells of the mask.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isoattn.wsi.heatmap.tile_scores import TileScores, score_map
from isoattn.wsi.slides.tissue import area_share

Mask = NDArray[np.bool_]
MIN_SHARE = 0.5
"""Share of a tile that must be true for the tile to count as true."""


@dataclass(frozen=True)
class TruthScores:
    """How well scores find a mask.

    Args:
        auc: over tiles, true where :data:`MIN_SHARE` is; ``None``: all tiles are alike.
        iou: of the area where the map is at ``threshold`` or above; ``None``: none was declared.
        threshold: the declared one.
        best_iou: largest over all thresholds. It is chosen with the truth at hand, so it is an
            upper bound and no result of a detector.
        best_threshold: where that is.
        true_tiles, tiles: numbers.
    """

    auc: float | None
    iou: float | None
    threshold: float | None
    best_iou: float
    best_threshold: float
    true_tiles: int
    tiles: int


def compare_with_truth(
    scores: TileScores, mask_HW: Mask, downsample: float, *, threshold: float | None = None
) -> TruthScores:
    """AUC over tiles and IoU over area.

    Args:
        scores: of the tiles; larger is more suspicious.
        mask_HW: the truth, of the whole slide; what no tile covers counts as not found.
        downsample: level-0 pixels per pixel of the mask.
        threshold: declared beforehand, for ``iou``.

    Raises:
        ValueError: a mask without a single true pixel: there is nothing to find.
    """
    if not mask_HW.any():
        raise ValueError(
            f"The mask of {scores.slide} is empty, so there is nothing to find; compare positive "
            "slides only"
        )
    share = area_share(mask_HW, downsample, scores.coords_N2, scores.side)
    true = share >= MIN_SHARE
    found = score_map(scores, mask_HW.shape, downsample)
    best, where = _best_iou(found, mask_HW)
    return TruthScores(
        auc=_auc(true, scores.values_N),
        iou=None if threshold is None else iou(found >= threshold, mask_HW),
        threshold=threshold,
        best_iou=best,
        best_threshold=where,
        true_tiles=int(true.sum()),
        tiles=len(true),
    )


def iou(found_HW: Mask, true_HW: Mask) -> float:
    """Intersection over union; 0 where both are empty."""
    union = int((found_HW | true_HW).sum())
    return float((found_HW & true_HW).sum() / union) if union else 0.0


def _auc(true: Mask, values: NDArray[np.float32]) -> float | None:
    from sklearn.metrics import roc_auc_score

    if true.all() or not true.any():
        return None
    return float(roc_auc_score(true, values))


def _best_iou(found: NDArray[np.float32], true: Mask) -> tuple[float, float]:
    """Largest IoU over all thresholds, and the threshold: one pass over the sorted map."""
    covered = ~np.isnan(found)
    values, hits = found[covered], true[covered]
    order = np.argsort(-values, kind="stable")
    values, inside = values[order], hits[order].cumsum()
    union = np.arange(1, len(values) + 1) + int(true.sum()) - inside
    # Equal values pass a threshold together, so only the last of each run counts.
    last = np.append(values[1:] != values[:-1], True)
    ratio = np.where(last, inside / union, -1.0)
    best = int(ratio.argmax())
    return float(ratio[best]), float(values[best])
