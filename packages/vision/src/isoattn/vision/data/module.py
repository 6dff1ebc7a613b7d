"""The Lightning data module that all image data of this package derive from.

It owns split, decoding, augmentation and order, and knows nothing of models.
"""

from __future__ import annotations

import hashlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from isoattn.core.training import EpochBatchSampler, ResumableLoader
from isoattn.vision.data.batch import Batch, keep
from isoattn.vision.data.pictures import PredictFolder
from isoattn.vision.data.sources import SPLITS, Split
from isoattn.vision.data.transforms import Normalise, ResizeCentreCrop

log = logging.getLogger(__name__)


class ImageDataModule(LightningDataModule, ABC):
    """Labelled images in three splits; what a model must know of them is known after construction.

    Batches are dicts: ``image`` float32 (B, C, H, W), normalised; ``label`` int64 (B,); ``index``
    int64 (B,), an id that belongs to the item whatever the order, worker or epoch.

    Args:
        class_names: label i is the class ``class_names[i]``.
        in_chans: C.
        image_size: (H, W).
        mean, std: of pixel values in [0, 1], one a channel; they belong to the model's checkpoint.
        batch_size: training batch.
        eval_batch_size: batch of the other loaders; ``None``: four times ``batch_size``.
        seed: order and augmentation of training. ``None``: ``data_seed``, which whoever runs the
            module sets before training.
        num_workers: loader processes.
        drop_last: leave out a last training batch that is not full. Off: no image is dropped.
        predict_dir: folder to predict; ``None`` predicts the test split.
        crop_pct: part of a resized picture that evaluation and prediction keep.
    """

    def __init__(
        self,
        *,
        class_names: Sequence[str],
        in_chans: int,
        image_size: tuple[int, int],
        mean: Sequence[float],
        std: Sequence[float],
        batch_size: int,
        eval_batch_size: int | None,
        seed: int | None,
        num_workers: int,
        drop_last: bool,
        predict_dir: str | None,
        crop_pct: float = 1.0,
    ) -> None:
        super().__init__()
        self.class_names = list(class_names)
        self.in_chans = in_chans
        self.image_size = image_size
        self.mean = tuple(mean)
        self.std = tuple(std)
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size or 4 * batch_size
        self.seed = seed
        self.data_seed: int | None = None
        self.num_workers = num_workers
        self.drop_last = drop_last
        self.predict_dir = predict_dir
        self.crop_pct = crop_pct
        Normalise(self.mean, self.std)  # reports what does not fit before any data are read
        self._own_classes = list(class_names)
        self._plain: dict[Split, Dataset[Batch]] = {}

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @abstractmethod
    def _build(self, split: Split, augment_seed: int | None) -> Dataset[Batch]:
        """A split; augmented where a seed is given. Labels go through :meth:`_relabel`."""

    @abstractmethod
    def _describe(self) -> dict[str, Any]:
        """What decides the pixels besides the files: options of split and transforms."""

    def skipped(self) -> dict[str, int]:
        """Files left out, by reason; empty where nothing can be left out."""
        return (
            {"unreadable in predict_dir": len(self.predict_folder.bad)} if self.predict_dir else {}
        )

    def dataset(self, split: Split) -> Dataset[Batch]:
        """A split without augmentation, built once."""
        if split not in self._plain:
            self._plain[split] = self._build(split, None)
        return self._plain[split]

    def setup(self, stage: str | None = None) -> None:
        """Build what the stage needs; splits are otherwise built when first asked for."""
        needed: dict[str | None, tuple[Split, ...]] = {
            "fit": ("train", "val"),
            "validate": ("val",),
            "test": ("test",),
            "predict": (),
        }
        for split in needed.get(stage, ()):
            self.dataset(split)

    def check_classes(self, expected: Sequence[str]) -> None:
        """Make labels mean what a model's class list says, by name, or stop.

        After the call ``class_names`` is ``expected``, and each label is the position of its own
        class name in it. Where that changes any number it is logged.

        Args:
            expected: the class list that travels with the model.

        Raises:
            ValueError: the data have a class that the model does not know; names it.
        """
        unknown = sorted(set(self._own_classes) - set(expected))
        if len(set(expected)) != len(expected):
            raise ValueError(f"The model's class list has a name twice: {sorted(expected)}")
        if unknown:
            raise ValueError(
                f"The data have {len(unknown)} class(es) that the model lacks: {unknown[:10]}. "
                f"The model knows {sorted(expected)[:10]}{' ...' if len(expected) > 10 else ''}. "
                "Rename the folders, or train a head for these classes."
            )
        if self._own_classes and list(expected) != self._own_classes:
            log.warning(
                "Class order of the data differs from the model's; labels are mapped by name: %s",
                {n: (self._own_classes.index(n), expected.index(n)) for n in self._own_classes},
            )
        self.class_names = list(expected)
        self._plain.clear()

    def _relabel(self, labels_N: Tensor) -> Tensor:
        if self.class_names == self._own_classes:
            return labels_N
        positions = [self.class_names.index(name) for name in self._own_classes]
        return torch.tensor(positions)[labels_N]

    def fingerprint(self) -> str:
        """SHA-256 over images, labels, split and transforms; not over seed and batch size."""
        digest = hashlib.sha256()
        facts = self._describe() | {
            "data": type(self).__name__,
            "classes": self.class_names,
            "image_size": self.image_size,
            "in_chans": self.in_chans,
            "mean": self.mean,
            "std": self.std,
        }
        digest.update(repr(sorted(facts.items())).encode())
        for split in SPLITS:
            digest.update(split.encode())
            self._digest(split, digest.update)
        return digest.hexdigest()

    @abstractmethod
    def _digest(self, split: Split, update: Any) -> None:
        """Feed what identifies the items of a split to a hash."""

    def train_dataloader(self) -> ResumableLoader[Batch]:
        """Shuffled, augmented, resumable; a function of (seed, epoch)."""
        seed = self.seed if self.seed is not None else self.data_seed
        if seed is None:
            raise ValueError(
                f"{type(self).__name__} has no seed: pass seed=..., or set data_seed to the run's"
            )
        dataset = self._build("train", seed)
        trainer = self.trainer
        sampler = EpochBatchSampler(
            len(dataset),  # type: ignore[arg-type]
            self.batch_size,
            seed=seed,
            # Overfitting a few batches means the same few batches in every epoch.
            shuffle=not getattr(trainer, "overfit_batches", 0),
            drop_last=self.drop_last,
            rank=trainer.global_rank if trainer is not None else 0,
            world_size=trainer.world_size if trainer is not None else 1,
        )
        return ResumableLoader(dataset, sampler, collate_fn=keep, num_workers=self.num_workers)

    def plain_dataloader(self, split: Split) -> DataLoader[Batch]:
        """A split in its own order, without augmentation."""
        return self._in_order(self.dataset(split))

    def val_dataloader(self) -> DataLoader[Batch]:
        """The validation split in its own order."""
        return self.plain_dataloader("val")

    def test_dataloader(self) -> DataLoader[Batch]:
        """The test split in its own order."""
        return self.plain_dataloader("test")

    @cached_property
    def predict_folder(self) -> PredictFolder:
        """The images of ``predict_dir``, prepared as in evaluation; ``bad`` names the others."""
        if self.predict_dir is None:
            raise ValueError("There is no folder to predict: set predict_dir")
        return PredictFolder(
            self.predict_dir,
            transform=ResizeCentreCrop(self.image_size, crop_pct=self.crop_pct),
            normalise=Normalise(self.mean, self.std),
            mode="L" if self.in_chans == 1 else "RGB",
        )

    def predict_dataloader(self) -> DataLoader[Batch]:
        """``image``, ``index`` and ``path`` of the images in ``predict_dir``, or the test split."""
        if self.predict_dir is None:
            return self.plain_dataloader("test")
        return self._in_order(self.predict_folder)

    def _in_order(self, dataset: Dataset[Batch]) -> DataLoader[Batch]:
        return DataLoader(
            dataset,
            batch_size=self.eval_batch_size,
            collate_fn=keep,
            num_workers=self.num_workers,
            # Its own generator: each iteration would otherwise draw from the global one.
            generator=torch.Generator(),
        )
