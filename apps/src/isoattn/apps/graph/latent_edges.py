"""The latent graph of a trained NodeFormer: strongest nodes of each node, and sums over all pairs.

Each row of attention is made once, in blocks, and looked at for everything that is wanted of it.

Shape suffixes: G groups of heads (one, or each head by itself), n queries of a block, M nodes of
one graph, L latent edges, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from isoattn.apps.base.errors import UserError
from isoattn.core import Attention
from isoattn.graph.graph import Graph
from isoattn.graph.models import NodeFormer
from isoattn.graph.models.nodeformer import NodeFormerLayer
from isoattn.graph.models.pair_rows import blocks, check_attention, rows_of
from isoattn.graph.task import NodeTask

Heads = Literal["mean", "each"]


@dataclass(frozen=True)
class Latent:
    """The latent graph of one layer, of one head or of the mean over heads.

    Args:
        layer: from 0, as in the names of the weights.
        head: from 0, or ``"mean"``.
        target: int64 (L,), the node that looks; ascending.
        source: int64 (L,), the node looked at, the strongest first for each target; a node may
            look at itself.
        weight: (L,); all nodes of a graph together have 1.
        rank: int64 (L,), from 1.
        observed: bool (L,), whether the input graph has the entry source -> target.
        class_mass: float64 (C, C), weight from the class that looks to the class looked at, summed
            over all pairs of labelled nodes, not the strongest alone.
        observed_mass: mean weight a node gives to its observed neighbours.
        self_mass: mean weight a node gives to itself.
    """

    layer: int
    head: int | Literal["mean"]
    target: Tensor
    source: Tensor
    weight: Tensor
    rank: Tensor
    observed: Tensor
    class_mass: Tensor
    observed_mass: float
    self_mass: float


def latent_graphs(
    network: NodeFormer,
    task: NodeTask,
    *,
    top_k: int,
    layers: Sequence[int],
    heads: Heads = "mean",
    advance: Callable[[str], None] = lambda text: None,
) -> Iterator[Latent]:
    """The strongest nodes of each node, layer by layer.

    Of several graphs each node looks at its own; those with fewer nodes give as many as they have.
    The mean over heads is that of the weights; its strongest nodes are found in it.

    Args:
        network: trained; used in evaluation mode, whatever its mode.
        task: whose graph it looks at.
        top_k: nodes for each node.
        layers: which, from 0.
        heads: ``"mean"`` of the weights over heads, or ``"each"`` head by itself.
        advance: called after each block of rows; :func:`steps` says how often.

    Raises:
        ValueError: an attention without weights of pairs; :func:`check_network` says so beforehand.
    """
    found = _attentions(network, task.graph)
    parts = _parts(task.graph)
    for layer in layers:
        core, q, k = found[layer]
        seen = _Seen(task, 1 if heads == "mean" else core.heads, top_k)
        for own in parts:
            rows = rows_of(core, q[:, :, own], k[:, :, own])
            for n in blocks(len(own), len(own), core.heads):
                weight = rows(n)
                seen.add(own, n, weight.mean(0, keepdim=True) if heads == "mean" else weight)
                advance(f"layer {layer}")
        yield from seen.latents(layer, heads)


def steps(network: NodeFormer, graph: Graph, layers: Sequence[int]) -> int:
    """Blocks of rows that :func:`latent_graphs` goes through."""
    sizes = [len(own) for own in _parts(graph)]
    heads = [core.heads for core in attentions(network)]
    return sum(len(list(blocks(size, size, heads[layer]))) for size in sizes for layer in layers)


def attentions(network: NodeFormer) -> list[Attention]:
    """The attention of each layer."""
    return [layer.core for layer in network.layers if isinstance(layer, NodeFormerLayer)]


def check_network(network: nn.Module) -> NodeFormer:
    """Itself, if it has attentions with a latent graph.

    Raises:
        UserError: another network, or an attention without weights of pairs.
    """
    if not isinstance(network, NodeFormer):
        raise UserError(
            f"{type(network).__name__} has no attention between all nodes, so no latent graph; "
            "NodeFormer has one."
        )
    try:
        for attention in attentions(network):
            check_attention(attention)
    except ValueError as error:
        raise UserError(str(error)) from error
    return network


def _attentions(network: NodeFormer, graph: Graph) -> list[tuple[Attention, Tensor, Tensor]]:
    """The attention of each layer with its q and k (1, H, N, D)."""
    found: list[tuple[Attention, Tensor, Tensor]] = []
    network.eval()
    with torch.no_grad():
        network.states(graph, lambda core, q, k: found.append((core, q, k)))
    return found


def _parts(graph: Graph) -> list[Tensor]:
    """The nodes of each graph."""
    nodes = torch.arange(graph.num_nodes)
    if graph.segments is None:
        return [nodes]
    return [nodes[graph.segments == part] for part in torch.unique(graph.segments)]


class _Seen:
    """What is kept of the rows of a layer."""

    def __init__(self, task: NodeTask, groups: int, top_k: int) -> None:
        graph = task.graph
        self.nodes, self.groups, self.top_k = graph.num_nodes, groups, top_k
        self.edges = _ByTarget(graph)
        classes = len(task.classes) if task.kind == "multiclass" else 0
        self.y = task.y if classes else torch.full((graph.num_nodes,), -1)
        self.class_mass = torch.zeros(groups, classes, classes, dtype=torch.float64)
        self.observed_mass = torch.zeros(groups, dtype=torch.float64)
        self.self_mass = torch.zeros(groups, dtype=torch.float64)
        self.pieces: list[tuple[Tensor, Tensor, Tensor]] = []

    def add(self, own_M: Tensor, n: slice, weight_GnM: Tensor) -> None:
        """Take a block of rows of a graph with the nodes ``own``."""
        looking = own_M[n]
        most = min(self.top_k, len(own_M))
        weight, place = weight_GnM.topk(most, -1)
        target = looking.repeat_interleave(most)
        self.pieces.append((weight.flatten(1), own_M[place].flatten(1), target))
        row, source = self.edges.into(looking)
        column = torch.searchsorted(own_M, source)
        self.observed_mass += weight_GnM[:, row, column].double().sum(1)
        here = torch.arange(n.start, n.stop)
        self.self_mass += weight_GnM[:, here - n.start, here].double().sum(1)
        self._add_classes(self.y[looking], self.y[own_M], weight_GnM)

    def _add_classes(self, y_n: Tensor, y_M: Tensor, weight_GnM: Tensor) -> None:
        classes = self.class_mass.shape[1]
        one_hot_MC = (y_M[:, None] == torch.arange(classes)).to(weight_GnM.dtype)
        to_class_GnC = (weight_GnM @ one_hot_MC).double()
        known = y_n >= 0
        self.class_mass.index_add_(1, y_n[known], to_class_GnC[:, known])

    def latents(self, layer: int, heads: Heads) -> Iterator[Latent]:
        """The latent graph of each group."""
        target = torch.cat([target for *_, target in self.pieces])
        order = target.argsort(stable=True)
        _, counts = torch.unique(target, return_counts=True)
        rank = torch.arange(len(target)) - (counts.cumsum(0) - counts).repeat_interleave(counts) + 1
        target = target[order]
        weight_GL = torch.cat([weight for weight, *_ in self.pieces], 1)[:, order]
        source_GL = torch.cat([source for _, source, _ in self.pieces], 1)[:, order]
        for group in range(self.groups):
            yield Latent(
                layer=layer,
                head="mean" if heads == "mean" else group,
                target=target,
                source=source_GL[group],
                weight=weight_GL[group],
                rank=rank,
                observed=self.edges.has(source_GL[group], target),
                class_mass=self.class_mass[group],
                observed_mass=float(self.observed_mass[group]) / self.nodes,
                self_mass=float(self.self_mass[group]) / self.nodes,
            )


class _ByTarget:
    """The entries of a graph, found by the node that they enter."""

    def __init__(self, graph: Graph) -> None:
        source, target = graph.edge_index
        self.nodes = graph.num_nodes
        self.code = torch.unique(target * self.nodes + source)
        self.source = self.code % self.nodes
        degree = torch.bincount(self.code // self.nodes, minlength=self.nodes)
        self.start = torch.cat([torch.zeros(1, dtype=torch.int64), degree.cumsum(0)])

    def into(self, nodes_n: Tensor) -> tuple[Tensor, Tensor]:
        """Entries into these nodes, self loops left out: place in ``nodes_n``, and source."""
        start, count = self.start[nodes_n], self.start[nodes_n + 1] - self.start[nodes_n]
        row = torch.arange(len(nodes_n)).repeat_interleave(count)
        shift = (start - (count.cumsum(0) - count)).repeat_interleave(count)
        source = self.source[torch.arange(len(row)) + shift]
        other = source != nodes_n[row]
        return row[other], source[other]

    def has(self, source_L: Tensor, target_L: Tensor) -> Tensor:
        """Whether these entries exist, bool (L,)."""
        return torch.isin(target_L * self.nodes + source_L, self.code)
