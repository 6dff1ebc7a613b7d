"""Node networks with a swappable attention."""

from isoattn.graph.models.flops import Flops, attention_calls, count_flops
from isoattn.graph.models.gcn import GCN
from isoattn.graph.models.latent_graph import LatentEdges, latent_graph
from isoattn.graph.models.mlp import MLP
from isoattn.graph.models.network import NodeNetwork, Output
from isoattn.graph.models.nodeformer import NodeFormer
from isoattn.graph.models.weights import KeyReport, WeightsError, from_published, load_weights

__all__ = [
    "GCN",
    "MLP",
    "Flops",
    "KeyReport",
    "LatentEdges",
    "NodeFormer",
    "NodeNetwork",
    "Output",
    "WeightsError",
    "attention_calls",
    "count_flops",
    "from_published",
    "latent_graph",
    "load_weights",
]
