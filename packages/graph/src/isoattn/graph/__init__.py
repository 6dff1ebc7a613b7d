"""NodeFormer and its node tasks."""

from isoattn.graph.graph import Graph
from isoattn.graph.models import GCN, MLP, NodeFormer, latent_graph, load_weights
from isoattn.graph.task import NodeBatch, NodeTask, Split

__all__ = [
    "GCN",
    "MLP",
    "Graph",
    "NodeBatch",
    "NodeFormer",
    "NodeTask",
    "Split",
    "latent_graph",
    "load_weights",
]
