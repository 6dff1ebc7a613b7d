"""Where on a slide tissue, tumour and mimics lie: a map of cells, made before any pixel.

Shape suffixes: H, W cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

CELL = 8
"""Side of a cell in level-0 pixels; masks have one value a cell."""

GLASS, NORMAL, TUMOUR, MIMIC = range(4)
"""Values of a mask."""

Cells = NDArray[np.uint8]
Mask = NDArray[np.bool_]
Task = Literal["presence", "proximity", "co_occurrence"]


class LayoutError(ValueError):
    """Areas or distances that do not fit on a slide of this size."""


@dataclass(frozen=True)
class Island:
    """One piece of tumour or mimic to place.

    Args:
        kind: TUMOUR or MIMIC.
        cells: its area.
    """

    kind: int
    cells: int

    @property
    def radius(self) -> float:
        """Of a disk of that area, in cells."""
        return float(np.sqrt(self.cells / np.pi))


def draw_tissue(height: int, width: int, share: float, rng: np.random.Generator) -> Mask:
    """A few rounded pieces of tissue that cover about ``share`` of the slide."""
    side = min(height, width)
    noise = ndimage.gaussian_filter(rng.standard_normal((height, width)), 0.09 * side)
    y, x = np.mgrid[0:height, 0:width]
    # Away from the border, as on a real slide.
    away = np.minimum.reduce([y + 1, x + 1, height - y, width - x]) / side
    field = noise / noise.std() + 4.0 * np.minimum(away, 0.25)
    tissue = field > np.quantile(field, 1 - share)
    pieces, _ = ndimage.label(tissue)
    sizes = np.bincount(pieces.ravel())
    sizes[0] = 0
    kept = sizes > 0.05 * sizes.sum()
    return np.asarray(ndimage.binary_fill_holes(kept[pieces]), dtype=np.bool_)


def grow(centre: tuple[int, int], cells: int, free: Mask, rng: np.random.Generator) -> Mask:
    """A ragged disk of exactly ``cells`` free cells around a centre."""
    y, x = np.indices(free.shape)
    distance = np.hypot(y - centre[0], x - centre[1])
    radius = max(1.0, float(np.sqrt(cells / np.pi)))
    ragged = ndimage.gaussian_filter(rng.standard_normal(free.shape), max(1.0, radius / 3))
    distance += 0.25 * radius * ragged / ragged.std()
    distance[~free] = np.inf
    chosen = np.argpartition(distance.ravel(), cells - 1)[:cells]
    grown = np.zeros(free.size, dtype=np.bool_)
    grown[chosen] = True
    return grown.reshape(free.shape) & free


def place_islands(
    tissue: Mask,
    islands: list[Island],
    rng: np.random.Generator,
    *,
    gap: float,
    near: dict[int, int] | None = None,
    reach: float = 0.0,
    apart: float = 0.0,
) -> Cells:
    """Put islands into the tissue.

    Args:
        tissue: where they may lie.
        islands: largest first is easiest.
        rng: draws the places.
        gap: least distance of any two islands in cells, from edge to edge.
        near: island number -> number of an earlier one that it lies beside.
        reach: largest distance of such a pair, edge to edge, in cells.
        apart: least distance of islands of different kinds that are no such pair.

    Raises:
        LayoutError: no room; says what to change.
    """
    cells = np.where(tissue, NORMAL, GLASS).astype(np.uint8)
    placed: list[Mask] = []
    depth = ndimage.distance_transform_edt(np.pad(tissue, 1))[1:-1, 1:-1]
    for number, island in enumerate(islands):
        partner = (near or {}).get(number)
        allowed = tissue.copy()
        for other, mask in enumerate(placed):
            kept = (
                gap if other == partner or islands[other].kind == island.kind else max(gap, apart)
            )
            allowed &= _distance(mask) > kept
        candidates = allowed & (_distance_inside(allowed, depth) >= island.radius)
        if partner is not None:
            candidates &= _distance(placed[partner]) <= reach + island.radius
        if not candidates.any() or allowed.sum() < island.cells:
            raise LayoutError(
                f"No room for island {number + 1} of {len(islands)}, {island.cells} cells of "
                f"{CELL} px, on {int(tissue.sum())} cells of tissue. Use larger slides, smaller "
                "tumour fractions, or fewer islands."
            )
        rows, columns = np.nonzero(candidates)
        pick = int(rng.integers(len(rows)))
        placed.append(grow((int(rows[pick]), int(columns[pick])), island.cells, allowed, rng))
        cells[placed[-1]] = island.kind
    return cells


def _distance(mask: Mask) -> NDArray[np.float64]:
    """Of each cell to the nearest of the mask."""
    return np.asarray(ndimage.distance_transform_edt(~mask))


def _distance_inside(allowed: Mask, depth: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of each allowed cell to the nearest that is not; ``depth`` is the same for the tissue."""
    inside = ndimage.distance_transform_edt(allowed)
    return np.asarray(np.minimum(inside, depth))
