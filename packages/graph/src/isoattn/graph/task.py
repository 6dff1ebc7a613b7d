"""What is learned on a graph: labels, a split, a metric; and the batches a model is given.

Shape suffixes: N nodes, T labels of a multilabel task.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from isoattn.graph.graph import Graph

Kind = Literal["multiclass", "multilabel"]
Metric = Literal["accuracy", "roc_auc"]
Part = Literal["train", "val", "test"]
PARTS: tuple[Part, ...] = ("train", "val", "test")
UNLABELLED = -1


@dataclass(frozen=True)
class Split:
    """Three disjoint sets of nodes.

    Args:
        train, val, test: int64, node numbers; nodes of no part are allowed.

    Raises:
        ValueError: a node twice, in one part or in two; names the parts and some of the nodes.
    """

    train: Tensor
    val: Tensor
    test: Tensor

    def __post_init__(self) -> None:
        for name, nodes in self.items():
            if nodes.ndim != 1 or nodes.dtype != torch.int64:
                raise ValueError(
                    f"{name} of a split is int64 node numbers in one dimension, got "
                    f"{nodes.dtype} {tuple(nodes.shape)}"
                )
            values, counts = torch.unique(nodes, return_counts=True)
            if len(values) != len(nodes):
                twice = values[counts > 1]
                raise ValueError(
                    f"The {name} part of the split names {len(twice)} node(s) more than once, "
                    f"such as {twice[:5].tolist()}: list each node once"
                )
        for first, second in (("train", "val"), ("train", "test"), ("val", "test")):
            both = overlap(getattr(self, first), getattr(self, second))
            if len(both):
                raise ValueError(
                    f"The split puts {len(both)} node(s) into {first} and {second}, such as "
                    f"{both[:5].tolist()}: a node belongs to one part at most"
                )

    def items(self) -> Iterator[tuple[Part, Tensor]]:
        """Name and nodes of the three parts."""
        for name in PARTS:
            yield name, getattr(self, name)

    def __getitem__(self, part: Part) -> Tensor:
        """The nodes of a part."""
        if part not in PARTS:
            raise KeyError(f"A split has the parts {', '.join(PARTS)}, got {part!r}")
        nodes: Tensor = getattr(self, part)
        return nodes

    def mask(self, part: Part, num_nodes: int) -> Tensor:
        """Bool (N,), true for the nodes of a part."""
        mask = torch.zeros(num_nodes, dtype=torch.bool)
        mask[self[part]] = True
        return mask


def overlap(first: Tensor, second: Tensor) -> Tensor:
    """Numbers that occur in both, ascending."""
    both: Tensor = torch.unique(first[torch.isin(first, second)])
    return both


@dataclass(frozen=True)
class NodeTask:
    """A graph with labels on its nodes.

    A binary task scored by ROC-AUC is multiclass with two classes and metric ``roc_auc``.

    Args:
        name: of the data.
        graph: with all nodes.
        y: int64 (N,), class numbers, -1 = unlabelled; or float32 (N, T) of 0 and 1, NaN =
            unlabelled, for multilabel tasks.
        kind: of the labels.
        classes: names of the classes, or of the T labels.
        metric: the score that chooses the best epoch.
        split: train, val, test.
        node_ids: the user's name of each node, for exports; ``None``: the numbers.
        facts: provenance, what was dropped or symmetrised, counts; plain data.

    Raises:
        ValueError: parts that do not fit each other.
    """

    name: str
    graph: Graph
    y: Tensor
    kind: Kind
    classes: tuple[str, ...]
    metric: Metric
    split: Split
    node_ids: tuple[str, ...] | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        nodes = self.graph.num_nodes
        shape = (nodes,) if self.kind == "multiclass" else (nodes, len(self.classes))
        if tuple(self.y.shape) != shape:
            raise ValueError(
                f"{self.name}: {self.kind} labels of {nodes} nodes and {len(self.classes)} classes "
                f"have the shape {shape}, got {tuple(self.y.shape)}"
            )
        if self.kind == "multiclass" and self.y.numel():
            low, high = int(self.y.min()), int(self.y.max())
            if low < UNLABELLED or high >= len(self.classes):
                raise ValueError(
                    f"{self.name}: class numbers lie in 0..{len(self.classes) - 1}, -1 = unlabelled"
                    f"; got {low}..{high}"
                )
        if self.metric == "roc_auc" and self.kind == "multiclass" and len(self.classes) != 2:
            raise ValueError(
                f"{self.name}: roc_auc needs two classes or multilabel targets, got "
                f"{len(self.classes)} classes: use metric accuracy"
            )
        if self.metric == "accuracy" and self.kind == "multilabel":
            raise ValueError(f"{self.name}: multilabel tasks are scored by roc_auc, got accuracy")
        if self.node_ids is not None and len(self.node_ids) != nodes:
            raise ValueError(f"{self.name}: {len(self.node_ids)} node ids for {nodes} nodes")
        for part, members in self.split.items():
            if len(members) and not 0 <= int(members.min()) <= int(members.max()) < nodes:
                raise ValueError(
                    f"{self.name}: the {part} part has node numbers outside 0..{nodes - 1}: "
                    f"{int(members.min())}..{int(members.max())}"
                )

    @property
    def out_dim(self) -> int:
        """Number of outputs of a model: classes, or labels."""
        return len(self.classes)

    def labelled(self) -> Tensor:
        """Bool (N,), nodes with a label (of multilabel tasks: with at least one)."""
        if self.kind == "multiclass":
            return self.y != UNLABELLED
        return ~self.y.isnan().all(1)


@dataclass(frozen=True)
class NodeBatch:
    """What a model is given: a graph and the nodes that count.

    Args:
        graph: the batch's nodes; ``graph.node`` are their numbers in the whole graph.
        y: labels of the batch's nodes, as in :class:`NodeTask`.
        target: bool, the nodes whose loss or metric counts.
    """

    graph: Graph
    y: Tensor
    target: Tensor

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> NodeBatch:
        """The same batch on a device."""
        return NodeBatch(
            self.graph.to(device, non_blocking=non_blocking),
            self.y.to(device, non_blocking=non_blocking),
            self.target.to(device, non_blocking=non_blocking),
        )

    def pin_memory(self) -> NodeBatch:
        """The same batch in page-locked memory."""
        return NodeBatch(self.graph.pin_memory(), self.y.pin_memory(), self.target.pin_memory())
