"""PPEG: depthwise convolutions that tell tiles of their neighbours (TransMIL, Shao et al. 2021).

x + dw7(x) + dw5(x) + dw3(x), with biases and zeros outside, is one 7 x 7 convolution whose kernel
is the sum of the three and of a 1 in the middle; so it is computed here. The class token passes.

Shape suffixes: B bags, N = 1 + n tokens, n tiles, D channels, K = 49 taps.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PPEGName = Literal["square", "coords", "off"]

SIDE = 7
REACH = SIDE // 2


class PPEG(nn.Module):
    """The convolutions, over a square filled row by row or over the true places of the tiles.

    Args:
        dim: D.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv7 = nn.Conv2d(dim, dim, 7, padding=3, groups=dim)
        self.conv5 = nn.Conv2d(dim, dim, 5, padding=2, groups=dim)
        self.conv3 = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)

    def forward(self, x_BND: Tensor, cells_Bn2: Tensor | None = None) -> Tensor:
        """The tokens with their neighbours.

        Args:
            x_BND: class token, then n tiles.
            cells_Bn2: int64, column and row of each tile. ``None``: the n tiles are a square,
                row by row, as released, wherever they lie on the slide.

        Raises:
            ValueError: no square, or places that do not fit.
        """
        cls, tiles = x_BND[:, :1], x_BND[:, 1:]
        weight, bias = self._merged()
        if cells_Bn2 is None:
            out = _square(tiles, weight, bias)
        else:
            if cells_Bn2.shape != (*tiles.shape[:2], 2):
                raise ValueError(
                    f"cells are (bags, tiles, 2) = {(*tiles.shape[:2], 2)}, got "
                    f"{tuple(cells_Bn2.shape)}"
                )
            near = [neighbours(cells) for cells in cells_Bn2]
            out = torch.stack(
                [
                    _Gather.apply(x, weight.flatten(1), n) + bias
                    for x, n in zip(tiles, near, strict=True)
                ]
            )
        return torch.cat([cls, out], 1)

    def _merged(self) -> tuple[Tensor, Tensor]:
        """Kernel (D, 1, 7, 7) with the identity in it, and bias (D,)."""
        middle = torch.zeros_like(self.conv7.weight)
        middle[:, :, REACH, REACH] = 1.0
        weight = self.conv7.weight + middle
        weight = weight + F.pad(self.conv5.weight, (1, 1, 1, 1))
        weight = weight + F.pad(self.conv3.weight, (2, 2, 2, 2))
        biases = (self.conv7.bias, self.conv5.bias, self.conv3.bias)
        return weight, torch.stack([b for b in biases if b is not None]).sum(0)


def _square(tiles_BnD: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    batch, n, dim = tiles_BnD.shape
    side = round(n**0.5)
    if side * side != n:
        raise ValueError(f"{n} tiles fill no square: repeat some, or give their cells")
    # Channels last, which is how the tokens lie in memory.
    grid = tiles_BnD.transpose(1, 2).view(batch, dim, side, side)
    out = F.conv2d(grid, weight, bias, padding=REACH, groups=dim)
    return out.flatten(2).transpose(1, 2)


def neighbours(cells_n2: Tensor) -> Tensor:
    """The tile in each cell of the 7 x 7 window around each tile: int64 (n, K), n where none is.

    Of several tiles in one cell the neighbours see the first; each is in its own middle.

    Args:
        cells_n2: int64, column and row of each tile.
    """
    n = len(cells_n2)
    place = cells_n2 - cells_n2.min(0).values + REACH
    width = int(place[:, 0].max()) + REACH + 1
    key_n = place[:, 1] * width + place[:, 0]
    known, order = key_n.sort(stable=True)
    step = torch.arange(-REACH, REACH + 1, device=cells_n2.device)
    wanted_nK = key_n[:, None] + (step[:, None] * width + step).flatten()
    found_nK = torch.searchsorted(known, wanted_nK).clamp(max=n - 1)
    near_nK = torch.where(known[found_nK] == wanted_nK, order[found_nK], n)
    near_nK[:, SIDE * SIDE // 2] = torch.arange(n, device=cells_n2.device)
    return near_nK


class _Gather(torch.autograd.Function):
    """y_i = sum_t w_t x_near(i, t), tap by tap: never more than a few times n x D numbers."""

    @staticmethod
    def forward(ctx: Any, x_nD: Tensor, weight_DK: Tensor, near_nK: Tensor) -> Tensor:
        ctx.save_for_backward(x_nD, weight_DK, near_nK)
        source = F.pad(x_nD, (0, 0, 0, 1))
        out = torch.zeros_like(x_nD)
        for tap, near_n in enumerate(near_nK.unbind(1)):
            out.addcmul_(source[near_n], weight_DK[:, tap])
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        (grad_nD,) = grads
        x_nD, weight_DK, near_nK = ctx.saved_tensors
        source = F.pad(x_nD, (0, 0, 0, 1))
        into = torch.zeros_like(source)
        weight = torch.empty_like(weight_DK)
        for tap, near_n in enumerate(near_nK.unbind(1)):
            weight[:, tap] = (source[near_n] * grad_nD).sum(0)
            into.index_add_(0, near_n, grad_nD * weight_DK[:, tap])
        return into[:-1], weight, None
