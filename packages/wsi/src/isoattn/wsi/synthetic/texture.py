"""Tissue texture from a real picture: gland and stroma of a colon, recoloured as H&E.

The picture is ``skimage.data.immunohistochemistry()``: haematoxylin and DAB. It is unmixed into
stain concentrations (Ruifrok and Johnston, 2001); glands, which are brown, become *tumour*, the
stroma between them *normal* tissue. A third texture is the *mimic*: stroma whose stains are raised
until their means are those of tumour, as in an inflammation, so that colour alone does not tell it.

Training slides take their texture from the left half of the picture, test slides from the right.

Shape suffixes: H, W pixels; K swatches, S side of a swatch, 2 stains (haematoxylin, eosin).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

Floats = NDArray[np.float32]
Half = Literal["left", "right"]
Tissue = Literal["normal", "tumour", "mimic"]

SIDE = 40
"""Side of a swatch in pixels: about two nuclei."""

STEP = SIDE // 2
PURITY = 0.95
"""Least share of a swatch that is of its tissue."""

SWATCHES = 96
"""Swatches a tissue, before the eight rotations and mirrorings."""


@dataclass(frozen=True)
class Swatches:
    """Small squares of one tissue.

    Args:
        stains_KSS2: concentrations, natural optical density of the unit stain.
        mean_2: over all of them.
    """

    stains_KSS2: Floats
    mean_2: Floats


@lru_cache(maxsize=2)
def load_swatches(half: Half) -> dict[Tissue, Swatches]:
    """The swatches of one half of the picture."""
    stains, gland, stroma = _recoloured()
    middle = stains.shape[1] // 2
    part = slice(0, middle) if half == "left" else slice(middle, None)
    normal = _cut(stains[:, part], stroma[:, part])
    tumour = _cut(stains[:, part], gland[:, part])
    return {"normal": normal, "tumour": tumour, "mimic": _like(normal, tumour)}


def _recoloured() -> tuple[Floats, NDArray[np.bool_], NDArray[np.bool_]]:
    """Concentrations (H, W, 2) in H&E, and where gland and stroma are."""
    from skimage.color import hed_from_rgb
    from skimage.data import immunohistochemistry

    picture = immunohistochemistry().astype(np.float32)  # type: ignore[no-untyped-call]
    density = -np.log10((picture + 1) / 256)
    haematoxylin, _, dab = np.moveaxis(density @ hed_from_rgb.astype(np.float32), -1, 0)
    brown = ndimage.gaussian_filter(dab, 6)
    dense = ndimage.gaussian_filter(density.sum(-1), 8)
    gland = brown > 0.28
    stroma = (brown < 0.14) & (dense > 0.18)
    nuclei = np.clip(haematoxylin, 0, None)
    # Cytoplasm of glands is where DAB is; fibres of the stroma show in the grey density alone.
    stains = np.where(
        gland[..., None],
        np.stack([2.2 * nuclei + 0.28 * dab, 0.15 + 0.55 * dab], -1),
        np.stack([2.0 * nuclei, 0.12 + 0.75 * density.mean(-1)], -1),
    )
    return np.clip(stains, 0, 2.5).astype(np.float32), gland, stroma


def _cut(stains: Floats, mask: NDArray[np.bool_]) -> Swatches:
    """Squares that lie in the mask, spread evenly, in all eight orientations."""
    share = ndimage.uniform_filter(mask.astype(np.float32), SIDE, origin=0)
    reach = SIDE // 2
    rows, columns = np.nonzero(share[reach:-reach, reach:-reach] >= PURITY)
    chosen = np.linspace(0, len(rows) - 1, SWATCHES).astype(int)
    squares = np.stack(
        [
            stains[r : r + SIDE, c : c + SIDE]
            for r, c in zip(rows[chosen], columns[chosen], strict=True)
        ]
    )
    turned = [np.rot90(squares, k, (1, 2)) for k in range(4)]
    turned += [square[:, :, ::-1] for square in turned]
    all_ = np.ascontiguousarray(np.concatenate(turned))
    return Swatches(all_, all_.mean((0, 1, 2)))


def _like(source: Swatches, target: Swatches) -> Swatches:
    """The source's pattern with the target's mean of each stain."""
    nuclei, cytoplasm = np.moveaxis(source.stains_KSS2, -1, 0)
    gain = target.mean_2[0] / source.mean_2[0]
    shift = target.mean_2[1] - source.mean_2[1]
    stains = np.stack([nuclei * gain, np.clip(cytoplasm + shift, 0, None)], -1)
    return Swatches(stains, stains.mean((0, 1, 2)))


def weave(swatches: Swatches, height: int, width: int, rng: np.random.Generator) -> Floats:
    """A texture of any size: swatches at random, overlapping by half.

    The overlaps are weighted so that their squares sum to 1, which keeps the contrast that plain
    blending loses.

    Args:
        swatches: of one tissue.
        height, width: in pixels.
        rng: draws the swatches.

    Returns:
        concentrations (height, width, 2).
    """
    total = np.zeros((height, width, 2), dtype=np.float32)
    weight = _weight()[..., None]
    centred = (swatches.stains_KSS2 - swatches.mean_2) * weight
    rows, columns = height // SIDE + 2, width // SIDE + 2
    for down in (0, STEP):
        for right in (0, STEP):
            # One layer of squares that touch; four of them, shifted by half, make the overlap.
            chosen = rng.integers(len(centred), size=(rows, columns))
            layer = centred[chosen].swapaxes(1, 2).reshape(rows * SIDE, columns * SIDE, 2)
            total += layer[down : down + height, right : right + width]
    total += swatches.mean_2
    return np.maximum(total, 0, out=total)


def _weight() -> Floats:
    """(S, S): a power-complementary window, so the squares of the four that overlap sum to 1."""
    # The outer sine makes the slopes steep, so that most of a swatch shows through unmixed.
    line = np.sin(np.pi / 2 * np.sin(np.pi * (np.arange(SIDE) + 0.5) / SIDE) ** 2)
    window = np.outer(line, line)
    return window.astype(np.float32)
