"""Position encodings of a token grid: the Fourier encoding of XCiT, and learned tables.

Shape suffixes: Y grid rows, X grid columns, N = Y * X tokens (row-major), C channels, K features.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from isoattn.vision.models.grid import Grid, map_to_tokens, tokens_to_map

PositionKind = Literal["fourier", "learned", "none"]

_FEATURES = 32
_BASE = 10_000.0
_EPS = 1e-6


def fourier_features(
    length: int,
    *,
    features: int = _FEATURES,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
) -> Tensor:
    """Sine and cosine features of one axis, (length, features).

    Position i = 1..length is the angle 2 pi i / (length + 1e-6): normalised to the axis, so any
    length is valid. Feature j divides it by 10000^(2 floor(j/2) / features); even j take the sine,
    odd j the cosine.

    Source: facebookresearch/xcit, ``PositionalEncodingFourier`` (after arXiv 1706.03762 s. 3.5).

    Args:
        length: positions on the axis.
        features: K, even.
        dtype: of the arithmetic. The released code uses float32 whatever the model's dtype.
        device: of the result.
    """
    place = torch.arange(1, length + 1, device=device).to(dtype)
    angle = place / (place[-1:] + _EPS) * (2 * math.pi)
    pair = torch.arange(features, device=device).to(dtype).div(2, rounding_mode="floor")
    angle_LK = angle[:, None] / _BASE ** (2 * pair / features)
    return torch.stack([angle_LK[:, 0::2].sin(), angle_LK[:, 1::2].cos()], dim=2).flatten(1)


class FourierPositions(nn.Module):
    """Fourier features of row and column, projected to the embedding: any grid, (1, N, C).

    The projection of [row features, column features] is the sum of two projections, one per axis,
    which needs Y + X products in place of Y * X.

    Args:
        dim: channels C.
        angle_dtype: of the angles. float32 is what the released weights were trained with, also
            in a float64 model; float64 follows the formula.
    """

    def __init__(self, dim: int, *, angle_dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.angle_dtype = angle_dtype
        # a 1x1 convolution only by its shape: (C, 2K, 1, 1) is how the weights are stored
        self.token_projection = nn.Conv2d(2 * _FEATURES, dim, kernel_size=1)

    def forward(self, grid: Grid) -> Tensor:
        """The encoding of a grid."""
        weight = self.token_projection.weight
        rows, columns = (
            fourier_features(length, dtype=self.angle_dtype, device=weight.device).to(weight.dtype)
            for length in grid
        )
        weight_y, weight_x = weight.flatten(1).chunk(2, dim=1)
        y_YC = F.linear(rows, weight_y, self.token_projection.bias)
        x_XC = F.linear(columns, weight_x)
        return (y_YC[:, None] + x_XC[None]).flatten(0, 1)[None]


class LearnedPositions(nn.Module):
    """A learned vector for each place of a grid, resized bicubically to other grids: (1, N, C).

    Args:
        dim: channels C.
        grid: rows and columns the table is made for.
        std: of the initial values. The usual 0.02 is small beside the tokens of a patchify stem
            (about 1): a model then has to learn where things are before it can use it.
    """

    def __init__(self, dim: int, grid: Grid, std: float = 0.02) -> None:
        super().__init__()
        self.grid = grid
        self.table = nn.Parameter(torch.empty(1, grid[0] * grid[1], dim))
        nn.init.trunc_normal_(self.table, std=std)

    def forward(self, grid: Grid) -> Tensor:
        """The encoding of a grid."""
        return resize_positions(self.table, self.grid, grid)


def resize_positions(table_1NC: Tensor, old: Grid, new: Grid) -> Tensor:
    """Resize a table of positions from one grid to another, (1, N_old, C) -> (1, N_new, C).

    Bicubic with antialiasing, in float32 at least, as timm resizes the tables of its ViTs.
    """
    if old == new:
        return table_1NC
    wide = table_1NC.to(torch.promote_types(table_1NC.dtype, torch.float32))
    sized = F.interpolate(tokens_to_map(wide, old), size=new, mode="bicubic", antialias=True)
    return map_to_tokens(sized)[0].to(table_1NC.dtype)


def make_positions(
    kind: PositionKind, dim: int, grid: Grid | None, std: float = 0.02
) -> FourierPositions | LearnedPositions | None:
    """The position encoding of a name; None for ``none``.

    Args:
        kind: ``fourier``, ``learned`` or ``none``.
        dim: channels C.
        grid: what a learned table is made for.
        std: initial values of a learned table.

    Raises:
        ValueError: unknown name, or learned positions without a grid.
    """
    if kind == "none":
        return None
    if kind == "fourier":
        return FourierPositions(dim)
    if kind != "learned":
        raise ValueError(f"positions must be 'fourier', 'learned' or 'none', got {kind!r}")
    if grid is None:
        raise ValueError(
            "positions='learned' needs image_size, to know how many places to learn. "
            "Give image_size, or use positions='fourier', which fits any size."
        )
    return LearnedPositions(dim, grid, std)
