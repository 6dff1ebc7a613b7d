"""A slide read through OpenSlide at an exact pixel size.

Three habits of OpenSlide are dealt with here:

* a handle cannot be pickled, so each process opens its own on first use;
* an error sticks to the handle and spoils every later read, so the handle is dropped and the next
  read opens the file again (TRIDENT issue 92: one bad tile, 37 failed reads);
* what was not scanned, or lies outside, is transparent and turns black when alpha is dropped
  (openslide issue 443), so it is laid on white and its share is reported.

Shape suffixes: H, W pixels.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import openslide
from numpy.typing import NDArray
from PIL import Image

from isoattn.wsi.slides.errors import DamagedRegion, UnreadableSlide
from isoattn.wsi.slides.resolution import ReadPlan, Resolution, plan_read, resolve_mpp

FILTER = Image.Resampling.BICUBIC
"""Reduces with antialiasing. Part of what a feature file's configuration hash covers."""


class Region(NamedTuple):
    """Pixels of a slide.

    Args:
        pixels_HW3: uint8 RGB on white.
        coverage: share of the area that was scanned, 0 to 1.
    """

    pixels_HW3: NDArray[np.uint8]
    coverage: float


@dataclass(frozen=True)
class SlideFacts:
    """What the file says of itself.

    Args:
        vendor: OpenSlide's name of the format, such as ``aperio``.
        dimensions: width and height of level 0.
        downsamples: level-0 pixels per pixel, of each level.
        properties: OpenSlide's.
    """

    vendor: str
    dimensions: tuple[int, int]
    downsamples: tuple[float, ...]
    properties: dict[str, str]


