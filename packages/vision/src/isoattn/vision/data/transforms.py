"""From a picture to a uint8 tensor of the model's size; randomness from an item's generator.

Shape suffixes: B batch, C channels, H, W pixels.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

_MOST_PIXELS = 2**26


class Normalise:
    """uint8 (B, C, H, W) -> float32 (B, C, H, W): ``(x / 255 - mean) / std``.

    Args:
        mean, std: of pixel values in [0, 1], one a channel.

    Raises:
        ValueError: lengths that differ, or a std that is not positive.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        if len(mean) != len(std) or min(std) <= 0:
            raise ValueError(
                f"mean and std need one value a channel, std above 0; got mean={list(mean)}, "
                f"std={list(std)}"
            )
        std_C = torch.tensor(tuple(std))
        # One multiplication and one addition instead of three passes.
        self._scale_C11 = (1 / (255 * std_C))[:, None, None]
        self._bias_C11 = (-torch.tensor(tuple(mean)) / std_C)[:, None, None]

    def __call__(self, images_BCHW: Tensor) -> Tensor:
        """Normalise a batch."""
        return images_BCHW * self._scale_C11 + self._bias_C11


def to_tensor(image: Image.Image) -> Tensor:
    """An 8-bit picture as uint8 (C, H, W)."""
    pixels = torch.from_numpy(np.array(image))
    return pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1).contiguous()


class ResizeCentreCrop:
    """Evaluation: bicubic resize so that the picture covers the size, then the centre.

    Args:
        size: (H, W) of the result.
        crop_pct: part of the resized picture's tighter side that is kept. 1.0 is what XCiT was
            evaluated with; 0.875 gives another accuracy.
    """

    def __init__(self, size: tuple[int, int], *, crop_pct: float = 1.0) -> None:
        if not 0 < crop_pct <= 1:
            raise ValueError(f"crop_pct must lie in (0, 1], got {crop_pct}")
        self.size = size
        self.crop_pct = crop_pct

    def __call__(self, image: Image.Image) -> Image.Image:
        """Picture of any size -> picture of ``size``."""
        height, width = self.size
        cover_h, cover_w = math.floor(height / self.crop_pct), math.floor(width / self.crop_pct)
        scale = max(cover_h / image.height, cover_w / image.width)
        new_w = max(cover_w, int(image.width * scale))
        new_h = max(cover_h, int(image.height * scale))
        if new_w * new_h > _MOST_PIXELS:
            # A strip of a picture would grow beyond memory, all but its centre for nothing.
            box_w, box_h = width / scale, height / scale
            left, top = (image.width - box_w) / 2, (image.height - box_h) / 2
            box = (left, top, left + box_w, top + box_h)
            return image.resize((width, height), Image.Resampling.BICUBIC, box=box)
        if (new_w, new_h) != image.size:
            image = image.resize((new_w, new_h), Image.Resampling.BICUBIC)
        left, top = round((new_w - width) / 2), round((new_h - height) / 2)
        return image.crop((left, top, left + width, top + height))


class RandomCropFlip:
    """Training: a box of random area and aspect ratio, resized to the size; mirrored half the time.

    Args:
        size: (H, W) of the result.
        scale: smallest and largest area of the box as a part of the picture.
        ratio: smallest and largest aspect ratio, width by height.
        flip: mirror left-right with probability one half.
    """

    def __init__(
        self,
        size: tuple[int, int],
        *,
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        flip: bool = True,
    ) -> None:
        if not 0 < scale[0] <= scale[1] <= 1 or not 0 < ratio[0] <= ratio[1]:
            raise ValueError(
                f"A random crop needs 0 < scale[0] <= scale[1] <= 1 and 0 < ratio[0] <= ratio[1]; "
                f"got scale={scale}, ratio={ratio}"
            )
        self.size = size
        self.scale = scale
        self.ratio = ratio
        self.flip = flip

    def __call__(self, image: Image.Image, generator: torch.Generator) -> Image.Image:
        """Picture of any size -> picture of ``size``; random only through the generator."""
        width, height, left, top = self._box(image.width, image.height, generator)
        image = image.resize(
            self.size[::-1],
            Image.Resampling.BICUBIC,
            box=(left, top, min(left + width, image.width), min(top + height, image.height)),
        )
        if self.flip and float(torch.rand((), generator=generator)) < 0.5:
            return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return image

    def _box(
        self, width: int, height: int, generator: torch.Generator
    ) -> tuple[float, float, float, float]:
        """Width, height, left, top: drawn until a box fits, ten times at most, then the centre."""
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for _ in range(10):
            area, aspect, x, y = torch.rand(4, generator=generator).tolist()
            area = (self.scale[0] + area * (self.scale[1] - self.scale[0])) * width * height
            aspect = math.exp(low + aspect * (high - low))
            box_w, box_h = math.sqrt(area * aspect), math.sqrt(area / aspect)
            if box_w <= width and box_h <= height:
                return box_w, box_h, x * (width - box_w), y * (height - box_h)
        box_w = min(width, height * self.ratio[1])
        box_h = min(height, width / self.ratio[0])
        return box_w, box_h, (width - box_w) / 2, (height - box_h) / 2


@contextmanager
def scoped_seed(seed: int) -> Iterator[None]:
    """Seed Python, NumPy and torch inside the block; outside, their states are as they were.

    For code of others that draws from global generators. Not for threads.
    """
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.set_rng_state(torch.Generator().manual_seed(seed).get_state())
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


class RandAugment:
    """timm's RandAugment, made a function of the item's generator.

    Args:
        policy: timm's configuration string, such as ``"rand-m9-mstd0.5-inc1"`` (DeiT's and XCiT's).
        size: (H, W), which sets the reach of its translations.
        mean: of pixel values in [0, 1]; fills what a rotation uncovers.
    """

    def __init__(self, policy: str, size: tuple[int, int], mean: Sequence[float]) -> None:
        from timm.data.auto_augment import rand_augment_transform

        colour = tuple(round(255 * m) for m in mean) if len(mean) == 3 else (128, 128, 128)
        settings: dict[str, Any] = {
            "translate_const": int(min(size) * 0.45),
            "img_mean": colour,
            "interpolation": Image.Resampling.BICUBIC,
        }
        self._apply = rand_augment_transform(policy, settings)

    def __call__(self, image: Image.Image, generator: torch.Generator) -> Image.Image:
        """RGB picture -> RGB picture of the same size."""
        seed = int(torch.randint(2**63 - 1, (), generator=generator))
        with scoped_seed(seed):
            changed: Image.Image = self._apply(image)
        return changed
