"""The Lightning data module of node tasks: source, batches of training, full-graph evaluation."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader

from isoattn.core.training import EpochBatchSampler, ResumableLoader
from isoattn.graph.data.batching import BatchOptions, FullBatches, TrainBatches
from isoattn.graph.data.inspect import Report, inspect_task
from isoattn.graph.data.knn import KnnGraph
from isoattn.graph.data.source import TaskSource
from isoattn.graph.task import UNLABELLED, NodeBatch, NodeTask, Part

log = logging.getLogger(__name__)


def keep(batch: Any) -> Any:
    """The ``collate_fn`` of datasets whose items are batches already."""
    return batch


class NodeData(LightningDataModule):
    """A node task in batches; what a model must know of it is known once it is loaded.

    Batches are :class:`~isoattn.graph.task.NodeBatch`. Validation, test and prediction see the
    whole graph in one batch; ``target`` says which nodes count.

    Args:
        source: of the task; ``None``: a kNN graph over the digits that ship with scikit-learn.
        batching: how training sees the graph.
        predict_source: another graph to predict, with the same features (inductive); ``None``: the
            graph of ``source``.
        seed: of the batches. ``None``: ``data_seed``, which whoever runs the module sets.
        num_workers: loader processes for training; useful for ``neighbor`` alone.
    """

    def __init__(
        self,
        source: TaskSource | None = None,
        batching: BatchOptions = BatchOptions(),  # noqa: B008 - frozen
        predict_source: TaskSource | None = None,
        seed: int | None = None,
        num_workers: int = 0,
    ) -> None:
        super().__init__()
        self.source = source if source is not None else KnnGraph()
        self.batching = batching
        self.predict_source = predict_source
        self.seed = seed
        self.data_seed: int | None = None
        self.num_workers = num_workers
        self._classes: tuple[str, ...] | None = None

    @cached_property
    def _own_task(self) -> NodeTask:
        return self.source.load()

    @property
    def task(self) -> NodeTask:
        """The task; loaded when first asked for."""
        return _relabelled(self._own_task, self._classes)

    @cached_property
    def report(self) -> Report:
        """What is odd about the task."""
        return inspect_task(self._own_task)

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
        """Number of features."""
        return self._own_task.graph.x.shape[1]

    def setup(self, stage: str | None = None) -> None:
        """Load what the stage needs and look at it: errors stop; ``report`` has the warnings.

        Raises:
            ValueError: the data cannot be trained on, or those to predict do not fit.
        """
        if stage == "predict":
            _ = self.predict_task
            return
        self.report.raise_errors()

    def class_counts(self) -> list[int] | None:
        """Labelled train nodes of each class; None for a multilabel task."""
        task = self.task
        if task.kind == "multilabel":
            return None
        y = task.y[task.split.train]
        return torch.bincount(y[y >= 0], minlength=task.out_dim).tolist()

    def check_classes(self, expected: Sequence[str]) -> None:
        """Make labels mean what a model's class list says, by name, or stop.

        Args:
            expected: the class list that travels with the model.

        Raises:
            ValueError: the data have a class that the model lacks; or other labels, for multilabel.
        """
        own = self._own_task.classes
        unknown = sorted(set(own) - set(expected))
        if unknown or (self._own_task.kind == "multilabel" and tuple(expected) != own):
            raise ValueError(
                f"The data have classes that the model lacks or orders otherwise: "
                f"{(unknown or list(own))[:10]}. The model knows {list(expected)[:10]}. Rename the "
                "classes, or train a model for these."
            )
        if tuple(expected) != own:
            log.warning("Classes of the data are mapped to the model's by name: %s", list(expected))
        self._classes = tuple(expected)
        self.__dict__.pop("predict_task", None)

    def fingerprint(self) -> str:
        """SHA-256 over features, entries, labels and split; not over name, seed and batching."""
        task = self.task
        digest = hashlib.sha256(repr((task.kind, task.metric, task.classes)).encode())
        tensors = [task.graph.x, task.graph.edge_index, task.y]
        tensors += [task.graph.segments] if task.graph.segments is not None else []
        for tensor in [*tensors, *(nodes for _, nodes in task.split.items())]:
            digest.update(f"{tuple(tensor.shape)}".encode())
            digest.update(tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()

    def skipped(self) -> dict[str, int]:
        """What the source left out, by reason."""
        counts = self._own_task.facts.get("edges", {})
        return {key: counts[key] for key in counts if key.endswith("_dropped") and counts[key]}

    def train_dataloader(self) -> ResumableLoader[NodeBatch]:
        """Batches of training, a function of (seed, epoch, index); resumable inside an epoch.

        Raises:
            ValueError: no seed.
        """
        seed = self.seed if self.seed is not None else self.data_seed
        if seed is None:
            raise ValueError("NodeData has no seed: pass seed=..., or set data_seed to the run's")
        dataset = TrainBatches(self.task, self.batching, seed=seed)
        trainer = self.trainer
        sampler = EpochBatchSampler(
            len(dataset),
            1,
            seed=seed,
            shuffle=False,  # what is in a batch is drawn anew each epoch, its number says nothing
            rank=trainer.global_rank if trainer is not None else 0,
            world_size=trainer.world_size if trainer is not None else 1,
        )
        return ResumableLoader(dataset, sampler, collate_fn=keep, num_workers=self.num_workers)

    def val_dataloader(self) -> DataLoader[NodeBatch]:
        """The whole graph; validation nodes count."""
        return self.plain_dataloader("val")

    def test_dataloader(self) -> DataLoader[NodeBatch]:
        """The whole graph; test nodes count."""
        return self.plain_dataloader("test")

    @cached_property
    def predict_task(self) -> NodeTask:
        """The graph to predict.

        Raises:
            ValueError: its number of features is not that of the training data.
        """
        if self.predict_source is None:
            return self.task
        return self.predict_source.load()

    def check_features(self, in_dim: int) -> None:
        """Stop where the graph to predict has another number of features than a model takes.

        Args:
            in_dim: of the model.

        Raises:
            ValueError: names both numbers.
        """
        found = self.predict_task.graph.x.shape[1]
        if found != in_dim:
            raise ValueError(
                f"{self.predict_task.name} has {found} features a node, the model takes {in_dim}: "
                "give the same columns in the same order"
            )

    def predict_dataloader(self) -> DataLoader[NodeBatch]:
        """The whole graph to predict; all nodes count."""
        return _loader(FullBatches(self.predict_task, None))

    def plain_dataloader(self, part: Part) -> DataLoader[NodeBatch]:
        """The whole graph; nodes of a part count."""
        return _loader(FullBatches(self.task, part))


def _loader(dataset: FullBatches) -> DataLoader[NodeBatch]:
    # Its own generator: each iteration would otherwise draw from the global one.
    return DataLoader(dataset, batch_size=1, collate_fn=keep, generator=torch.Generator())


def _relabelled(task: NodeTask, classes: tuple[str, ...] | None) -> NodeTask:
    if classes is None or classes == task.classes:
        return task
    position = torch.tensor([*(classes.index(name) for name in task.classes), UNLABELLED])
    return replace(task, y=position[task.y], classes=classes)  # y = -1 takes the last, -1
