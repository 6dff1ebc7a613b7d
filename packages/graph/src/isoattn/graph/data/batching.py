"""Batches of a node task, each a function of (seed, epoch, index): full, partition, neighbours.

Shape suffixes: N nodes of the whole graph, E its entries, B nodes of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor
from torch.utils.data import Dataset

from isoattn.core.training import derive_seed, item_generator
from isoattn.graph.graph import Graph
from isoattn.graph.task import NodeBatch, NodeTask, Part


@dataclass(frozen=True)
class BatchOptions:
    """How training sees the graph.

    Args:
        mode: ``full``: all nodes in one batch; ``partition``: an epoch's random parts, each with
            the edges inside it; ``neighbor``: train nodes with a sample of what is around them.
        size: nodes of a part (``partition``; 10000 if not given), or train nodes of a batch
            (``neighbor``; 1024 if not given).
        nodes: what ``partition`` divides: ``all`` nodes, or ``train`` nodes only, as the paper
            does; then nothing else is seen in training. Of several graphs: those with train nodes.
        fanout: neighbours taken of each node, hop by hop (``neighbor``; 10, 10 if not given);
            -1 takes all.

    Raises:
        ValueError: values out of range, or an option that the mode does not have.
    """

    mode: Literal["full", "partition", "neighbor"] = "full"
    size: int | None = None
    nodes: Literal["all", "train"] | None = None
    fanout: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.mode not in ("full", "partition", "neighbor"):
            raise ValueError(
                f"batching mode must be full, partition or neighbor, got {self.mode!r}"
            )
        if self.size is not None and self.mode == "full":
            raise ValueError("batching size belongs to mode partition or neighbor, got mode full")
        if self.size is not None and self.size < 1:
            raise ValueError(f"batching size must be 1 or more, got {self.size}")
        if self.nodes is not None and self.mode != "partition":
            raise ValueError(f"batching nodes belongs to mode partition, got mode {self.mode}")
        if self.nodes not in (None, "all", "train"):
            raise ValueError(f"batching nodes must be all or train, got {self.nodes!r}")
        if self.fanout is not None:
            if self.mode != "neighbor":
                raise ValueError(f"batching fanout belongs to mode neighbor, got mode {self.mode}")
            if not self.fanout or any(count == 0 or count < -1 for count in self.fanout):
                raise ValueError(
                    "batching fanout is a number above 0, or -1 = all, for each hop; got "
                    f"{list(self.fanout)}"
                )


class Incoming:
    """The entries of a graph by target, for taking parts of it without a look at all of them.

    Args:
        edge_index: int64 (2, E).
        num_nodes: N.
    """

    def __init__(self, edge_index: Tensor, num_nodes: int) -> None:
        self.num_nodes = num_nodes
        order = edge_index[1].argsort(stable=True)
        self.source_E = edge_index[0][order]
        degree_N = torch.bincount(edge_index[1], minlength=num_nodes)
        self.first_N1 = torch.cat([degree_N.new_zeros(1), degree_N.cumsum(0)])

    def of(self, nodes_B: Tensor) -> tuple[Tensor, Tensor]:
        """All entries into these nodes: the sources, and the position in ``nodes_B`` of each."""
        first_B, last_B = self.first_N1[nodes_B], self.first_N1[nodes_B + 1]
        degree_B = last_B - first_B
        position = torch.arange(len(nodes_B)).repeat_interleave(degree_B)
        before_B = degree_B.cumsum(0) - degree_B
        step = torch.arange(len(position)) - before_B[position]
        return self.source_E[first_B[position] + step], position

    def induced(self, nodes_B: Tensor) -> Tensor:
        """Entries inside a set of nodes, renumbered: node ``nodes_B[i]`` is i, in any order.

        (pyg-team/pytorch_geometric#7186: features in one order, edges in another.)
        """
        place_N = torch.full((self.num_nodes,), -1)
        place_N[nodes_B] = torch.arange(len(nodes_B))
        source, target = self.of(nodes_B)
        inside = place_N[source] >= 0
        return torch.stack([place_N[source[inside]], target[inside]])

    def sampled(self, nodes_B: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """Sources of up to ``count`` entries into each node, without replacement; -1: all."""
        source, position = self.of(nodes_B)
        if count < 0:
            return source
        # A random order inside each node's entries; the first ``count`` of it are taken.
        order = torch.randperm(len(source), generator=generator)
        order = order[position[order].argsort(stable=True)]
        sizes_B = torch.bincount(position, minlength=len(nodes_B))
        before_B = sizes_B.cumsum(0) - sizes_B
        rank = torch.arange(len(order)) - before_B[position[order]]
        return source[order[rank < count]]


def take_nodes(task: NodeTask, incoming: Incoming, nodes_B: Tensor, target_B: Tensor) -> NodeBatch:
    """The subgraph of some nodes, in the order given.

    Args:
        task: the whole graph.
        incoming: its entries by target.
        nodes_B: int64 (B,), each once.
        target_B: bool (B,), which of them count.
    """
    segments = task.graph.segments
    graph = Graph(
        task.graph.x[nodes_B],
        incoming.induced(nodes_B),
        segments=None if segments is None else segments[nodes_B],
        node=nodes_B,
    )
    return NodeBatch(graph, task.y[nodes_B], target_B)


def full_batch(task: NodeTask, part: Part | None) -> NodeBatch:
    """The whole graph; the labelled nodes of a part count, or all nodes where it is ``None``."""
    nodes = task.graph.num_nodes
    if part is None:
        target = torch.ones(nodes, dtype=torch.bool)
    else:
        target = task.split.mask(part, nodes) & task.labelled()
    return NodeBatch(task.graph, task.y, target)


class FullBatches(Dataset[NodeBatch]):
    """One item: the whole graph.

    Args:
        task: of the graph.
        part: whose nodes count; ``None``: all.
    """

    def __init__(self, task: NodeTask, part: Part | None) -> None:
        self._batch = full_batch(task, part)

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> NodeBatch:
        return self._batch

    def __getitems__(self, indices: list[int]) -> NodeBatch:
        """The batch; a loader asks for one item at a time."""
        return self._batch


class TrainBatches(Dataset[NodeBatch]):
    """The training batches of an epoch by number.

    Every batch of ``partition`` holds its share of the train nodes, so none is without loss.
    Several graphs (``segments``) are divided as wholes.

    Args:
        task: with labels and split.
        options: mode and sizes.
        seed: of all draws.

    Raises:
        ValueError: no labelled train node, or parts so small that some would have none.
    """

    def __init__(self, task: NodeTask, options: BatchOptions, *, seed: int) -> None:
        self.task = task
        self.options = options
        self.seed = seed
        self.epoch = 0
        self._target_N = full_batch(task, "train").target
        self._train = self._target_N.nonzero()[:, 0]
        if not len(self._train):
            raise ValueError(f"{task.name} has no labelled train node")
        self._number = self._count()
        self._parts: tuple[int, list[Tensor]] | None = None

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, index: int) -> NodeBatch:
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        if self.options.mode == "full":
            return NodeBatch(self.task.graph, self.task.y, self._target_N)
        nodes = self._epoch_parts()[index]
        if self.options.mode == "neighbor":
            return self._around(nodes, index)
        return take_nodes(self.task, self._incoming, nodes, self._target_N[nodes])

    def __getitems__(self, indices: list[int]) -> NodeBatch:
        """One batch; a loader asks for one item at a time."""
        [index] = indices
        return self[index]

    @cached_property
    def _incoming(self) -> Incoming:
        return Incoming(self.task.graph.edge_index, self.task.graph.num_nodes)

    def _size(self) -> int:
        if self.options.size is not None:
            return self.options.size
        return 10_000 if self.options.mode == "partition" else 1024

    def _count(self) -> int:
        if self.options.mode == "full":
            return 1
        only_train = self.options.mode == "neighbor" or self.options.nodes == "train"
        nodes = len(self._train) if only_train else self.task.graph.num_nodes
        number = -(-nodes // self._size())
        units = self._train
        if self.task.graph.segments is not None and self.options.mode == "partition":
            units = torch.unique(self.task.graph.segments[self._train])
        if number > len(units):
            raise ValueError(
                f"batching size {self._size()} gives {number} batches of {self.task.name}, whose "
                f"{len(units)} train "
                f"{'nodes' if units is self._train else 'graphs'} do not suffice for one in "
                "each: raise size"
            )
        return number

    def _epoch_parts(self) -> list[Tensor]:
        """Nodes of each batch of this epoch."""
        if self._parts is None or self._parts[0] != self.epoch:
            seed = derive_seed(self.seed, self.epoch, "partition")
            generator = torch.Generator().manual_seed(seed)
            self._parts = (self.epoch, self._divide(generator))
        return self._parts[1]

    def _divide(self, generator: torch.Generator) -> list[Tensor]:
        segments = self.task.graph.segments
        if segments is not None and self.options.mode == "partition":
            with_train = torch.unique(segments[self._train])
            every = torch.unique(segments)
            others = every[~torch.isin(every, with_train)]
            if self.options.nodes == "train":
                others = others[:0]
            chosen = self._deal(with_train, others, generator)
            return [torch.isin(segments, part).nonzero()[:, 0] for part in chosen]
        others = (~self._target_N).nonzero()[:, 0]
        if self.options.mode == "neighbor" or self.options.nodes == "train":
            others = others[:0]
        return self._deal(self._train, others, generator)

    def _deal(self, train: Tensor, others: Tensor, generator: torch.Generator) -> list[Tensor]:
        dealt = []
        for group in (train, others):
            shuffled = group[torch.randperm(len(group), generator=generator)]
            dealt.append([shuffled[i :: self._number] for i in range(self._number)])
        # The others are dealt from the other end, so that sizes differ by one at most.
        return [
            torch.cat([first, second])
            for first, second in zip(dealt[0], reversed(dealt[1]), strict=True)
        ]

    def _around(self, seeds: Tensor, index: int) -> NodeBatch:
        """Seeds first, then what was sampled hop by hop; edges are all those inside the set."""
        generator = item_generator(self.seed, self.epoch, index, "neighbor")
        fanout: Sequence[int] = self.options.fanout or (10, 10)
        seen = torch.zeros(self.task.graph.num_nodes, dtype=torch.bool)
        seen[seeds] = True
        hops = [seeds]
        for count in fanout:
            found = torch.unique(self._incoming.sampled(hops[-1], count, generator))
            hops.append(found[~seen[found]])
            seen[found] = True
        nodes = torch.cat(hops)
        return take_nodes(self.task, self._incoming, nodes, torch.arange(len(nodes)) < len(seeds))
