"""A heat map as a picture: the slide beside the slide with its scores, and the truth outlined.

Shape suffixes: H, W pixels; N tiles.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from isoattn.wsi.heatmap.tile_scores import TileScores, score_map

Scale = Literal["auto", "signed", "unsigned", "rank"]
"""signed: colours around 0; unsigned: from least to largest; rank: by order, for scores that a few
tiles dominate; auto: signed where there are negative scores."""

SIGNED, UNSIGNED = "RdBu_r", "viridis"
OPACITY = 0.65
TRUTH = "#00a000"
TAIL = 0.5
"""Per cent of tiles at each end whose colour saturates, lest one tile takes the whole scale."""


def save_heat_map(
    path: Path,
    pixels_HW3: NDArray[np.uint8],
    downsample: float,
    scores: TileScores,
    *,
    scale: Scale = "auto",
    truth_HW: NDArray[np.bool_] | None = None,
    caption: str = "",
    beside: bool = True,
) -> None:
    """Write a PNG with two panels: the slide, and the slide under its scores.

    Args:
        path: of the PNG.
        pixels_HW3: uint8 RGB of the whole slide, such as its thumbnail.
        downsample: level-0 pixels per pixel of it.
        scores: of the tiles.
        scale: of the colours.
        truth_HW: mask of the whole slide at any resolution; outlined in both panels.
        caption: a line below the slide's name.
        beside: the slide too; without, only the panel with the scores.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    height, width = pixels_HW3.shape[:2]
    values, label = _scaled(scores, scale)
    panel = 5.0
    panels = 2 if beside else 1
    across = max(panels * panel * min(1.6, width / height), panel) + 1.2
    figure = Figure((across, panel + 0.8), layout="constrained")
    FigureCanvasAgg(figure)
    *plain, heat = figure.subplots(1, panels, squeeze=False)[0]
    drawn = score_map(values, (height, width), downsample)
    for axes in plain:
        axes.imshow(pixels_HW3)
    heat.imshow(_faded(pixels_HW3))
    image = heat.imshow(drawn, alpha=OPACITY, interpolation="nearest", **_colours(values, scale))
    for axes in (*plain, heat):
        if truth_HW is not None and truth_HW.any():
            _outline(axes, truth_HW, (height, width))
        axes.set_axis_off()
    bar = figure.colorbar(image, ax=heat, fraction=0.046, pad=0.02)
    bar.set_label(label)
    outlined = "  (ground truth in green)" if truth_HW is not None and truth_HW.any() else ""
    title = f"{scores.slide}{outlined}" + (f"\n{caption}" if caption else "")
    figure.suptitle(title, fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _scaled(scores: TileScores, scale: Scale) -> tuple[TileScores, str]:
    """What is drawn, and what the colour bar says it is."""
    if scale != "rank":
        return scores, scores.what
    from scipy.stats import rankdata

    share = (rankdata(scores.values_N) - 0.5) / len(scores.values_N)
    ranked = TileScores(
        scores.slide, scores.coords_N2, share.astype(np.float32), scores.side, scores.what
    )
    return ranked, f"{scores.what}, share of tiles below"


def _colours(scores: TileScores, scale: Scale) -> dict[str, Any]:
    """Colour map and limits."""
    if scale == "rank":
        return {"cmap": UNSIGNED, "vmin": 0.0, "vmax": 1.0}
    if scale == "signed" or (scale == "auto" and scores.signed):
        limit = float(np.percentile(np.abs(scores.values_N), 100 - TAIL)) or 1.0
        return {"cmap": SIGNED, "vmin": -limit, "vmax": limit}
    low, high = np.percentile(scores.values_N, [TAIL, 100 - TAIL])
    return {"cmap": UNSIGNED, "vmin": float(low), "vmax": float(max(high, low + 1e-12))}


def _faded(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Grey and pale, so that the slide's colours are not taken for scores."""
    grey = pixels.mean(-1, keepdims=True)
    return np.asarray(np.repeat(128 + grey / 2, 3, -1), dtype=np.uint8)


def _outline(axes: Any, truth: NDArray[np.bool_], shape: tuple[int, int]) -> None:
    """The border of a mask, drawn in the coordinates of the picture."""
    rows, columns = truth.shape
    y = (np.arange(-1, rows + 1) + 0.5) * shape[0] / rows - 0.5
    x = (np.arange(-1, columns + 1) + 0.5) * shape[1] / columns - 0.5
    # A margin of False closes the outline where the truth reaches the border.
    padded = np.pad(truth, 1).astype(float)
    axes.contour(x, y, padded, levels=[0.5], colors=TRUTH, linewidths=1.4)
    axes.set_xlim(-0.5, shape[1] - 0.5)
    axes.set_ylim(shape[0] - 0.5, -0.5)
