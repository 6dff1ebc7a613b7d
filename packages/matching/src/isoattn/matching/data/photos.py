"""Photographs to warp: those inside installed packages, or any folder of images.

The packaged ones are read in place: scikit-image and scikit-learn are not imported.

Shape suffixes: H, W pixels.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from isoattn.core.training import derive_seed
from isoattn.matching.data.decode import SUFFIXES, DecodeError, decode_grey, to_unit

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")

SKIMAGE = ("skimage", "data")
SKLEARN = ("sklearn", "datasets/images")
TRAIN_PHOTOS = {
    "astronaut": (*SKIMAGE, "astronaut.png"),
    "camera": (*SKIMAGE, "camera.png"),
    "cell": (*SKIMAGE, "cell.png"),
    "china": (*SKLEARN, "china.jpg"),
    "clock_motion": (*SKIMAGE, "clock_motion.png"),
    "coins": (*SKIMAGE, "coins.png"),
    "horse": (*SKIMAGE, "horse.png"),
    "hubble_deep_field": (*SKIMAGE, "hubble_deep_field.jpg"),
    "ihc": (*SKIMAGE, "ihc.png"),
    "microaneurysms": (*SKIMAGE, "microaneurysms.png"),
    "moon": (*SKIMAGE, "moon.png"),
    "page": (*SKIMAGE, "page.png"),
    "retina": (*SKIMAGE, "retina.jpg"),
    "text": (*SKIMAGE, "text.png"),
}
HELD_OUT_PHOTOS = {
    "chelsea": (*SKIMAGE, "chelsea.png"),
    "coffee": (*SKIMAGE, "coffee.png"),
    "flower": (*SKLEARN, "flower.jpg"),
    "rocket": (*SKIMAGE, "rocket.jpg"),
}
TEXTURES = {
    "brick": (*SKIMAGE, "brick.png"),
    "checker": None,
    "grass": (*SKIMAGE, "grass.png"),
    "gravel": (*SKIMAGE, "gravel.png"),
}

HELD_OUT_SHARES = 3
SMALLEST = 16
"""Pixels along the shorter side of a photo."""

Box = tuple[float, float, float, float]
"""Left, top, right, bottom as parts of the whole."""

WHOLE: Box = (0.0, 0.0, 1.0, 1.0)
# No pixel serves two splits: the held-out photos are halved between validation and test, the
# textures (of which there are too few to hold any out) are divided among all three.
PHOTO_BOXES: dict[Split, Box] = {
    "train": WHOLE,
    "val": (0.0, 0.0, 0.5, 1.0),
    "test": (0.5, 0.0, 1.0, 1.0),
}
TEXTURE_BOXES: dict[Split, Box] = {
    "train": (0.0, 0.0, 0.5, 1.0),
    "val": (0.5, 0.0, 1.0, 0.5),
    "test": (0.5, 0.5, 1.0, 1.0),
}


@dataclass(frozen=True)
class Photo:
    """A grey photograph and its halvings.

    Args:
        name: of the photo.
        levels: float32 (H, W) in [0, 1]; each half the size of the one before.
        texture: whether it repeats itself.
    """

    name: str
    levels: tuple[Tensor, ...]
    texture: bool = False

    @property
    def size(self) -> tuple[int, int]:
        """(H, W) of the first level."""
        height, width = self.levels[0].shape
        return height, width


@dataclass(frozen=True)
class PhotoFile:
    """Where a photo comes from, and which part of it is used.

    Args:
        name: of the photo.
        read: gives the whole grey image.
        box: the part.
        texture: whether it repeats itself.
        path: the file; ``None`` for a drawn one.
    """

    name: str
    read: Callable[[], Image.Image]
    box: Box = WHOLE
    texture: bool = False
    path: Path | None = None

    def load(self, max_side: int) -> Photo:
        """The photo, its longer side at most ``max_side``.

        Raises:
            DecodeError: unreadable, or too small to take views of.
        """
        image = self.read()
        if self.box != WHOLE:
            left, top, right, bottom = self.box
            width, height = image.size
            image = image.crop(
                (round(left * width), round(top * height))
                + (round(right * width), round(bottom * height))
            )
        if min(image.size) < SMALLEST:
            reason = f"is {image.width} x {image.height}, views need {SMALLEST} pixels a side"
            raise DecodeError(str(self.path or self.name), reason)
        if max(image.size) > max_side:
            image.thumbnail((max_side, max_side), Image.Resampling.BICUBIC, reducing_gap=3.0)
        return Photo(self.name, halvings(to_unit(image)), self.texture)


def halvings(image_HW: Tensor) -> tuple[Tensor, ...]:
    """An image and its halvings by means of 2 x 2 pixels, down to 16 pixels a side."""
    levels = [image_HW]
    while min(levels[-1].shape) >= 32:
        levels.append(F.avg_pool2d(levels[-1][None], 2)[0])
    return tuple(levels)


def builtin_photos(split: Split, textures: bool = True) -> list[PhotoFile]:
    """The packaged photos of a split, one entry for each share of the pairs.

    No pixel is in two splits. A held-out photo has three shares, so that textures are a quarter of
    the pairs that are scored, about as many as of those that are trained on.

    Raises:
        FileNotFoundError: a package or one of its files is not installed; names it.
    """
    photos = TRAIN_PHOTOS if split == "train" else HELD_OUT_PHOTOS
    found = [_packaged(name, at, PHOTO_BOXES[split], False) for name, at in photos.items()]
    if split != "train":
        found *= HELD_OUT_SHARES
    if textures:
        found += [_packaged(name, at, TEXTURE_BOXES[split], True) for name, at in TEXTURES.items()]
    return found


def package_file(package: str, folder: str, file: str) -> Path:
    """A file inside an installed package, which is not imported.

    Raises:
        FileNotFoundError: names the package, and the file where that is what is missing.
    """
    names = {"skimage": "scikit-image", "sklearn": "scikit-learn"}
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise FileNotFoundError(
            f"{file} comes with the package {names.get(package, package)}, which is not installed"
        )
    path = Path(found.submodule_search_locations[0]) / folder / file
    if not path.is_file():
        raise FileNotFoundError(
            f"The installed {names.get(package, package)} has no file {folder}/{file}: install "
            "another version, or give a folder of images"
        )
    return path


def _packaged(name: str, at: tuple[str, str, str] | None, box: Box, texture: bool) -> PhotoFile:
    if at is None:
        return PhotoFile(name, checkerboard, box, texture)
    path = package_file(*at)
    return PhotoFile(name, partial(decode_grey, path), box, texture, path)


@lru_cache(maxsize=1)
def checkerboard(side: int = 512, square: int = 16) -> Image.Image:
    """Light and dark squares, each of its own grey, so that a place can be told from its like."""
    number = side // square
    generator = torch.Generator().manual_seed(derive_seed(0, "checkerboard"))
    rows, columns = torch.meshgrid(torch.arange(number), torch.arange(number), indexing="ij")
    light = (rows + columns) % 2
    greys = 40 + 150 * light + (30 * torch.rand(number, number, generator=generator)).long()
    pixels = greys.to(torch.uint8).repeat_interleave(square, 0).repeat_interleave(square, 1)
    return Image.fromarray(pixels.numpy())


def folder_photos(root: Path) -> dict[Split, list[PhotoFile]]:
    """The images of ``root/train``, ``root/val`` and ``root/test``, or all below root as train.

    Raises:
        ValueError: no folder, or no image in it.
    """
    if not root.is_dir():
        raise ValueError(f"{root} is not a folder: give one with images")
    parts = {split: root / split for split in SPLITS if (root / split).is_dir()}
    folders: dict[Split, Path] = parts if "train" in parts else {"train": root}
    found = {split: [_own(root, path) for path in _images(at)] for split, at in folders.items()}
    for split, photos in found.items():
        if not photos:
            raise ValueError(
                f"{folders[split]} has no image (suffixes: {' '.join(sorted(SUFFIXES))})"
            )
    return found


def divide(
    photos: Sequence[PhotoFile], fraction: float, *, seed: int, stream: str
) -> tuple[list[PhotoFile], list[PhotoFile]]:
    """Put a part of the photos aside, at least one of either.

    Raises:
        ValueError: fewer than two photos, or a fraction outside (0, 1).
    """
    if len(photos) < 2 or not 0 < fraction < 1:
        raise ValueError(
            f"{len(photos)} photos cannot be divided by the fraction {fraction} for {stream}: "
            "give two photos or more and a fraction in (0, 1), or folders train, val and test"
        )
    generator = torch.Generator().manual_seed(derive_seed(seed, stream))
    order = torch.randperm(len(photos), generator=generator).tolist()
    count = min(max(round(len(photos) * fraction), 1), len(photos) - 1)
    aside = set(order[:count])
    kept = [photo for number, photo in enumerate(photos) if number not in aside]
    return kept, [photos[number] for number in sorted(aside)]


def _images(folder: Path) -> list[Path]:
    """Visible image files below a folder, sorted; links to folders are not followed."""
    found: list[Path] = []
    for current, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found.extend(
            Path(current) / name
            for name in sorted(names)
            if not name.startswith(".") and Path(name).suffix.lower() in SUFFIXES
        )
    return found


def _own(root: Path, path: Path) -> PhotoFile:
    return PhotoFile(path.relative_to(root).as_posix(), partial(decode_grey, path), path=path)


def level_for(photo: Photo, factor: float) -> int:
    """Level whose pixels are nearest in size to a view's: ``factor`` photo pixels each."""
    wanted = round(math.log2(max(factor, 1.0)))
    return min(wanted, len(photo.levels) - 1)
