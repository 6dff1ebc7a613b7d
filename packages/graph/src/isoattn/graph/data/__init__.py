"""Node tasks: sources, splits, batches, the report on what is odd, and the data module."""

from isoattn.graph.data.batching import BatchOptions
from isoattn.graph.data.files import NpzFile, TableFiles, build_task
from isoattn.graph.data.gnn_benchmark import GnnBenchmark
from isoattn.graph.data.graphml import GraphMLFile, from_networkx
from isoattn.graph.data.heterophilous import Heterophilous
from isoattn.graph.data.inspect import Finding, Report, inspect_source, inspect_task
from isoattn.graph.data.knn import KnnGraph, knn_edges
from isoattn.graph.data.module import NodeData
from isoattn.graph.data.ogb import Ogb, official_score
from isoattn.graph.data.planetoid import Planetoid
from isoattn.graph.data.source import TaskSource
from isoattn.graph.data.split import SplitOptions, draw_split
from isoattn.graph.data.synthetic import BlockModel, FarRecall

__all__ = [
    "BatchOptions",
    "BlockModel",
    "FarRecall",
    "Finding",
    "GnnBenchmark",
    "GraphMLFile",
    "Heterophilous",
    "KnnGraph",
    "NodeData",
    "NpzFile",
    "Ogb",
    "Planetoid",
    "Report",
    "SplitOptions",
    "TableFiles",
    "TaskSource",
    "build_task",
    "draw_split",
    "from_networkx",
    "inspect_source",
    "inspect_task",
    "knn_edges",
    "official_score",
]
