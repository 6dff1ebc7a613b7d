"""Small image files and pairs."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image


def picture(seed: int, size: tuple[int, int] = (40, 48)) -> Image.Image:
    """Smooth grey noise (H, W) that no other seed gives."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(1, 1, -(-size[0] // 4) + 1, -(-size[1] // 4) + 1, generator=generator)
    fine = torch.nn.functional.interpolate(coarse, scale_factor=4, mode="bilinear")
    pixels = (255 * fine[0, 0, : size[0], : size[1]]).numpy().astype(np.uint8)
    return Image.fromarray(pixels)


@pytest.fixture
def write_picture() -> Callable[..., Path]:
    """``write_picture(path, seed=0, size=(40, 48))``."""

    def write(path: Path, seed: int = 0, size: tuple[int, int] = (40, 48)) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(seed, size).save(path)
        return path

    return write
