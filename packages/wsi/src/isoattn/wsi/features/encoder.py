"""What turns tiles into features: the base of all encoders.

Shape suffixes: B tiles, C channels, H, W pixels, D features.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class EncoderError(ValueError):
    """An encoder that does not exist, cannot be fetched, or does not fit its weights."""


class Encoder(nn.Module):
    """Tiles -> features; frozen, always in evaluation mode.

    Args:
        name: what users call it; stored with the features.
        dim: D.
    """

    def __init__(self, name: str, dim: int) -> None:
        super().__init__()
        self.name = name
        self.dim = dim

    def encode(self, tiles_BHW3: Tensor) -> Tensor:
        """Features of a batch.

        Args:
            tiles_BHW3: uint8 RGB, on any device.

        Returns:
            float32 (B, D).
        """
        raise NotImplementedError

    @torch.inference_mode()
    def forward(self, tiles_BHW3: Tensor) -> Tensor:
        """Features (B, D) float32 of uint8 RGB tiles (B, H, W, 3).

        Raises:
            ValueError: another dtype or layout.
        """
        if tiles_BHW3.dtype != torch.uint8 or tiles_BHW3.ndim != 4 or tiles_BHW3.shape[-1] != 3:
            raise ValueError(
                "An encoder takes uint8 tiles (B, H, W, 3), got "
                f"{tiles_BHW3.dtype} {tuple(tiles_BHW3.shape)}"
            )
        features: Tensor = self.encode(tiles_BHW3).float()
        return features

    def facts(self) -> dict[str, Any]:
        """Plain data that decide the features; part of the configuration hash."""
        return {"encoder": self.name, "dim": self.dim, "weights": weights_digest(self)}


class Prepare(nn.Module):
    """Tiles to the input of a network: resized, cropped, normalised.

    Args:
        size: side of the input in pixels; ``None``: the tile's own.
        mean, std: of pixel values in [0, 1].
        resize: side to which the tile is resized before its centre is cut out to ``size``;
            ``None``: the whole tile is resized to ``size``, nothing is cut off.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        size: int | None,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        *,
        resize: int | None = None,
    ) -> None:
        super().__init__()
        self.size = size
        self.resize = resize
        self.register_buffer("mean", torch.tensor(mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(3, 1, 1), persistent=False)

    def forward(self, tiles_BHW3: Tensor) -> Tensor:
        """float32 (B, 3, size, size)."""
        tiles_BCHW = tiles_BHW3.permute(0, 3, 1, 2).float() / 255
        size = self.resize or self.size
        if size is not None and tiles_BCHW.shape[-2:] != (size, size):
            tiles_BCHW = F.interpolate(
                tiles_BCHW, (size, size), mode="bicubic", antialias=True, align_corners=False
            ).clamp(0, 1)
        if self.resize is not None and self.size is not None:
            first = (self.resize - self.size) // 2
            tiles_BCHW = tiles_BCHW[..., first : first + self.size, first : first + self.size]
        return (tiles_BCHW - self.mean) / self.std

    def facts(self) -> dict[str, Any]:
        """Sizes and normalisation."""
        return {
            "input_size": self.size or "tile",
            "resize": self.resize,
            "mean": [round(v, 6) for v in self.mean.flatten().tolist()],
            "std": [round(v, 6) for v in self.std.flatten().tolist()],
        }


def weights_digest(module: nn.Module) -> str:
    """SHA-256 over names, dtypes and values of all parameters and persistent buffers."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        data = tensor.detach().cpu().contiguous()
        digest.update(f"{name}{data.dtype}{tuple(data.shape)}".encode())
        digest.update(data.reshape(-1).view(torch.uint8).numpy().data if data.numel() else b"")
    return digest.hexdigest()
