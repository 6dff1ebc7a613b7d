"""Local patch interaction (LPI): the depthwise convolutions of an XCiT block.

Shape suffixes: B batch, N = Y * X tokens (row-major), C channels.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from isoattn.vision.models.grid import Grid, map_to_tokens, tokens_to_map

LPIKind = Literal["dw3x3", "dw1x1", "none"]
"""``dw3x3`` as published, ``dw1x1`` the same without seeing neighbours, ``none`` no branch."""

_KERNELS = {"dw3x3": 3, "dw1x1": 1}


class LPI(nn.Module):
    """Depthwise convolution, GELU, BatchNorm, depthwise convolution: (B, N, C) -> (B, N, C).

    The order GELU then BatchNorm is the released code's; the paper names the layers only.

    Source: arXiv 2106.09681 section 3.3, facebookresearch/xcit ``LPI``.

    Args:
        dim: channels C.
        kernel: side of the kernels: 3, or 1 for the stand-in that mixes no neighbours.
    """

    def __init__(self, dim: int, kernel: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(dim, dim, kernel, padding=kernel // 2, groups=dim)
        self.act = nn.GELU()
        self.bn = nn.BatchNorm2d(dim)
        self.conv2 = nn.Conv2d(dim, dim, kernel, padding=kernel // 2, groups=dim)

    def forward(self, x_BNC: Tensor, grid: Grid) -> Tensor:
        """Let each token see the window around it on the grid."""
        x_BCYX = tokens_to_map(x_BNC, grid)
        out_BCYX = self.conv2(self.bn(self.act(self.conv1(x_BCYX))))
        return map_to_tokens(out_BCYX)[0]


def make_lpi(kind: LPIKind, dim: int) -> LPI | None:
    """The LPI of a name; None for ``none``.

    Raises:
        ValueError: unknown name.
    """
    if kind == "none":
        return None
    if kind not in _KERNELS:
        raise ValueError(f"lpi must be 'dw3x3', 'dw1x1' or 'none', got {kind!r}")
    return LPI(dim, _KERNELS[kind])
