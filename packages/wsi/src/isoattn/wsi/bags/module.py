"""The Lightning data module of bag tasks."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Literal, get_args

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader

from isoattn.core.training import EpochBatchSampler, ResumableLoader
from isoattn.core.training.digest import BatchDigest
from isoattn.wsi.bags.bag import UNLABELLED, collate
from isoattn.wsi.bags.dataset import BagDataset, Item, moments
from isoattn.wsi.bags.split import class_weights
from isoattn.wsi.bags.synthetic import NeedleBags
from isoattn.wsi.bags.task import BagSource, BagTask, Part, Split

log = logging.getLogger(__name__)

Sampling = Literal["shuffle", "weighted", "ordered"]


class BagData(LightningDataModule):
    """A bag task in batches; what a model must know of it is known once it is loaded.

    Batches are :class:`~isoattn.wsi.bags.bag.BagBatch`. Bags are read when they are needed, so they
    need not fit into memory together.

    Args:
        source: of the task; ``None``: :class:`~isoattn.wsi.bags.synthetic.NeedleBags`, made from a
            seed.
        batch_size: bags of a batch; the released TransMIL has 1, and two batches a step
            (``accumulate_grad_batches`` of the trainer).
        max_tokens: most tiles of a bag in training, drawn anew each epoch; ``None``: all.
        max_eval_tokens: the same for validation, test and prediction, drawn once.
        sampling: ``shuffle``: each bag once an epoch; ``weighted``: as many draws with replacement,
            each class as often; ``ordered``: each once, as they come.
        predict_source: other bags to predict, with the same features; ``None``: the test part, or
            all bags of a source without labels.
        seed: of order and draws. ``None``: ``data_seed``, which whoever runs the module sets.
        num_workers: loader processes.

    Raises:
        ValueError: an unknown sampling, or sizes below 1.
    """

    def __init__(
        self,
        source: BagSource | None = None,
        batch_size: int = 1,
        max_tokens: int | None = None,
        max_eval_tokens: int | None = None,
        sampling: Sampling = "shuffle",
        predict_source: BagSource | None = None,
        seed: int | None = None,
        num_workers: int = 0,
    ) -> None:
        super().__init__()
        if sampling not in get_args(Sampling):
            raise ValueError(
                f"sampling must be one of {', '.join(get_args(Sampling))}, got {sampling!r}"
            )
        for name, value in (
            ("batch_size", batch_size),
            ("max_tokens", max_tokens),
            ("max_eval_tokens", max_eval_tokens),
        ):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be 1 or more, got {value}")
        self.source = source if source is not None else NeedleBags()
        self.batch_size = batch_size
        self.max_tokens = max_tokens
        self.max_eval_tokens = max_eval_tokens
        self.sampling: Sampling = sampling
        self.predict_source = predict_source
        self.seed = seed
        self.data_seed: int | None = None
        self.num_workers = num_workers
        self._classes: tuple[str, ...] | None = None

    @cached_property
    def _own_task(self) -> BagTask:
        return self.source.load()

    @property
    def task(self) -> BagTask:
        """The task; loaded when first asked for."""
        return _relabelled(self._own_task, self._classes)

    @property
    def class_names(self) -> list[str]:
        """Names of the outputs, in their order."""
        return list(self._classes or self._own_task.classes)

    @property
    def num_classes(self) -> int:
        """Number of outputs of a model."""
        return len(self.class_names)

    @property
    def in_dim(self) -> int:
        """Features of a tile."""
        return self._own_task.in_dim

    def setup(self, stage: str | None = None) -> None:
        """Load what the stage needs.

        Raises:
            ValueError: bags without labels, or a part without bags, where the stage needs them.
        """
        if stage == "predict":
            _ = self.predict_task
            return
        task = self.task
        parts: dict[str | None, tuple[Part, ...]] = {
            "fit": ("train", "val"),
            "validate": ("val",),
            "test": ("test",),
        }
        for part in parts.get(stage, ()):
            if not len(getattr(task.split, part)):
                raise ValueError(
                    f"{task.name} has no bags for {part}: give labels and a split with such a part"
                )
        for reason, number in self.skipped().items():
            log.warning("%s: %d slides left out (%s)", task.name, number, reason)

    def class_weights(self) -> Tensor:
        """float32 (C,): N / (C * bags of the class in train); 0 for a class without any."""
        task = self.task
        return class_weights(task.labels[task.split.train], len(task.classes))

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and deviation of each feature over the tiles of all training bags, float64 (I,)."""
        return moments(self.task, self.task.split.train)

    def check_classes(self, expected: Sequence[str]) -> None:
        """Make labels mean what a model's class list says, by name, or stop.

        Args:
            expected: the class list that travels with the model.

        Raises:
            ValueError: the data have a class that the model lacks.
        """
        own = self._own_task.classes
        unknown = sorted(set(own) - set(expected))
        if unknown:
            raise ValueError(
                f"The data have classes that the model lacks: {unknown[:10]}. The model knows "
                f"{list(expected)[:10]}. Rename the classes, or train a model for these."
            )
        if own and tuple(expected) != own:
            log.warning("Classes of the data are mapped to the model's by name: %s", list(expected))
        self._classes = tuple(expected)

    def check_features(self, in_dim: int) -> None:
        """Stop where the bags to predict have another number of features than a model takes.

        Raises:
            ValueError: names both numbers.
        """
        found = self.predict_task
        if found.in_dim != in_dim:
            raise ValueError(
                f"{found.name} has {found.in_dim} features a tile, the model takes {in_dim}: use "
                "the encoder of the training features"
            )

    def fingerprint(self) -> str:
        """SHA-256 over names, labels, split, and of each bag its size, first and last tile.

        Not over seed, sampling and sizes of batches.
        """
        task = self.task
        digest = BatchDigest()
        digest.update([task.name, list(task.ids), list(task.classes), task.labels])
        digest.update({part: members for part, members in task.split.items()})
        for index in range(len(task.ids)):
            digest.update(task.reader.digest(index))
        return hashlib.sha256(digest.hexdigest().encode()).hexdigest()

    def skipped(self) -> dict[str, int]:
        """What the source left out, by reason."""
        return dict(self._own_task.facts.get("skipped", {}))

    def train_dataloader(self) -> ResumableLoader[Item]:
        """Batches of training, a function of (seed, epoch, place); resumable inside an epoch.

        Raises:
            ValueError: no seed.
        """
        seed = self._seed()
        task = self.task
        weights = self.class_weights() if self.sampling == "weighted" else None
        dataset = BagDataset(
            task, task.split.train, max_tokens=self.max_tokens, seed=seed, weights=weights
        )
        trainer = self.trainer
        sampler = EpochBatchSampler(
            len(dataset),
            self.batch_size,
            seed=seed,
            shuffle=self.sampling == "shuffle",
            rank=trainer.global_rank if trainer is not None else 0,
            world_size=trainer.world_size if trainer is not None else 1,
        )
        return ResumableLoader(dataset, sampler, collate_fn=collate, num_workers=self.num_workers)

    def val_dataloader(self) -> DataLoader[Item]:
        """The validation bags, as they come."""
        return self.plain_dataloader("val")

    def test_dataloader(self) -> DataLoader[Item]:
        """The test bags."""
        return self.plain_dataloader("test")

    @cached_property
    def predict_task(self) -> BagTask:
        """The task that the bags to predict are of."""
        return self._own_task if self.predict_source is None else self.predict_source.load()

    def predict_dataloader(self) -> DataLoader[Item]:
        """All bags of ``predict_source``; else the test part, or all where there is none."""
        task = self.predict_task
        members = torch.arange(len(task.ids))
        if self.predict_source is None and len(task.split.test):
            members = task.split.test
        # Another source may have other classes; a prediction needs no labels.
        none = torch.empty(0, dtype=torch.int64)
        bare = replace(
            task,
            labels=torch.full_like(task.labels, UNLABELLED),
            split=Split(none, none, none),
        )
        return self._plain(bare, members)

    def plain_dataloader(self, part: Part) -> DataLoader[Item]:
        """The bags of a part, as they come, drawn from as in evaluation."""
        return self._plain(self.task, getattr(self.task.split, part))

    def _plain(self, task: BagTask, members: Tensor) -> DataLoader[Item]:
        limited = self.max_eval_tokens is not None
        dataset = BagDataset(
            task,
            members,
            max_tokens=self.max_eval_tokens,
            seed=self._seed() if limited else 0,
        )
        return DataLoader(
            dataset,
            batch_size=self.batch_size,
            collate_fn=collate,
            num_workers=self.num_workers,
            # Its own: each iteration would otherwise draw from the global one.
            generator=torch.Generator(),
        )

    def _seed(self) -> int:
        seed = self.seed if self.seed is not None else self.data_seed
        if seed is None:
            raise ValueError("BagData has no seed: pass seed=..., or set data_seed to the run's")
        return seed


def _relabelled(task: BagTask, classes: tuple[str, ...] | None) -> BagTask:
    if classes is None or classes == task.classes:
        return task
    position = torch.tensor([*(classes.index(name) for name in task.classes), UNLABELLED])
    return replace(task, labels=position[task.labels], classes=classes)  # -1 takes the last, -1