class Slide:
    """A slide of any format that OpenSlide knows: SVS, TIFF, DICOM, NDPI, MRXS and others.

    Cheap to make and to pickle: nothing is opened before it is needed.

    Args:
        path: the file; any file of a DICOM series stands for the series.
        mpp_override: micrometres per pixel of level 0, where the metadata lack it or are wrong.

    Example:
        >>> slide = Slide("tumor_001.tif")
        >>> slide.read(12000, 8000, 256, mpp=0.5).pixels_HW3.shape
        (256, 256, 3)
    """

    def __init__(self, path: str | Path, *, mpp_override: float | None = None) -> None:
        self.path = Path(path)
        self.mpp_override = mpp_override
        self._handle: openslide.OpenSlide | None = None
        self._owner = 0

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_handle": None, "_owner": 0}

    def __repr__(self) -> str:
        return f"Slide({str(self.path)!r})"

    def __enter__(self) -> Slide:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        """Under which its features are stored; see :func:`slide_name`."""
        return slide_name(self.path)

    @property
    def handle(self) -> openslide.OpenSlide:
        """The handle of this process, opened on first use.

        Raises:
            UnreadableSlide: see :func:`open_slide`.
        """
        if self._handle is None or self._owner != os.getpid():
            # A handle inherited through fork belongs to the parent and is left alone.
            self._handle, self._owner = open_slide(self.path), os.getpid()
        return self._handle

    def close(self) -> None:
        """Drop the handle; the next read opens the file again."""
        if self._handle is not None and self._owner == os.getpid():
            self._handle.close()
        self._handle = None

    @cached_property
    def facts(self) -> SlideFacts:
        """Size, levels and properties."""
        handle = self.handle
        properties = dict(handle.properties)
        return SlideFacts(
            vendor=properties.get("openslide.vendor", "unknown"),
            dimensions=handle.dimensions,
            downsamples=tuple(float(d) for d in handle.level_downsamples),
            properties=properties,
        )

    @cached_property
    def resolution(self) -> Resolution:
        """Micrometres per pixel of level 0, and where the value comes from.

        Raises:
            MissingMpp, ImplausibleMpp: see :func:`isoattn.wsi.slides.resolution.resolve_mpp`.
        """
        return resolve_mpp(str(self.path), self.facts.properties, self.mpp_override)

    @property
    def mpp(self) -> float:
        """Micrometres per pixel of level 0."""
        return self.resolution.mpp

    @property
    def dimensions(self) -> tuple[int, int]:
        """Width and height of level 0."""
        return self.facts.dimensions

    def plan(self, scale: float) -> ReadPlan:
        """Which level is read for pixels of ``scale`` level-0 pixels."""
        return plan_read(str(self.path), self.facts.downsamples, scale)

    def read(self, x: int, y: int, size: int | tuple[int, int], mpp: float) -> Region:
        """Read a region at an exact pixel size, from the next finer level, resampled.

        Pixels beyond the region are not looked at, so that the neighbour of a damaged tile is fine.

        Args:
            x, y: top left corner in level-0 pixels; may lie outside.
            size: pixels of the result, one side or width and height.
            mpp: micrometres per pixel of the result.

        Raises:
            DamagedRegion: it cannot be decoded. The next read starts with a fresh handle.
            TooFine: level 0 is much coarser than ``mpp``.
        """
        return self.read_scaled(x, y, size, mpp / self.mpp)

    def read_scaled(self, x: int, y: int, size: int | tuple[int, int], scale: float) -> Region:
        """As :meth:`read`, for pixels of ``scale`` level-0 pixels; needs no mpp."""
        width, height = (size, size) if isinstance(size, int) else size
        plan = self.plan(scale)
        left, top = x / plan.downsample, y / plan.downsample
        if not plan.resamples(max(width, height)):
            image, coverage = self._composite(plan, round(left), round(top), width, height)
            return Region(np.asarray(image), coverage)
        column, row = math.floor(left), math.floor(top)
        box = (
            left - column,
            top - row,
            left - column + width * plan.ratio,
            top - row + height * plan.ratio,
        )
        image, coverage = self._composite(
            plan, column, row, max(1, math.ceil(box[2])), max(1, math.ceil(box[3]))
        )
        box = (box[0], box[1], min(box[2], image.width), min(box[3], image.height))
        return Region(np.asarray(image.resize((width, height), FILTER, box=box)), coverage)

    def thumbnail(self, max_side: int = 1024) -> Image.Image:
        """The whole slide on white, its longer side ``max_side`` pixels; needs no mpp."""
        from isoattn.wsi.slides.overview import read_overview

        scale = max(1.0, max(self.dimensions) / max_side)
        return Image.fromarray(read_overview(self, scale).pixels_HW3)

    def _composite(
        self, plan: ReadPlan, column: int, row: int, width: int, height: int
    ) -> tuple[Image.Image, float]:
        """RGB on white and the scanned share; columns and rows are those of the level."""
        origin = (round(column * plan.downsample), round(row * plan.downsample))
        try:
            layer = self.handle.read_region(origin, plan.level, (width, height))
        except openslide.OpenSlideError as error:
            self.close()
            raise DamagedRegion(
                f"The slide {self.path} cannot be decoded at {origin} on level {plan.level}, "
                f"{width} x {height} px: {error}"
            ) from error
        alpha = layer.getchannel("A")
        if alpha.getextrema()[0] == 255:
            return layer.convert("RGB"), 1.0
        white = Image.new("RGBA", layer.size, (255, 255, 255, 255))
        coverage = float(np.asarray(alpha, dtype=np.float64).mean()) / 255
        return Image.alpha_composite(white, layer).convert("RGB"), coverage


def slide_name(path: Path) -> str:
    """The file's name without its suffix; for DICOM, which has several files, the folder's."""
    return path.parent.name if path.suffix.lower() == ".dcm" else path.stem


def open_slide(path: Path) -> openslide.OpenSlide:
    """An OpenSlide handle.

    Raises:
        UnreadableSlide: missing, a folder, empty, not recognised (a file that was cut short is
            mostly not), or refused by OpenSlide.
    """
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise UnreadableSlide(f"The slide {path} {what}.")
    if path.stat().st_size == 0:
        raise UnreadableSlide(f"The slide {path} is empty (0 bytes). Copy it again.")
    try:
        return openslide.OpenSlide(str(path))
    except openslide.OpenSlideUnsupportedFormatError as error:
        raise UnreadableSlide(
            f"OpenSlide {openslide.__library_version__} does not recognise {path} "
            f"({path.stat().st_size:,} bytes): it is no slide, a format that OpenSlide lacks, or "
            "was cut short. Compare its size with the original."
        ) from error
    except openslide.OpenSlideError as error:
        raise UnreadableSlide(
            f"The slide {path} cannot be opened: {error}. Copy it again, with all its files."
        ) from error
