"""The latent graph that NodeFormer learns: the strongest nodes of each node, edges or not.

One layer at a time and streamed, so no N x N numbers exist (qitianwu/NodeFormer#23 asks for it).

Shape suffixes: N nodes, H heads, L latent edges.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from isoattn.core import Attention
from isoattn.graph.graph import Graph
from isoattn.graph.models.nodeformer import NodeFormer
from isoattn.graph.models.pairs import top_k


@dataclass(frozen=True)
class LatentEdges:
    """The strongest nodes of each node in one layer and head.

    Args:
        layer: from 0.
        head: from 0.
        target: int64 (L,), the node that looks, ascending.
        source: int64 (L,), the node looked at; the strongest first for each target.
        weight: (L,), of softmax or what stands for it, without noise; all nodes together have 1.
        observed: bool (L,), whether the graph has this edge. A node itself counts as not observed
            unless the graph has the self loop.
    """

    layer: int
    head: int
    target: Tensor
    source: Tensor
    weight: Tensor
    observed: Tensor


def latent_graph(network: NodeFormer, graph: Graph, count: int) -> Iterator[LatentEdges]:
    """The ``count`` strongest nodes of each node, layer by layer and head by head.

    In evaluation mode, whatever the mode of the network. Of several graphs each node looks at its
    own; those with fewer nodes give as many as they have.

    Args:
        network: trained.
        graph: of the features it was trained for.
        count: nodes for each node.

    Raises:
        ValueError: an attention without strongest nodes; a count below 1, or above N.
    """
    found: list[tuple[Tensor, Tensor, Tensor]] = []

    def look(core: Attention, q: Tensor, k: Tensor) -> None:
        found.append(_strongest(core, q, k, count, graph.segments))

    training = network.training
    network.eval()
    try:
        with torch.no_grad():
            network.states(graph, look)
    finally:
        network.train(training)
    known = torch.unique(graph.edge_index[0] * graph.num_nodes + graph.edge_index[1])
    for layer, (weight_HL, source_HL, target_L) in enumerate(found):
        for head, (weight, source) in enumerate(zip(weight_HL, source_HL, strict=True)):
            observed = torch.isin(source * graph.num_nodes + target_L, known)
            yield LatentEdges(layer, head, target_L, source, weight, observed)


def _strongest(
    core: Attention, q: Tensor, k: Tensor, count: int, segments: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Weight (H, L), source (H, L) and target (L,) of one layer."""
    nodes = torch.arange(q.shape[2], device=q.device)
    if segments is None:
        weight, source = top_k(core, q, k, count)
        return weight[0].flatten(1), source[0].flatten(1), nodes.repeat_interleave(count)
    weights, sources, targets = [], [], []
    for part in torch.unique(segments):
        own = nodes[segments == part]
        most = min(count, len(own))
        weight, source = top_k(core, q[:, :, own], k[:, :, own], most)
        weights.append(weight[0].flatten(1))
        sources.append(own[source[0]].flatten(1))
        targets.append(own.repeat_interleave(most))
    return torch.cat(weights, 1), torch.cat(sources, 1), torch.cat(targets)
