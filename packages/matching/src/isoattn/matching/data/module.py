"""The Lightning data module of image pairs: sources, seeded loaders, a fingerprint."""

from __future__ import annotations

import hashlib
import logging
from functools import partial
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, Dataset

from isoattn.core.training import EpochBatchSampler, ResumableLoader
from isoattn.matching.data.batch import Pair, PairBatch, collate
from isoattn.matching.data.photos import SPLITS, Split
from isoattn.matching.data.source import PairSource
from isoattn.matching.data.synthetic import BuiltinPairs

log = logging.getLogger(__name__)

# Beyond this many bytes a fingerprint covers names and sizes, not contents.
CONTENT_LIMIT = 2**28


class PairData(LightningDataModule):
    """Pairs of images in padded batches.

    Batches are :class:`~isoattn.matching.data.batch.PairBatch`; a sample of training depends on
    (seed, epoch, index) alone.

    Args:
        source: of training, and of the other splits where it has its own; ``None``: homography
            pairs of the photographs that ship with installed packages.
        val_source, test_source: of validation and test, where they are others.
        predict_source: of prediction; ``None``: the test pairs.
        batch_size: pairs in a training batch.
        eval_batch_size: pairs in a batch of the other loaders; ``None``: ``batch_size``.
        pad_to: (H, W) to pad every training image to; ``None``: the largest of its batch.
        seed: of what is drawn and of its order. ``None``: ``data_seed``, which whoever runs the
            module sets.
        num_workers: loader processes.
        drop_last: leave out a last training batch that is not full.
    """

    def __init__(
        self,
        source: PairSource | None = None,
        val_source: PairSource | None = None,
        test_source: PairSource | None = None,
        predict_source: PairSource | None = None,
        batch_size: int = 8,
        eval_batch_size: int | None = None,
        pad_to: tuple[int, int] | None = None,
        seed: int | None = None,
        num_workers: int = 0,
        drop_last: bool = False,
    ) -> None:
        super().__init__()
        self.source = source if source is not None else BuiltinPairs()
        self.val_source = val_source
        self.test_source = test_source
        self.predict_source = predict_source
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size or batch_size
        self.pad_to = None if pad_to is None else (int(pad_to[0]), int(pad_to[1]))
        self.seed = seed
        self.data_seed: int | None = None
        self.num_workers = num_workers
        self.drop_last = drop_last
        self._plain: dict[Split, Dataset[Pair]] = {}

    def source_of(self, split: Split) -> PairSource:
        """The source of a split.

        Raises:
            ValueError: none was given, and that of training has no such part.
        """
        own = {"train": self.source, "val": self.val_source, "test": self.test_source}[split]
        if own is not None:
            return own
        if split not in self.source.splits:
            raise ValueError(
                f"{type(self.source).__name__} has no {split} pairs of its own: set "
                f"{split}_source, so that no pair is trained on and scored"
            )
        return self.source

    def dataset(self, split: Split) -> Dataset[Pair]:
        """The fixed pairs of a split, in order, built once."""
        if split not in self._plain:
            self._plain[split] = self.source_of(split).pairs(split, 0)
        return self._plain[split]

    def setup(self, stage: str | None = None) -> None:
        """Find the pairs that the stage needs.

        Raises:
            ValueError: a source has nothing to train on, or there is no source for a split.
        """
        needed: dict[str | None, tuple[Split, ...]] = {
            "fit": ("val",),
            "validate": ("val",),
            "test": ("test",),
        }
        if stage == "fit" and not self.source.labelled:
            raise ValueError(
                f"{type(self.source).__name__} has no ground truth to train on: it needs "
                "homographies, depth or given matches"
            )
        for split in needed.get(stage, ()):
            self.dataset(split)
        for reason, count in self.skipped().items():
            log.warning("%d images left out: %s", count, reason)

    def skipped(self) -> dict[str, int]:
        """What the sources left out, by reason."""
        counts: dict[str, int] = {}
        for source in (self.source, self.val_source, self.test_source, self.predict_source):
            if source is not None:
                for reason, count in source.skipped().items():
                    counts[reason] = counts.get(reason, 0) + count
        return counts

    def fingerprint(self) -> str:
        """SHA-256 over files and options of all splits; not over seed and batch size."""
        digest = hashlib.sha256()
        for split in SPLITS:
            try:
                source = self.source_of(split)
            except ValueError:
                continue
            facts = {"split": split, "source": type(source).__name__} | source.describe()
            digest.update(repr(sorted(facts.items())).encode())
            files = source.files(split)
            sizes = [file.stat().st_size for file in files]
            for file, size in zip(files, sizes, strict=True):
                digest.update(f"{file.name}\0{size}\0".encode())
                if sum(sizes) <= CONTENT_LIMIT:
                    digest.update(file.read_bytes())
        return digest.hexdigest()

    def train_dataloader(self) -> ResumableLoader[PairBatch]:
        """Shuffled and resumable; a function of (seed, epoch).

        Raises:
            ValueError: no seed.
        """
        seed = self.seed if self.seed is not None else self.data_seed
        if seed is None:
            raise ValueError("PairData has no seed: pass seed=..., or set data_seed to the run's")
        dataset: Dataset[Any] = self.source.pairs("train", seed)
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
        return ResumableLoader(
            dataset,
            sampler,
            collate_fn=partial(collate, pad_to=self.pad_to),
            num_workers=self.num_workers,
        )

    def val_dataloader(self) -> DataLoader[PairBatch]:
        """The validation pairs, in order."""
        return self.plain_dataloader("val")

    def test_dataloader(self) -> DataLoader[PairBatch]:
        """The test pairs, in order."""
        return self.plain_dataloader("test")

    def predict_dataloader(self) -> DataLoader[PairBatch]:
        """The pairs of ``predict_source``, or those of the test."""
        if self.predict_source is None:
            return self.plain_dataloader("test")
        return self._in_order(self.predict_source.pairs("test", 0))

    def plain_dataloader(self, split: Split) -> DataLoader[PairBatch]:
        """The fixed pairs of a split, in order."""
        return self._in_order(self.dataset(split))

    def _in_order(self, dataset: Dataset[Any]) -> DataLoader[PairBatch]:
        return DataLoader(
            dataset,
            batch_size=self.eval_batch_size,
            collate_fn=collate,
            num_workers=self.num_workers,
            # Its own generator: each iteration would otherwise draw from the global one.
            generator=torch.Generator(),
        )
