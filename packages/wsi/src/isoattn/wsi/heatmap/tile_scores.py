"""One number a tile, where the tile lies, and the map they make.

Shape suffixes: N tiles; H, W pixels of a map.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class TileScores:
    """Scores of a slide's tiles.

    Args:
        slide: its name.
        coords_N2: int64 (x, y) of the top left corners in level-0 pixels.
        values_N: scores; attention may be negative, as a third of Nystrom's weights are.
        side: of a tile in level-0 pixels.
        what: name of the score, for legends and measurements.

    Raises:
        ValueError: shapes that do not fit, or values that are not finite.
    """

    slide: str
    coords_N2: NDArray[np.int64]
    values_N: NDArray[np.float32]
    side: float
    what: str = "attention"

    def __post_init__(self) -> None:
        count = len(self.values_N)
        if self.values_N.ndim != 1 or self.coords_N2.shape != (count, 2) or count == 0:
            raise ValueError(
                f"The tiles of {self.slide} need one score and one (x, y) each, at least one tile; "
                f"got scores {self.values_N.shape} and coordinates {self.coords_N2.shape}"
            )
        if self.side <= 0:
            raise ValueError(f"The side of a tile is positive, got {self.side}")
        if not np.isfinite(self.values_N).all():
            bad = np.flatnonzero(~np.isfinite(self.values_N))[:5].tolist()
            raise ValueError(
                f"The scores of {self.slide} are not finite, such as those of the tiles {bad}"
            )

    @property
    def signed(self) -> bool:
        """Whether any score is negative."""
        return bool((self.values_N < 0).any())


def score_map(scores: TileScores, shape: tuple[int, int], downsample: float) -> NDArray[np.float32]:
    """The scores as a picture; where tiles overlap, their mean.

    Args:
        scores: of the tiles.
        shape: (H, W) of the map.
        downsample: level-0 pixels per pixel of the map.

    Returns:
        float32 (H, W), NaN where no tile lies.
    """
    height, width = shape
    low = np.rint(scores.coords_N2 / downsample).astype(np.int64)
    high = np.rint((scores.coords_N2 + scores.side) / downsample).astype(np.int64)
    high = np.maximum(high, low + 1)  # a tile smaller than a pixel still shows
    limits = np.array([width, height])
    left, top = np.clip(low, 0, limits).T
    right, bottom = np.clip(high, 0, limits).T
    # Corners of each tile in a table of differences, whose double sum is the map.
    total, count = np.zeros((2, height + 1, width + 1))
    values = scores.values_N.astype(np.float64)
    for table, amount in ((total, values), (count, np.ones_like(values))):
        np.add.at(table, (top, left), amount)
        np.add.at(table, (bottom, right), amount)
        np.add.at(table, (top, right), -amount)
        np.add.at(table, (bottom, left), -amount)
    sums = total.cumsum(0).cumsum(1)[:-1, :-1]
    tiles = count.cumsum(0).cumsum(1)[:-1, :-1].round()
    mean = np.full(shape, np.nan)
    np.divide(sums, tiles, out=mean, where=tiles > 0)
    return mean.astype(np.float32)
