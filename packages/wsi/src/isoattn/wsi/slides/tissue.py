"""Where the tissue is: Otsu's threshold on saturation with a floor, without pen and dark debris.

The rule is simple and says so. It needs no model, runs on the CPU in well under a second a slide,
and is right on ordinary H&E and IHC slides. It does not know folds, blur, air bubbles or red pen,
whose hue is that of eosin.

Shape suffixes: H, W pixels of the overview; N tiles.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from isoattn.wsi.slides.overview import read_overview
from isoattn.wsi.slides.reader import Slide

Mask = NDArray[np.bool_]

PEN_HUES = (0.22, 0.62)
"""Hues of green, cyan and blue markers; haematoxylin begins at about 0.65, DAB ends at 0.15."""


@dataclass(frozen=True)
class TissueOptions:
    """How tissue is told from glass.

    Args:
        mpp: micrometres per pixel of the overview that is looked at.
        floor: least saturation of tissue, 0 to 1; without it Otsu splits the noise of an empty
            slide. 15/255 is the filter of the TransMIL paper.
        ceiling: largest threshold that Otsu may choose; without it Otsu splits pale from dark
            tissue where a slide shows little glass.
        pen_saturation: saturation from which the hues of markers are pen; 1 turns the rule off.
        dark: brightness (HSV value) below which a pixel is debris, black pen or a black border; 0
            turns the rule off.
        min_object: smaller pieces of tissue are dropped, in square micrometres.
        max_hole: smaller holes are filled, in square micrometres.
    """

    mpp: float = 8.0
    floor: float = 15 / 255
    ceiling: float = 0.15
    pen_saturation: float = 0.35
    dark: float = 0.2
    min_object: float = 2500.0
    max_hole: float = 10000.0

    def __post_init__(self) -> None:
        shares = (self.floor, self.ceiling, self.pen_saturation, self.dark)
        if not all(0 <= share <= 1 for share in shares) or self.floor > self.ceiling:
            raise ValueError(
                "floor, ceiling, pen_saturation and dark lie in 0..1, floor below ceiling; got "
                f"floor={self.floor}, ceiling={self.ceiling}, "
                f"pen_saturation={self.pen_saturation}, dark={self.dark}"
            )
        if self.mpp <= 0 or self.min_object < 0 or self.max_hole < 0:
            raise ValueError(
                "mpp is positive, min_object and max_hole are 0 or more; got "
                f"mpp={self.mpp}, min_object={self.min_object}, max_hole={self.max_hole}"
            )


@dataclass(frozen=True)
class Tissue:
    """Tissue of a slide.

    Args:
        mask_HW: True on tissue.
        artefact_HW: True on what the pen and dark rules took away.
        pixels_HW3: the overview that was looked at.
        downsample: level-0 pixels per pixel of the mask.
        threshold: saturation from which a pixel counts.
        damaged: share of the overview that could not be decoded.
    """

    mask_HW: Mask
    artefact_HW: Mask
    pixels_HW3: NDArray[np.uint8]
    downsample: float
    threshold: float
    damaged: float

    @property
    def share(self) -> float:
        """Share of the slide that is tissue."""
        return float(self.mask_HW.mean())

    @property
    def artefacts(self) -> float:
        """Share of the slide that was taken for pen or debris."""
        return float(self.artefact_HW.mean())


def find_tissue(slide: Slide, options: TissueOptions = TissueOptions()) -> Tissue:  # noqa: B008 - frozen
    """The tissue of a slide, on an overview at ``options.mpp``.

    Raises:
        SlideError: the slide cannot be opened or has no mpp.
    """
    downsample = max(1.0, options.mpp / slide.mpp)
    overview = read_overview(slide, downsample)
    mask, artefact, threshold = segment(
        overview.pixels_HW3, options, pixel_area=(downsample * slide.mpp) ** 2
    )
    return Tissue(mask, artefact, overview.pixels_HW3, downsample, threshold, overview.damaged)


def segment(
    pixels_HW3: NDArray[np.uint8], options: TissueOptions, *, pixel_area: float
) -> tuple[Mask, Mask, float]:
    """Tissue and artefacts of a picture, and the saturation threshold.

    Args:
        pixels_HW3: uint8 RGB, glass is white or grey.
        options: see there.
        pixel_area: of one pixel, in square micrometres.
    """
    hue, saturation, value = _hsv(pixels_HW3)
    artefact = _artefacts(hue, saturation, value, options)
    smooth = ndimage.median_filter(saturation, size=3)
    threshold = _threshold(smooth[~artefact], options)
    tissue = (smooth > threshold) & ~artefact
    tissue = _drop_small(tissue, options.min_object / pixel_area)
    tissue = ~_drop_small(~tissue, options.max_hole / pixel_area) & ~artefact
    return tissue, artefact, threshold


def _hsv(
    pixels: NDArray[np.uint8],
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Hue, saturation and value, 0 to 1."""
    planes = np.asarray(Image.fromarray(pixels).convert("HSV"), dtype=np.float32) / np.float32(255)
    hue, saturation, value = np.moveaxis(planes, -1, 0)
    return hue, saturation, value


