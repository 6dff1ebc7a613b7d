"""Matches drawn on their two images, to a file or an array; needs no display."""

from __future__ import annotations

import textwrap
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from torch import Tensor

from isoattn.matching.matches import Matches

_RIGHT, _WRONG = (0.12, 0.62, 0.31), (0.84, 0.15, 0.16)
_GAP = 8
_DPI = 100
_WIDTH = 1000
"""Pixels that a picture is about as wide as, where its images are smaller."""
_LETTER = 7.5
"""Pixels of a letter of the title."""


def draw_matches(
    image0: Tensor,
    image1: Tensor,
    matches: Matches,
    *,
    correct: Tensor | None = None,
    title: str = "",
    most: int = 500,
) -> Figure:
    """Both images side by side, a line for each match.

    Lines are coloured by confidence, or green and red where it is known which are right.

    Args:
        image0: (H, W), (1, H, W) or (3, H, W) in [0, 1].
        image1: likewise, of any size.
        matches: of this one pair, in pixels of the two images.
        correct: bool (K,), which matches are right.
        title: above the pictures.
        most: the most confident ones are drawn, no more than this many.

    Raises:
        ValueError: matches of several pairs, or an image of another shape.
    """
    if matches.batch_size != 1:
        raise ValueError(
            f"A picture shows one pair, these are matches of {matches.batch_size}: draw each of "
            "matches.split()"
        )
    chosen = matches.confidence.argsort(descending=True, stable=True)[:most].flip(0)
    shown = matches.select(chosen)
    canvas, shift = _side_by_side(_pixels(image0, "image0"), _pixels(image1, "image1"))
    start = shown.keypoints0.detach().cpu().double().numpy()
    end = shown.keypoints1.detach().cpu().double().numpy() + np.array([shift, 0.0])
    if correct is None:
        colours = colormaps["viridis"](shown.confidence.detach().cpu().double().numpy())
    else:
        right = correct[chosen].cpu().numpy()[:, None]
        colours = np.where(right, np.array(_RIGHT), np.array(_WRONG))
    figure = _figure(canvas, title)
    axes = figure.axes[0]
    lines = LineCollection(
        list(np.stack([start, end], 1)), colors=colours, linewidths=0.7, alpha=0.8
    )
    axes.add_collection(lines)
    for points in (start, end):
        axes.scatter(points[:, 0], points[:, 1], s=3, c=colours, linewidths=0)
    return figure


def save_matches(
    path: str | Path,
    image0: Tensor,
    image1: Tensor,
    matches: Matches,
    *,
    correct: Tensor | None = None,
    title: str = "",
    most: int = 500,
) -> Path:
    """As :func:`draw_matches`, to a PNG, PDF or SVG file by the ending of its name."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure = draw_matches(image0, image1, matches, correct=correct, title=title, most=most)
    figure.savefig(path, dpi=_DPI)
    return path


def _pixels(image: Tensor, name: str) -> np.ndarray:
    """Grey (H, W) or colour (H, W, 3), float in [0, 1]."""
    plain = image.detach().cpu().float()
    plain = plain[0] if plain.ndim == 3 and len(plain) == 1 else plain
    if plain.ndim != 2 and not (plain.ndim == 3 and len(plain) == 3):
        raise ValueError(f"{name} must be (H, W), (1, H, W) or (3, H, W), got {tuple(image.shape)}")
    plain = plain.clamp(0.0, 1.0)
    return (plain if plain.ndim == 2 else plain.permute(1, 2, 0)).numpy()


def _side_by_side(left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, int]:
    """A white canvas (H, W, 3) with both, and the column at which the right one begins."""
    height, shift = max(len(left), len(right)), left.shape[1] + _GAP
    canvas = np.ones((height, shift + right.shape[1], 3), dtype=np.float32)
    for image, start in ((left, 0), (right, shift)):
        colour = image if image.ndim == 3 else image[:, :, None]
        canvas[: len(image), start : start + image.shape[1]] = colour
    return canvas, shift


def _figure(canvas: np.ndarray, title: str) -> Figure:
    """Small pictures are enlarged by a whole factor; the title is broken to their width."""
    height, width = canvas.shape[:2]
    zoom = max(1, round(_WIDTH / width))
    lines = textwrap.wrap(title, max(20, int(zoom * width / _LETTER)))
    above = 0.06 + 0.18 * len(lines) if lines else 0.0
    tall, wide = zoom * height / _DPI, zoom * width / _DPI
    figure = Figure(figsize=(wide, tall + above), dpi=_DPI)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.0, 0.0, 1.0, tall / (tall + above)))
    axes.imshow(canvas, interpolation="nearest")
    axes.set_xlim(-0.5, width - 0.5)
    axes.set_ylim(height - 0.5, -0.5)
    axes.set_axis_off()
    if title:
        axes.set_title("\n".join(lines), fontsize=9)
    return figure
