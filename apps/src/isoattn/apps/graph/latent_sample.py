"""Which nodes and latent edges are drawn: all nodes of a small graph, a region of a large one.

Shape suffixes: L latent edges.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isoattn.apps.graph.latent_edges import Latent
from isoattn.core.training import derive_seed
from isoattn.graph.graph import Graph

_AROUND = 8
"""Most neighbours of a node that are drawn for its sake: a hub would fill the picture."""


@dataclass(frozen=True)
class Strongest:
    """The strongest other nodes of each node, a few.

    Args:
        source, target: int64 (L,).
        weight: (L,).
        observed: bool (L,), whether the input graph has the entry.
    """

    source: Tensor
    target: Tensor
    weight: Tensor
    observed: Tensor


def strongest(latent: Latent, count: int) -> Strongest:
    """The first ``count`` nodes of each node's list, itself left out."""
    other = latent.target != latent.source
    target = latent.target[other]
    _, sizes = torch.unique(target, return_counts=True)
    place = torch.arange(len(target)) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    kept = other.nonzero()[:, 0][place < count]
    fields = (latent.source, latent.target, latent.weight, latent.observed)
    return Strongest(*(values[kept] for values in fields))


def drawn_nodes(graph: Graph, edges: Strongest, *, most: int, seed: int) -> Tensor:
    """Node numbers, ascending: all, or regions around nodes drawn by seed and what they look at.

    Two thirds are nodes up to two steps from a centre in the input graph, centre after centre; the
    rest are nodes that these look at most, by weight.

    Args:
        graph: the input graph.
        edges: the latent edges to draw.
        most: nodes at most.
        seed: of the centres.
    """
    if graph.num_nodes <= most:
        return torch.arange(graph.num_nodes)
    generator = torch.Generator().manual_seed(derive_seed(seed, "drawn nodes"))
    chosen: dict[int, None] = {}
    for centre in torch.randperm(graph.num_nodes, generator=generator).tolist():
        chosen |= dict.fromkeys(_region(graph, centre))
        if len(chosen) >= 2 * most // 3:
            break
    region = torch.tensor(list(chosen)[: 2 * most // 3])
    seen = torch.isin(edges.target, region)
    looked_at = edges.source[seen][edges.weight[seen].argsort(descending=True, stable=True)]
    ordered = dict.fromkeys([*region.tolist(), *looked_at.tolist()])
    return torch.tensor(list(ordered)[:most]).sort().values


def _region(graph: Graph, centre: int) -> list[int]:
    """The centre, its neighbours and theirs, a few of each."""
    source, target = graph.edge_index
    found = [centre]
    for start in (0, 1):
        for node in found[start:]:
            found += source[target == node][:_AROUND].tolist()
    return found
