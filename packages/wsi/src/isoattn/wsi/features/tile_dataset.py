"""The tiles of a slide as a dataset; its workers may be forked or spawned.

Shape suffixes: B tiles, H, W pixels.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from isoattn.wsi.slides import DamagedRegion, Slide, TileGrid

OK, DAMAGED = 0, 1
"""Status of a tile."""

STATUS = {OK: "read", DAMAGED: "damaged"}


class Tile(NamedTuple):
    """One tile, or a batch of them after collation.

    Args:
        position: in the grid.
        pixels_HW3: uint8 RGB; white where the tile is damaged.
        coverage: scanned share.
        status: OK or DAMAGED.
    """

    position: Tensor
    pixels_HW3: Tensor
    coverage: Tensor
    status: Tensor


class TileDataset(Dataset[Tile]):
    """Tiles of a grid, read on demand.

    The slide is opened by whoever reads first, in each process, so the dataset can be sent to
    ``spawn`` workers (TRIDENT pull request 29). A damaged tile is white and has its status; the
    tiles after it are not affected.

    Example:
        >>> loader = DataLoader(TileDataset(slide, grid), 64, num_workers=4,
        ...                     multiprocessing_context="spawn")
    """

    def __init__(self, slide: Slide, grid: TileGrid) -> None:
        self.slide = slide
        self.grid = grid

    def __len__(self) -> int:
        return len(self.grid)

    def __getitem__(self, index: int) -> Tile:
        options = self.grid.options
        x, y = self.grid.coords_N2[index].tolist()
        try:
            pixels, coverage = self.slide.read(x, y, options.size, options.mpp)
            status = OK
        except DamagedRegion:
            pixels = np.full((options.size, options.size, 3), 255, dtype=np.uint8)
            coverage, status = 0.0, DAMAGED
        return Tile(
            torch.tensor(index),
            torch.from_numpy(pixels.copy()),
            torch.tensor(coverage, dtype=torch.float32),
            torch.tensor(status, dtype=torch.uint8),
        )


def tile_loader(dataset: TileDataset, batch_size: int, readers: int = 0) -> DataLoader[Tile]:
    """Batches in the order of the grid; ``readers`` worker processes are spawned."""
    return DataLoader(
        dataset,
        batch_size=batch_size,
        num_workers=readers,
        multiprocessing_context="spawn" if readers else None,
        # Without one, an iteration draws from torch's global generator.
        generator=torch.Generator(),
    )
