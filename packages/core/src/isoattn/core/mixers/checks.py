"""What every mixer checks of its input."""

from __future__ import annotations

import torch
from torch import Tensor


def check_tokens(
    name: str, dim: int, x: Tensor, mask: Tensor | None, what: str = "x", mask_name: str = "mask"
) -> None:
    """Refuse what is not a floating point (batch, tokens, dim) with a bool (batch, tokens).

    Args:
        name: of the mixer.
        dim: channels it takes.
        x: the tokens.
        mask: True = keep, or ``None``.
        what: the argument's name for x.
        mask_name: the argument's name for the mask.

    Raises:
        ValueError: says what was got.
    """
    if x.ndim != 3 or x.shape[2] != dim or not x.is_floating_point():
        raise ValueError(
            f"{name}: {what} must be floating point (batch, tokens, {dim}); "
            f"got {x.dtype} {tuple(x.shape)}"
        )
    if mask is not None and (mask.dtype != torch.bool or mask.shape != x.shape[:2]):
        raise ValueError(
            f"{name}: {mask_name} must be bool (batch, tokens) = {tuple(x.shape[:2])}, "
            f"True = keep; got {mask.dtype} {tuple(mask.shape)}"
        )


def zero_pads(x_BNC: Tensor, mask_BN: Tensor | None) -> Tensor:
    """Copy with padded tokens 0, whatever they held; x itself without a mask."""
    return x_BNC if mask_BN is None else x_BNC.masked_fill(~mask_BN[:, :, None], 0.0)
