"""A picture that shows what was taken for tissue, what for pen, and which tiles are listed.

Shape suffixes: H, W pixels; N tiles.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from isoattn.wsi.slides.tiling import TileGrid
from isoattn.wsi.slides.tissue import Tissue

Colour = tuple[int, int, int]
TISSUE: Colour = (0, 140, 70)
ARTEFACT: Colour = (255, 170, 0)
TILE: Colour = (20, 20, 20)
DAMAGED: Colour = (220, 0, 0)
SMALLEST_SIDE = 900
"""Small slides are enlarged to this, so that the lines can be told apart."""


def draw_overlay(
    tissue: Tissue, grid: TileGrid | None = None, *, damaged: Iterable[int] = ()
) -> Image.Image:
    """Tissue outlined in green, artefacts in orange, tiles in black, damaged ones crossed in red.

    Args:
        tissue: with the overview it was found on.
        grid: its tiles, if any.
        damaged: positions in the grid of tiles that could not be read.
    """
    height, width = tissue.mask_HW.shape
    zoom = max(1, -(-SMALLEST_SIDE // max(height, width)))
    picture = Image.fromarray(tissue.pixels_HW3).resize(
        (width * zoom, height * zoom), Image.Resampling.BICUBIC
    )
    pixels = np.array(picture)
    for mask, colour in ((tissue.mask_HW, TISSUE), (tissue.artefact_HW, ARTEFACT)):
        large = mask.repeat(zoom, 0).repeat(zoom, 1)
        pixels[large] = (pixels[large] * 0.88 + np.array(colour) * 0.12).astype(np.uint8)
        pixels[_rim(large, max(1, zoom // 3))] = colour
    picture = Image.fromarray(pixels)
    if grid is not None:
        _draw_tiles(picture, grid, zoom / tissue.downsample, set(damaged))
    return picture


def save_overlay(
    path: Path, tissue: Tissue, grid: TileGrid | None = None, *, damaged: Iterable[int] = ()
) -> None:
    """Write :func:`draw_overlay` as PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draw_overlay(tissue, grid, damaged=damaged).save(path, "PNG")


def _rim(mask: NDArray[np.bool_], thickness: int) -> NDArray[np.bool_]:
    """The inner border of a mask, a few pixels thick."""
    inner = mask.copy()
    for _ in range(thickness):
        padded = np.pad(inner, 1, constant_values=True)
        inner = (
            padded[1:-1, 1:-1]
            & padded[:-2, 1:-1]
            & padded[2:, 1:-1]
            & padded[1:-1, :-2]
            & padded[1:-1, 2:]
        )
    return np.asarray(mask & ~inner)


def _draw_tiles(picture: Image.Image, grid: TileGrid, zoom: float, damaged: set[int]) -> None:
    """Outlines inset by a pixel, so that neighbours and overlaps stay apart."""
    draw = ImageDraw.Draw(picture)
    side = grid.side * zoom
    for i, (x, y) in enumerate(grid.coords_N2 * zoom):
        box = (x + 1, y + 1, max(x + 1, x + side - 2), max(y + 1, y + side - 2))
        draw.rectangle(box, outline=DAMAGED if i in damaged else TILE)
        if i in damaged:
            draw.line((box[0], box[1], box[2], box[3]), DAMAGED, 2)
            draw.line((box[0], box[3], box[2], box[1]), DAMAGED, 2)
