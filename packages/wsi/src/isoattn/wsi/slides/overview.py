"""The whole slide at a low resolution, read in blocks so that a slide of one level fits in memory.

Shape suffixes: H, W pixels of the overview.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from isoattn.wsi.slides.errors import DamagedRegion

if TYPE_CHECKING:
    from isoattn.wsi.slides.reader import Slide

BLOCK = 4096
"""Longest side of what is read at once, in pixels of the level: 64 MiB of RGBA."""

SMALLEST = 256
"""A block that cannot be decoded is quartered down to this side, then given up as white."""


@dataclass(frozen=True)
class Overview:
    """A slide, reduced.

    Args:
        pixels_HW3: uint8 RGB on white.
        downsample: level-0 pixels per pixel.
        damaged_HW: what could not be decoded, and is white.
    """

    pixels_HW3: NDArray[np.uint8]
    downsample: float
    damaged_HW: NDArray[np.bool_]

    @property
    def damaged(self) -> float:
        """Share of the area that could not be decoded."""
        return float(self.damaged_HW.mean())


def read_overview(slide: Slide, downsample: float) -> Overview:
    """Read the whole slide at ``downsample`` level-0 pixels per pixel; the last may be partial.

    Raises:
        TooFine: ``downsample`` below 1.
    """
    width, height = (max(1, math.ceil(side / downsample)) for side in slide.dimensions)
    pixels = np.full((height, width, 3), 255, dtype=np.uint8)
    damaged = np.zeros((height, width), dtype=np.bool_)
    ratio = slide.plan(downsample).ratio
    side, smallest = (max(1, int(limit / ratio)) for limit in (BLOCK, SMALLEST))
    for block in _blocks(0, 0, width, height, side):
        _fill(slide, downsample, block, smallest, pixels, damaged)
    return Overview(pixels, downsample, damaged)


Block = tuple[int, int, int, int]


def _blocks(left: int, top: int, right: int, bottom: int, side: int) -> Iterator[Block]:
    for y in range(top, bottom, side):
        for x in range(left, right, side):
            yield x, y, min(x + side, right), min(y + side, bottom)


def _fill(
    slide: Slide,
    downsample: float,
    block: Block,
    smallest: int,
    pixels: NDArray[np.uint8],
    damaged: NDArray[np.bool_],
) -> None:
    """Read a block into the picture, in quarters where it cannot be decoded as a whole."""
    left, top, right, bottom = block
    try:
        region = slide.read_scaled(
            round(left * downsample),
            round(top * downsample),
            (right - left, bottom - top),
            downsample,
        )
    except DamagedRegion:
        side = max(right - left, bottom - top)
        if side <= smallest:
            damaged[top:bottom, left:right] = True
            return
        for quarter in _blocks(left, top, right, bottom, -(-side // 2)):
            _fill(slide, downsample, quarter, smallest, pixels, damaged)
        return
    pixels[top:bottom, left:right] = region.pixels_HW3
