"""The ground truth between the cells of two images, sparse, and the rule of mutual nearest cells.

Shape suffixes: B pairs, L cells of image 0, S of image 1, N cells of either, M matches; a last 2
is (x, y) in pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isoattn.matching.models.cells import STRIDE, Grid, cell_points


@dataclass
class Supervision:
    """Ground truth between the cells of image 0 and of image 1.

    Args:
        b, i, j: int64 (M,) each: pair, cell of image 0, cell of image 1 that belong together,
            sorted by pair and i; no cell occurs twice.
        warped0_BL2: where each cell of image 0 goes, in pixels of image 1, also off its map; NaN
            where that is not known.
        known_B: bool, pairs with any ground truth at all. A known pair without matches (no overlap)
            counts in metrics; an unknown one does not.
        grid0, grid1: rows and columns of cells.
    """

    b: Tensor
    i: Tensor
    j: Tensor
    warped0_BL2: Tensor
    known_B: Tensor
    grid0: Grid
    grid1: Grid

    @property
    def shape(self) -> tuple[int, int, int]:
        """(B, L, S) of a matrix of confidences."""
        cells0, cells1 = (grid[0] * grid[1] for grid in (self.grid0, self.grid1))
        return len(self.known_B), cells0, cells1

    def counts(self) -> Tensor:
        """Matches of each pair, int64 (B,)."""
        return torch.bincount(self.b, minlength=len(self.known_B))

    @property
    def valid_B(self) -> Tensor:
        """Bool, pairs with at least one match: those that a loss counts."""
        return self.counts() > 0

    def partner(self) -> Tensor:
        """Cell of image 1 that belongs to each cell of image 0, int64 (B, L); -1 for none."""
        partner_BL = torch.full(self.shape[:2], -1, dtype=torch.int64, device=self.b.device)
        partner_BL[self.b, self.i] = self.j
        return partner_BL

    def dense(self) -> Tensor:
        """The matrix of matches, bool (B, L, S)."""
        matrix_BLS = torch.zeros(self.shape, dtype=torch.bool, device=self.b.device)
        matrix_BLS[self.b, self.i, self.j] = True
        return matrix_BLS

    def offsets(self, b: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """From cell j to where cell i really goes, in pixels of image 1.

        Args:
            b, i, j: int64 (K,), pair and cells of any matches.

        Returns:
            (K, 2); NaN where unknown.
        """
        warped_K2 = self.warped0_BL2[b, i]
        return warped_K2 - cell_points(j, self.grid1, warped_K2.dtype)

    def fine_targets(
        self, b: Tensor, i: Tensor, j: Tensor, *, fine_stride: int = 2, window: int = 5
    ) -> Tensor:
        """As :meth:`offsets`, in halves of the fine window: +-1 is the centre of its outer cells.

        offset / fine_stride / (window // 2), as in the released spvs_fine.

        Args:
            b, i, j: int64 (K,), matches whose windows are refined.
            fine_stride: pixels from cell to cell of the fine map.
            window: cells along a side of the window, odd.

        Returns:
            (K, 2); NaN where unknown. At 1 or beyond in any direction a loss leaves the match out.
        """
        return self.offsets(b, i, j) / fine_stride / (window // 2)


def nearest_cells(points_BN2: Tensor, grid: Grid) -> Tensor:
    """Number of the cell nearest to each pixel position, int64 (B, N); -1 off the map or NaN."""
    column_BN, row_BN = (points_BN2 / STRIDE).round().unbind(-1)
    inside_BN = (column_BN >= 0) & (column_BN < grid[1]) & (row_BN >= 0) & (row_BN < grid[0])
    # Chosen before the conversion: a NaN has no integer.
    return torch.where(inside_BN, row_BN * grid[1] + column_BN, -1.0).long()


def all_points(grid: Grid, like: Tensor) -> Tensor:
    """Pixels of all cells of a grid, (L, 2), in the dtype and on the device of ``like``."""
    numbers = torch.arange(grid[0] * grid[1], device=like.device)
    return cell_points(numbers, grid, like.dtype)


def mutual_cells(
    warped0_BL2: Tensor,
    warped1_BS2: Tensor,
    grid0: Grid,
    grid1: Grid,
    keep0_BL: Tensor | None = None,
    keep1_BS: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Cells that are each other's nearest under two warps.

    Args:
        warped0_BL2: cells of image 0 in pixels of image 1; NaN matches nothing.
        warped1_BS2: cells of image 1 in pixels of image 0.
        grid0, grid1: rows and columns of cells.
        keep0_BL, keep1_BS: bool, cells that are no padding; ``None``: all.

    Returns:
        b, i, j, int64 (M,), sorted by b and i.
    """
    to1_BL, to0_BS = nearest_cells(warped0_BL2, grid1), nearest_cells(warped1_BS2, grid0)
    if keep1_BS is not None:
        to0_BS = to0_BS.masked_fill(~keep1_BS, -1)
    own_L = torch.arange(to1_BL.shape[1], device=to1_BL.device)
    mutual_BL = (to1_BL >= 0) & (to0_BS.gather(1, to1_BL.clamp(min=0)) == own_L)
    if keep0_BL is not None:
        mutual_BL = mutual_BL & keep0_BL
    b, i = mutual_BL.nonzero(as_tuple=True)
    return b, i, to1_BL[b, i]
