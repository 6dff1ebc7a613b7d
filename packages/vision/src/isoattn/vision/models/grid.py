"""Tokens and feature maps: one memory, two shapes.

Shape suffixes: B batch, C channels, Y grid rows, X grid columns, N = Y * X tokens (row-major).
"""

from __future__ import annotations

from torch import Tensor

Grid = tuple[int, int]
"""Token rows and columns."""


def tokens_to_map(x_BNC: Tensor, grid: Grid) -> Tensor:
    """(B, N, C) -> (B, C, Y, X), a channels-last view: nothing is copied.

    Written as a permutation of (B, Y, X, C) and not as ``transpose(1, 2)``, which for a batch of
    one leaves a batch stride that torch's convolutions do not take for channels last.
    """
    batch, _, dim = x_BNC.shape
    return x_BNC.reshape(batch, *grid, dim).permute(0, 3, 1, 2)


def map_to_tokens(x_BCYX: Tensor) -> tuple[Tensor, Grid]:
    """(B, C, Y, X) -> contiguous tokens (B, N, C) and their grid; a view of a channels-last map.

    Contiguous, because the residual stream keeps the layout it starts with, and every norm would
    copy. By permutation and not ``flatten(2).transpose(1, 2)``: for a batch of one the gradient of
    that has a batch stride for which torch 2.14's BatchNorm silently returns wrong gradients.
    """
    batch, dim, rows, columns = x_BCYX.shape
    return x_BCYX.permute(0, 2, 3, 1).reshape(batch, rows * columns, dim), (rows, columns)
