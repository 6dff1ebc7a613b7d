"""Folders of small real image files."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

Maker = Callable[..., Path]


def write_image(path: Path, seed: int, size: tuple[int, int] = (20, 16)) -> None:
    """A noisy picture (width, height) that no other seed gives."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)


@pytest.fixture
def make_folder(tmp_path: Path) -> Maker:
    """``make_folder("data/train", classes, each)``: class folders with PNG images."""

    def make(below: str, classes: list[str], each: int = 3) -> Path:
        root = tmp_path / below
        for number, name in enumerate(classes):
            for i in range(each):
                seed = hash_of(below) + 1000 * number + i
                write_image(root / name / f"{i:02d}.png", seed, (20 + i, 16 + number))
        return root

    return make


def hash_of(text: str) -> int:
    return sum(ord(letter) * 31**i for i, letter in enumerate(text)) % 100_000
