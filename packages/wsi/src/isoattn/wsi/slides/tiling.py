"""The grid of tiles over a slide's tissue, at an exact pixel size.

Shape suffixes: N tiles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isoattn.wsi.slides.errors import NoTissue
from isoattn.wsi.slides.reader import Slide
from isoattn.wsi.slides.tissue import Tissue, area_share


@dataclass(frozen=True)
class TilingOptions:
    """Which tiles are listed.

    Args:
        mpp: micrometres per pixel of a tile.
        size: pixels of a tile's side.
        stride: pixels from tile to tile; ``None``: ``size``, so that tiles touch.
        min_tissue: least share of a tile's area that is tissue; area outside the slide is none.
        min_coverage: least share of a tile's area that lies on the slide.
    """

    mpp: float = 0.5
    size: int = 256
    stride: int | None = None
    min_tissue: float = 0.5
    min_coverage: float = 0.0

    def __post_init__(self) -> None:
        if self.mpp <= 0 or self.size < 1 or self.step < 1:
            raise ValueError(
                "mpp, size and stride are positive; got "
                f"mpp={self.mpp}, size={self.size}, stride={self.stride}"
            )
        if not (0 <= self.min_tissue <= 1 and 0 <= self.min_coverage <= 1):
            raise ValueError(
                "min_tissue and min_coverage lie in 0..1; got "
                f"min_tissue={self.min_tissue}, min_coverage={self.min_coverage}"
            )

    @property
    def step(self) -> int:
        """Pixels from tile to tile."""
        return self.size if self.stride is None else self.stride


@dataclass(frozen=True)
class TileGrid:
    """Tiles of a slide, row by row.

    Args:
        coords_N2: int64 (x, y) of the top left corners, level-0 pixels.
        tissue_N: float32 share of tissue.
        coverage_N: float32 share that lies on the slide.
        side: of a tile in level-0 pixels, not rounded.
        options: what was asked for.
    """

    coords_N2: NDArray[np.int64]
    tissue_N: NDArray[np.float32]
    coverage_N: NDArray[np.float32]
    side: float
    options: TilingOptions

    def __len__(self) -> int:
        return len(self.coords_N2)


def tile_slide(slide: Slide, tissue: Tissue, options: TilingOptions) -> TileGrid:
    """List the tiles that show enough tissue.

    The grid starts at (0, 0); every tile of it begins on the slide, so none lies wholly outside.
    Tiles at the right and lower border reach over the edge, where they are white when read.

    Raises:
        NoTissue: no tile is left; says which thresholds to look at.
    """
    width, height = slide.dimensions
    scale = options.mpp / slide.mpp
    coords = grid(width, height, options.step * scale)
    side = options.size * scale
    coverage = _on_slide(coords, side, width, height)
    share = area_share(tissue.mask_HW, tissue.downsample, coords, side)
    # Tiles without any tissue are not listed even where min_tissue is 0.
    kept = (share >= options.min_tissue) & (share > 0)
    kept &= (coverage >= options.min_coverage) & (coverage > 0)
    if not kept.any():
        if side > max(width, height):
            raise NoTissue(
                f"No tile of {slide.path} is kept: a tile of {options.size} pixels at "
                f"{options.mpp:g} mpp is {side:g} level-0 pixels to a side, the whole slide is "
                f"{width} x {height}. Take smaller tiles, or a smaller mpp."
            )
        raise NoTissue(
            f"No tile of {slide.path} is kept: {tissue.share:.2%} of the slide is tissue "
            f"(saturation above {tissue.threshold:.3f}), {tissue.artefacts:.2%} pen or debris; the "
            f"fullest of {len(coords)} tiles of {side:g} level-0 pixels has {share.max():.2f} "
            f"tissue, min_tissue is {options.min_tissue}. Look at the overlay picture; lower "
            "min_tissue, or change the tissue options."
        )
    return TileGrid(coords[kept], share[kept], coverage[kept], side, options)


def grid(width: int, height: int, step: float) -> NDArray[np.int64]:
    """Corners of a grid, row by row; each is rounded by itself, so that nothing accumulates."""
    columns, rows = (math.ceil(side / step) for side in (width, height))
    x = np.rint(np.arange(columns) * step).astype(np.int64)
    y = np.rint(np.arange(rows) * step).astype(np.int64)
    return np.stack(np.meshgrid(x, y), -1).reshape(-1, 2)


def _on_slide(
    coords: NDArray[np.int64], side: float, width: int, height: int
) -> NDArray[np.float32]:
    inside = np.clip(np.array([width, height]) - coords, 0, side) / side
    return np.asarray(inside.prod(1), dtype=np.float32)
