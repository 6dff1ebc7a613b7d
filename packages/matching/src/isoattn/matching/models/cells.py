"""The coarse grid: ceil(H / 8) x ceil(W / 8) cells, cell (row i, column j) on pixel (8j, 8i).

The cell sits *on* that pixel, not in the middle of an 8 x 8 square: every stride-2 kernel of the
backbones is centred. Cells are numbered row-major.

Shape suffixes: B batch, H image rows, W image columns, Y grid rows, X grid columns, N = Y * X
cells, K any number of chosen cells.
"""

from __future__ import annotations

import torch
from torch import Tensor

STRIDE = 8
"""Pixels from one cell to the next."""

Grid = tuple[int, int]
"""Rows and columns of cells."""


def grid_of(height: int, width: int) -> Grid:
    """Cells of an image: each side divided by 8, rounded up."""
    return -(-height // STRIDE), -(-width // STRIDE)


def cell_points(cell_K: Tensor, grid: Grid, dtype: torch.dtype = torch.float32) -> Tensor:
    """Pixel coordinates (x, y) of cells, (K, 2)."""
    x = cell_K % grid[1]
    y = cell_K.div(grid[1], rounding_mode="floor")
    return torch.stack([x, y], -1).to(dtype) * STRIDE


def cell_mask(mask: Tensor | None, image_BIHW: Tensor, name: str = "mask") -> Tensor | None:
    """Which cells count, bool (B, N), from a mask of pixels or of cells.

    A pixel mask gives a cell the value of the pixel it sits on.

    Args:
        mask: bool, True = keep: pixels (B, H, W) or (B, 1, H, W), or cells (B, Y, X).
        image_BIHW: the images it belongs to.
        name: what to call it in an error.

    Raises:
        ValueError: another dtype or shape; says what is allowed.
    """
    if mask is None:
        return None
    batch, _, height, width = image_BIHW.shape
    grid = grid_of(height, width)
    flat = mask.squeeze(1) if mask.ndim == 4 and mask.shape[1] == 1 else mask
    pixels, cells = (batch, height, width), (batch, *grid)
    if mask.dtype != torch.bool or flat.shape not in (pixels, cells):
        raise ValueError(
            f"{name} must be bool, True = keep, over pixels {pixels} or cells {cells}; "
            f"got {mask.dtype} {tuple(mask.shape)}"
        )
    if flat.shape == pixels:
        flat = flat[:, ::STRIDE, ::STRIDE]
    return flat.flatten(1)


def inner_cells(mask_BN: Tensor | None, batch: int, grid: Grid, border: int) -> Tensor | None:
    """Cells at least ``border`` cells inside the valid extent, bool (B, N); ``None`` = all.

    The valid extent of a sample is the bounding box of its unmasked cells, so the border of a
    padded image runs along the image and not along the padding, wherever that lies.

    Args:
        mask_BN: which cells count; ``None``: all.
        batch: B.
        grid: rows and columns.
        border: cells to leave out at each side, 0 or more.
    """
    if mask_BN is None and border == 0:
        return None
    if mask_BN is None:
        return _inside(torch.ones(1, *grid, dtype=torch.bool), border).flatten(1).expand(batch, -1)
    return _inside(mask_BN.view(-1, *grid), border).flatten(1) & mask_BN


def _inside(valid_BYX: Tensor, border: int) -> Tensor:
    rows_BY, columns_BX = valid_BYX.any(2), valid_BYX.any(1)
    return _shrunk(rows_BY, border)[:, :, None] & _shrunk(columns_BX, border)[:, None, :]


def _shrunk(seen_BL: Tensor, border: int) -> Tensor:
    """True from ``border`` behind the first True of a row to ``border`` before its last."""
    length = seen_BL.shape[1]
    place = torch.arange(length, device=seen_BL.device)
    first = torch.where(seen_BL, place, length).amin(1, keepdim=True)
    last = torch.where(seen_BL, place, -1).amax(1, keepdim=True)
    return (place >= first + border) & (place <= last - border)
