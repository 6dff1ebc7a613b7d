"""How large a pixel is, and which level of the pyramid is read for a wanted pixel size.

Resolution is always micrometres per pixel (mpp), never magnification: "20x" is 0.5 on one scanner
and 0.46 on another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from isoattn.wsi.slides.errors import ImplausibleMpp, MissingMpp, TooFine

MPP_RANGE = (0.05, 20.0)
"""Plausible mpp: oil immersion at 100x has about 0.1, an overview scan of a slide about 10."""

MAX_ANISOTROPY = 0.02
"""Largest relative difference of the pixel's width and height that counts as square."""

LEVEL_TOLERANCE = 0.01
"""A level this much coarser than wanted still counts as fine enough: scanners round the sizes of
their levels, so the downsample of "4" is often 4.0002."""

MAX_UPSAMPLING = 1.1
"""Level 0 may be enlarged by this factor: a slide of 0.504 mpp can be read at 0.5."""

_X, _Y = "openslide.mpp-x", "openslide.mpp-y"
_POWER = "openslide.objective-power"


@dataclass(frozen=True)
class Resolution:
    """Micrometres per pixel of level 0, and who says so."""

    mpp: float
    source: Literal["metadata", "override"]


def resolve_mpp(
    name: str, properties: Mapping[str, str], override: float | None = None
) -> Resolution:
    """The pixel size of a slide; an override beats the metadata.

    Args:
        name: of the slide, for messages.
        properties: of OpenSlide.
        override: the caller's mpp.

    Raises:
        MissingMpp: neither metadata nor override.
        ImplausibleMpp: outside :data:`MPP_RANGE`, or pixels that are not square.
    """
    if override is not None:
        return Resolution(_plausible(name, override, "the override"), "override")
    if _X not in properties or _Y not in properties:
        hint = _power_hint(properties)
        raise MissingMpp(
            f"The slide {name} does not say how large its pixels are (no {_X}).{hint} Give the "
            "micrometres per pixel of level 0 as mpp_override, such as 0.5 or 0.25; the value is "
            "recorded with the features."
        )
    width = _plausible(name, properties[_X], _X)
    height = _plausible(name, properties[_Y], _Y)
    if abs(width - height) > MAX_ANISOTROPY * max(width, height):
        raise ImplausibleMpp(
            f"The slide {name} has pixels of {width:g} x {height:g} micrometres, which are not "
            f"square within {MAX_ANISOTROPY:.0%}. Give the right value as mpp_override."
        )
    return Resolution((width * height) ** 0.5, "metadata")


def _plausible(name: str, value: str | float, origin: str) -> float:
    try:
        mpp = float(value)
    except ValueError:
        mpp = float("nan")
    low, high = MPP_RANGE
    if low <= mpp <= high:
        return mpp
    raise ImplausibleMpp(
        f"The slide {name} would have {value} micrometres per pixel ({origin}); plausible is "
        f"{low:g} to {high:g}. Give the right value as mpp_override."
    )


def _power_hint(properties: Mapping[str, str]) -> str:
    power = properties.get(_POWER)
    return f" Its objective power is {power}, which does not fix the pixel size." if power else ""


@dataclass(frozen=True)
class ReadPlan:
    """How pixels of a wanted size are made.

    Args:
        level: of the pyramid.
        downsample: level-0 pixels per pixel of that level.
        scale: level-0 pixels per wanted pixel.
    """

    level: int
    downsample: float
    scale: float

    @property
    def ratio(self) -> float:
        """Pixels of the level per wanted pixel, 1 where nothing is resampled."""
        return self.scale / self.downsample

    def resamples(self, size: int) -> bool:
        """Whether ``size`` pixels of the level and of the target differ by half a pixel or more."""
        return abs(self.ratio - 1) * size >= 0.5


def plan_read(name: str, downsamples: Sequence[float], scale: float) -> ReadPlan:
    """The coarsest level that is still fine enough.

    Args:
        name: of the slide, for messages.
        downsamples: of the levels, ascending from 1.
        scale: level-0 pixels per wanted pixel.

    Raises:
        TooFine: level 0 would have to be enlarged by more than :data:`MAX_UPSAMPLING`.
    """
    if scale * MAX_UPSAMPLING < 1:
        raise TooFine(
            f"The slide {name} was scanned {1 / scale:.3g} times coarser than asked for; enlarging "
            f"beyond {MAX_UPSAMPLING:g} would invent detail. Ask for a larger mpp."
        )
    enough = [i for i, d in enumerate(downsamples) if d <= scale * (1 + LEVEL_TOLERANCE)]
    level = enough[-1] if enough else 0
    return ReadPlan(level, downsamples[level], scale)
