"""Stems: image -> tokens on a grid of ceil(H / patch) rows and ceil(W / patch) columns.

Shape suffixes: B batch, I input channels, H image rows, W image columns, C channels, N tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from isoattn.vision.models.grid import Grid, map_to_tokens

Stem = Literal["conv", "patchify"]
ImageSize = int | tuple[int, int]
"""Rows and columns, or the side of a square."""

_CONV_PATCHES = (2, 4, 8, 16)


def grid_of(image_size: ImageSize | Sequence[int], patch_size: int) -> Grid:
    """Token rows and columns of an image: each side divided by the patch, rounded up."""
    height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
    return math.ceil(height / patch_size), math.ceil(width / patch_size)


class ConvStem(nn.Module):
    """Convolutional stem: 3x3 convolutions of stride 2 with BatchNorm, a GELU between each two.

    patch 16 has widths C/8, C/4, C/2, C; patch 8, 4 and 2 start later in that row. The published
    models have patch 16 and 8; 4 and 2 follow the same rule for small images.

    Source: arXiv 2106.09681 section 4 and facebookresearch/xcit ``ConvPatchEmbed``.

    Args:
        in_chans: I.
        dim: C, divisible by patch / 2.
        patch_size: 2, 4, 8 or 16.

    Raises:
        ValueError: another patch size, or a width that cannot be halved often enough.
    """

    def __init__(self, in_chans: int, dim: int, patch_size: int) -> None:
        super().__init__()
        if patch_size not in _CONV_PATCHES:
            raise ValueError(
                f"The conv stem halves the image step by step: patch_size must be one of "
                f"{_CONV_PATCHES}, got {patch_size}. stem='patchify' takes any patch size."
            )
        if dim % (patch_size // 2):
            raise ValueError(
                f"The conv stem of patch {patch_size} starts at embed_dim / {patch_size // 2} "
                f"channels: embed_dim={dim} is not divisible by {patch_size // 2}"
            )
        steps = int(math.log2(patch_size))
        widths = [in_chans, *(dim // 2**step for step in reversed(range(steps)))]
        layers: list[nn.Module] = []
        for before, after in zip(widths, widths[1:], strict=False):
            conv = nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False)
            layers += [nn.Sequential(conv, nn.BatchNorm2d(after)), nn.GELU()]
        self.proj = nn.Sequential(*layers[:-1])

    def forward(self, image_BIHW: Tensor) -> tuple[Tensor, Grid]:
        """Tokens (B, N, C), row-major, and their grid."""
        # channels last: faster on the CPU, and the result already lies in the order of the tokens
        return map_to_tokens(self.proj(image_BIHW.contiguous(memory_format=torch.channels_last)))


class PatchifyStem(nn.Module):
    """One convolution whose kernel is its stride: non-overlapping patches, as in ViT.

    An image that the patch does not divide is padded with zeros below and on the right, so the
    grid follows the same rule as the conv stem's.

    Source: arXiv 2010.11929 section 3.1.

    Args:
        in_chans: I.
        dim: C.
        patch_size: side of a patch in pixels.
    """

    def __init__(self, in_chans: int, dim: int, patch_size: int) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.proj = nn.Conv2d(in_chans, dim, patch_size, stride=patch_size)

    def forward(self, image_BIHW: Tensor) -> tuple[Tensor, Grid]:
        """Tokens (B, N, C), row-major, and their grid."""
        height, width = image_BIHW.shape[-2:]
        below, right = -height % self.patch_size, -width % self.patch_size
        if below or right:
            image_BIHW = F.pad(image_BIHW, (0, right, 0, below))
        return map_to_tokens(self.proj(image_BIHW))


def make_stem(kind: Stem, in_chans: int, dim: int, patch_size: int) -> ConvStem | PatchifyStem:
    """The stem of a name.

    Raises:
        ValueError: unknown name.
    """
    if kind == "conv":
        return ConvStem(in_chans, dim, patch_size)
    if kind == "patchify":
        return PatchifyStem(in_chans, dim, patch_size)
    raise ValueError(f"stem must be 'conv' or 'patchify', got {kind!r}")