def _artefacts(
    hue: NDArray[np.float32],
    saturation: NDArray[np.float32],
    value: NDArray[np.float32],
    options: TissueOptions,
) -> Mask:
    low, high = PEN_HUES
    pen = (hue > low) & (hue < high) & (saturation > options.pen_saturation)
    found = pen | (value < options.dark)
    # Single pixels are noise of stain and JPEG; strokes have a soft rim that the grown mask covers.
    found = _drop_small(found, 4)
    return np.asarray(ndimage.binary_dilation(found, iterations=2), dtype=np.bool_)


def _threshold(saturation: NDArray[np.float32], options: TissueOptions) -> float:
    if saturation.size == 0 or saturation.min() == saturation.max():
        return options.floor
    from skimage.filters import threshold_otsu

    found = float(threshold_otsu(saturation))  # type: ignore[no-untyped-call]
    return min(max(found, options.floor), options.ceiling)


def _drop_small(mask: Mask, pixels: float) -> Mask:
    """Without the 8-connected pieces of fewer pixels."""
    pieces, _ = ndimage.label(mask, structure=np.ones((3, 3)))
    large = np.bincount(pieces.ravel()) >= pixels
    large[0] = False
    return np.asarray(large[pieces], dtype=np.bool_)


def area_share(
    mask_HW: NDArray[np.bool_ | np.float32],
    downsample: float,
    coords_N2: NDArray[np.int64],
    side: float,
) -> NDArray[np.float32]:
    """Share of each square that the mask covers; exact, what lies outside the mask counts as False.

    Args:
        mask_HW: the mask, or shares.
        downsample: level-0 pixels per pixel of the mask.
        coords_N2: top left corners (x, y), level-0 pixels.
        side: of the squares, level-0 pixels.

    Returns:
        (N,) float32 in 0..1.
    """
    height, width = mask_HW.shape
    table = np.zeros((height + 1, width + 1))
    table[1:, 1:] = mask_HW.cumsum(0, dtype=np.float64).cumsum(1)
    corners = np.asarray(coords_N2, dtype=np.float64)
    left, top = (corners / downsample).T
    right, bottom = ((corners + side) / downsample).T
    total = _interpolate(table, bottom, right) + _interpolate(table, top, left)
    total = total - _interpolate(table, top, right) - _interpolate(table, bottom, left)
    return np.clip(total * (downsample / side) ** 2, 0, 1).astype(np.float32)


def _interpolate(
    table: NDArray[np.float64], rows: NDArray[np.float64], columns: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Bilinear in a summed-area table, which is exact inside a pixel; constant beyond the edge."""
    rows = np.clip(rows, 0, table.shape[0] - 1)
    columns = np.clip(columns, 0, table.shape[1] - 1)
    top = np.minimum(rows.astype(np.int64), table.shape[0] - 2)
    left = np.minimum(columns.astype(np.int64), table.shape[1] - 2)
    down, right = rows - top, columns - left
    return np.asarray(
        table[top, left] * (1 - down) * (1 - right)
        + table[top + 1, left] * down * (1 - right)
        + table[top, left + 1] * (1 - down) * right
        + table[top + 1, left + 1] * down * right
    )
