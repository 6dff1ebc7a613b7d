"""A map of cells painted as a slide.

Shape suffixes: H, W pixels (or cells, where it says so).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from isoattn.wsi.synthetic.layout import CELL, GLASS, MIMIC, TUMOUR, Cells
from isoattn.wsi.synthetic.stain import Floats, Stain
from isoattn.wsi.synthetic.texture import Half, load_swatches, weave


def paint(
    cells_HW: Cells, half: Half, stain: Stain, contrast: float, rng: np.random.Generator
) -> NDArray[np.uint8]:
    """The picture of a slide at level 0.

    Args:
        cells_HW: see :mod:`isoattn.wsi.synthetic.layout`.
        half: of the source picture, from which the texture comes.
        stain: of the slide.
        contrast: 1: tumour looks as it does; 0: like the mimic, so that nothing tells them apart.
        rng: draws the texture.

    Returns:
        uint8 RGB, :data:`CELL` pixels a cell.
    """
    swatches = load_swatches(half)
    height, width = (side * CELL for side in cells_HW.shape)
    stains = weave(swatches["normal"], height, width, rng)
    for kind in (TUMOUR, MIMIC):
        box = _box(cells_HW == kind)
        if box is None:
            continue
        rows, columns = (slice(part.start * CELL, part.stop * CELL) for part in box)
        shape = (rows.stop - rows.start, columns.stop - columns.start)
        patch = weave(swatches["mimic"], *shape, rng)
        if kind == TUMOUR:
            patch += contrast * (weave(swatches["tumour"], *shape, rng) - patch)
        share = _soft(cells_HW[box] == kind)[..., None]
        stains[rows, columns] += share * (patch - stains[rows, columns])
    return stain.colour(stains, _soft(cells_HW != GLASS))


def _box(mask: NDArray[np.bool_]) -> tuple[slice, slice] | None:
    """The smallest rectangle of cells around a mask, and one cell more for the soft edge."""
    if not mask.any():
        return None
    found = []
    for axis in (1, 0):
        used = np.flatnonzero(mask.any(axis))
        found.append(slice(max(0, used[0] - 1), min(mask.any(axis).size, used[-1] + 2)))
    return found[0], found[1]


def _soft(mask: NDArray[np.bool_]) -> Floats:
    """Share of each pixel, 0 to 1, with an edge about a cell wide."""
    image = Image.fromarray(mask.astype(np.uint8) * 255)
    size = (mask.shape[1] * CELL, mask.shape[0] * CELL)
    return np.asarray(image.resize(size, Image.Resampling.BILINEAR), dtype=np.float32) / np.float32(
        255
    )
