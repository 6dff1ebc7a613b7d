"""Fine refinement: 5x5 windows of the maps at 1/2 around matched cells, matched by expectation.

Sun et al. 2021 (arXiv 2104.00680), section 3.4; zju3dv/LoFTR ``fine_preprocess.py`` and
``fine_matching.py``, with their parameter names.

Shape suffixes: B batch, N coarse cells, C channels of a coarse token, c channels of the fine map,
V and U its rows and columns, K matches, P = 25 places of a window (row-major).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from isoattn.matching.models.cells import Grid

WINDOW = 5
"""Places of a window along each axis."""

CELL_STRIDE = 4
"""Places of the fine map from one coarse cell to the next."""

PIXELS = 2
"""Pixels from one place of the fine map to the next."""

REACH = WINDOW // 2 * PIXELS
"""Pixels that an expectation of 1 moves a point: 4."""


@dataclass(frozen=True)
class Refinement:
    """Where in the windows of image 1 the points of image 0 are.

    Args:
        expectation: (K, 2), mean (x, y) of the matching distribution, a window is [-1, 1]^2.
        std: (K,), its standard deviations along x and y, added.
    """

    expectation: Tensor
    std: Tensor

    def offset(self) -> Tensor:
        """(K, 2) in pixels of image 1, at most 4 along each axis."""
        return self.expectation * REACH


class FinePreprocess(nn.Module):
    """Windows of the fine map, each place with the coarse token of its cell merged in.

    Args:
        coarse_dim: C.
        fine_dim: c.
    """

    def __init__(self, coarse_dim: int, fine_dim: int) -> None:
        super().__init__()
        self.down_proj = nn.Linear(coarse_dim, fine_dim)
        self.merge_feat = nn.Linear(2 * fine_dim, fine_dim)
        for module in (self.down_proj, self.merge_feat):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(
        self, fine_BcVU: Tensor, coarse_BNC: Tensor, batch_K: Tensor, cell_K: Tensor, grid: Grid
    ) -> Tensor:
        """Tokens of the windows, (K, P, c).

        Args:
            fine_BcVU: map at 1/2.
            coarse_BNC: tokens after the coarse transformer.
            batch_K: int64, sample of each match.
            cell_K: int64, its cell.
            grid: rows and columns of cells.
        """
        windows_KPc = gather_windows(fine_BcVU, batch_K, cell_K, grid)
        coarse_Kc = self.down_proj(coarse_BNC[batch_K, cell_K])
        # merge_feat([window, coarse]) in two products, the second once a window, not once a place
        of_window, of_coarse = self.merge_feat.weight.chunk(2, 1)
        context_Kc = F.linear(coarse_Kc, of_coarse, self.merge_feat.bias)
        return F.linear(windows_KPc, of_window) + context_Kc[:, None]


def gather_windows(fine_BcVU: Tensor, batch_K: Tensor, cell_K: Tensor, grid: Grid) -> Tensor:
    """The 5x5 windows around cells, (K, P, c); 0 outside the map.

    Only windows that are asked for are read, so nothing 25 times the size of the map is made.
    """
    channels, height, width = fine_BcVU.shape[1:]
    step = torch.arange(-(WINDOW // 2), WINDOW // 2 + 1, device=cell_K.device)
    row_K5 = cell_K.div(grid[1], rounding_mode="floor")[:, None] * CELL_STRIDE + step
    column_K5 = (cell_K % grid[1])[:, None] * CELL_STRIDE + step
    inside_K55 = ((row_K5 >= 0) & (row_K5 < height))[:, :, None] & (
        (column_K5 >= 0) & (column_K5 < width)
    )[:, None]
    row = batch_K[:, None] * height + row_K5.clamp(0, height - 1)
    place_K55 = row[:, :, None] * width + column_K5.clamp(0, width - 1)[:, None]
    places = fine_BcVU.permute(0, 2, 3, 1).reshape(-1, channels)  # a view of a channels-last map
    windows = places.index_select(0, place_K55.flatten()).view(-1, WINDOW**2, channels)
    return windows.masked_fill(~inside_K55.flatten(1)[:, :, None], 0.0)


def expectation(window0_KPc: Tensor, window1_KPc: Tensor) -> Refinement:
    """softmax(centre of window 0 . places of window 1 / sqrt(c)), its mean and deviation.

    In float32 at least: the deviation is a difference of squares.
    """
    wide = torch.promote_types(window0_KPc.dtype, torch.float32)
    centre_Kc = window0_KPc[:, WINDOW**2 // 2].to(wide)
    logits_KP = (window1_KPc.to(wide) @ centre_Kc[:, :, None])[:, :, 0]
    weight_KP = (logits_KP * window0_KPc.shape[2] ** -0.5).softmax(1)
    place_P2 = _places(weight_KP)
    mean_K2 = weight_KP @ place_P2
    variance_K2 = weight_KP @ place_P2.square() - mean_K2.square()
    std_K = variance_K2.clamp(min=1e-10).sqrt().sum(1)  # its root has a derivative at 0 as well
    return Refinement(mean_K2, std_K)


def _places(like: Tensor) -> Tensor:
    """(x, y) of the places of a window in [-1, 1]^2, (P, 2)."""
    axis = torch.linspace(-1.0, 1.0, WINDOW, dtype=like.dtype, device=like.device)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    return torch.stack([x.flatten(), y.flatten()], 1)


def no_refinement(like: Tensor) -> Refinement:
    """For no match at all."""
    return Refinement(like.new_zeros(0, 2), like.new_zeros(0))
