"""What a forward pass over a graph costs: closed forms where they exist, the rest counted.

FLOPs are matrix products, a multiply-add as two.

Shape suffixes: N nodes, H heads, d hidden width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

from isoattn.core import Attention, Shape, Zero, replaced_attention
from isoattn.graph.graph import Graph
from isoattn.graph.models.gcn import GCN
from isoattn.graph.models.network import NodeNetwork
from isoattn.graph.models.nodeformer import NodeFormer, NodeFormerLayer


@dataclass(frozen=True)
class Flops:
    """Cost of a forward pass.

    Args:
        total: FLOPs of the whole network.
        attention: of which the attention cores, from their closed forms.
    """

    total: int
    attention: int


def attention_calls(network: NodeNetwork, graph: Graph) -> list[tuple[Attention, Shape]]:
    """The calls of the attention in one forward pass, each over all nodes; none in a reference.

    Args:
        network: any of this package.
        graph: whose number of nodes counts. Of several graphs each is attended by itself, which
            costs no more.
    """
    if not isinstance(network, NodeFormer):
        return []
    itemsize = network.input.weight.itemsize
    return [
        (
            layer.core,
            Shape.square(1, layer.heads, graph.num_nodes, network.hidden, itemsize=itemsize),
        )
        for layer in _layers(network)
    ]


def count_flops(network: NodeNetwork, graph: Graph) -> Flops:
    """Count the FLOPs of a forward pass in evaluation mode, without the edge loss.

    Dense products are counted while the network runs without its attention; that of the attention
    is its closed form, that of sparse products two for each entry and channel.

    Args:
        network: neither its weights nor its mode are changed.
        graph: of the features it was built for.
    """
    training = network.training
    network.eval()
    calls = attention_calls(network, graph)
    attention = sum(core.cost(shape).forward_flops for core, shape in calls)
    try:
        dense = _dense(network, graph)
    finally:
        network.train(training)
    return Flops(dense + attention + _sparse(network, graph), attention)


@torch.no_grad()
def _dense(network: NodeNetwork, graph: Graph) -> int:
    counter = FlopCounterMode(display=False)
    if isinstance(network, NodeFormer):
        with replaced_attention(network, Zero), counter:
            network(graph)
    else:
        with counter:
            network(graph)
    return int(counter.get_total_flops())


def _sparse(network: NodeNetwork, graph: Graph) -> int:
    if isinstance(network, NodeFormer):
        channels = sum(layer.heads * network.hidden for layer in _layers(network))
    elif isinstance(network, GCN):
        channels = sum(layer.out_features for layer in network.layers)  # type: ignore[misc]
    else:
        return 0
    matrices = network.adjacencies(graph.edge_index, graph.num_nodes, torch.float32)
    return 2 * channels * sum(matrix.entries for matrix in matrices)


def _layers(network: NodeFormer) -> list[NodeFormerLayer]:
    return [layer for layer in network.layers if isinstance(layer, NodeFormerLayer)]
