"""The 2-D sinusoidal position encoding of LoFTR, for any grid.

Sun et al. 2021 (arXiv 2104.00680), section 3.2; zju3dv/LoFTR ``position_encoding.py``.

Shape suffixes: Y grid rows, X grid columns, N = Y * X cells (row-major), C channels, F = C / 4.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from isoattn.matching.models.cells import Grid

PositionEncoding = Literal["fixed", "released"]


def frequencies(dim: int, kind: PositionEncoding, device: torch.device | None = None) -> Tensor:
    """Radians per cell, float64 (F,), of the channels 4m to 4m + 3.

    ``"fixed"``: 10000^(-2m / (C / 2)), as the authors meant. ``"released"``: what their code
    computes, where Python reads ``-ln(10000) / C // 2`` as a floor division, which is -1 for every
    C above 4: e^(-2m), so that only the first few channels carry a signal. The published weights
    outdoor_ds, indoor_ds and both ``_ot`` were trained with it, indoor_ds_new without
    (zju3dv/LoFTR#41).

    Raises:
        ValueError: C not divisible by 4, or an unknown kind.
    """
    if kind not in ("fixed", "released"):
        raise ValueError(f"pe must be 'fixed' or 'released', got {kind!r}")
    if dim % 4 or dim < 4:
        raise ValueError(
            f"The position encoding needs channels in fours (sine and cosine of x and y), got {dim}"
        )
    exponent = (
        -math.log(10_000.0) / (dim // 2) if kind == "fixed" else -math.log(10_000.0) / dim // 2
    )
    twice_m = torch.arange(0, dim // 2, 2, dtype=torch.float64, device=device)
    return (twice_m * exponent).exp()


def sinusoid(
    grid: Grid,
    dim: int,
    kind: PositionEncoding,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
) -> Tensor:
    """The encoding of every cell, (N, C): channels 4m.. are sin x, cos x, sin y, cos y.

    Places count from 1 along each axis. Computed in float64 from the formula, so there is no table
    that could end.

    Args:
        grid: rows and columns.
        dim: channels C, divisible by 4.
        kind: which frequencies.
        dtype: of the result.
        device: of the result.

    Raises:
        ValueError: C not divisible by 4, or an unknown kind.
    """
    omega_F = frequencies(dim, kind, device)
    rows, columns = grid
    y_YF2, x_XF2 = (_waves(length, omega_F).to(dtype) for length in grid)
    table = torch.empty(rows, columns, dim // 4, 4, dtype=dtype, device=omega_F.device)
    table[..., :2] = x_XF2
    table[..., 2:] = y_YF2[:, None]
    return table.view(rows * columns, dim)


def _waves(length: int, omega_F: Tensor) -> Tensor:
    """Sine and cosine of one axis, (length, F, 2)."""
    place = torch.arange(1, length + 1, dtype=torch.float64, device=omega_F.device)
    angle = place[:, None] * omega_F
    return torch.stack([angle.sin(), angle.cos()], -1)
