"""What a latent graph comes to: shares of its edges against chance, and its tables.

Shape suffixes: N nodes, L latent edges, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isoattn.apps.graph.latent_edges import Latent
from isoattn.apps.graph.outputs import node_names
from isoattn.core.meter import Reading, record
from isoattn.core.training import derive_seed
from isoattn.graph.graph import Graph
from isoattn.graph.models import NodeFormer
from isoattn.graph.task import NodeTask


def summarise(latent: Latent, task: NodeTask) -> dict[str, Any]:
    """Shares of the latent edges, each with what it would be if all nodes were seen alike.

    Returns:
        ``edges``; ``itself_share``, of edges from a node to itself; of the others
        ``observed_share`` and, of those between labelled nodes of multiclass tasks,
        ``same_class_share``, with ``_chance``; mean weights a node gives to its strongest nodes
        (``weight_strongest``), to its observed neighbours and to itself. None where undefined.
    """
    target, source = latent.target, latent.source
    other = target != source
    same = same_class(task, source, target)
    known = (same >= 0) & other
    chance_N = _chance_of_own_class(task)
    nodes = task.graph.num_nodes
    return {
        "layer": latent.layer,
        "head": latent.head,
        "edges": len(target),
        "itself_share": _mean(~other),
        "observed_share": _mean(latent.observed[other]),
        "observed_chance": _density(task.graph),
        "same_class_share": _mean(same[known]),
        "same_class_chance": _mean(chance_N[target[known]]),
        "weight_strongest": float(latent.weight.double().sum()) / nodes,
        "weight_observed": latent.observed_mass,
        "weight_itself": latent.self_mass,
    }


def percent(share: float | None) -> str:
    """A share in words, ``-`` where it is undefined."""
    if share is None:
        return "-"
    digits = 1 if share >= 0.01 or share == 0 else 2
    return f"{100 * share:.{digits}f} %"


def effective_keys(network: NodeFormer, graph: Graph, *, seed: int) -> list[Reading]:
    """What the meter of isoattn.core says of each layer, at 64 sampled nodes."""
    with torch.no_grad(), record(network, seed=derive_seed(seed, "latent graph")) as readings:
        network.eval()(graph)
    return [readings[f"layers.{number}.core"] for number in range(len(network.layers))]


def edge_columns(latents: Sequence[Latent], task: NodeTask) -> dict[str, Any]:
    """The columns of the edge list; nodes as the user named them, flags as 1, 0 or nothing."""
    import pandas

    def joined(tensors: Sequence[Tensor]) -> np.ndarray:
        return torch.cat(list(tensors)).numpy()

    source, target = (torch.cat([getattr(e, end) for e in latents]) for end in ("source", "target"))
    same = same_class(task, source, target)
    flags = pandas.array(same.numpy(), dtype="Int8")
    flags[(same < 0).numpy()] = pandas.NA
    lengths = [len(latent.target) for latent in latents]
    return {
        "source": node_names(task.node_ids, source),
        "target": node_names(task.node_ids, target),
        "weight": joined([latent.weight for latent in latents]),
        "rank": joined([latent.rank for latent in latents]),
        "layer": np.repeat([latent.layer for latent in latents], lengths),
        "head": np.repeat([str(latent.head) for latent in latents], lengths),
        "observed": joined([latent.observed.long() for latent in latents]),
        "same_class": flags,
    }


def class_columns(latents: Sequence[Latent], task: NodeTask) -> dict[str, Any]:
    """Weight from each class to each, rows summing to 1, of all pairs of labelled nodes."""
    rows = torch.cat([class_shares(latent) for latent in latents])
    number = len(task.classes)
    return {
        "layer": np.repeat([latent.layer for latent in latents], number),
        "head": np.repeat([str(latent.head) for latent in latents], number),
        "class": list(task.classes) * len(latents),
        **{f"to({name})": rows[:, i].numpy() for i, name in enumerate(task.classes)},
    }


def class_shares(latent: Latent) -> Tensor:
    """Float64 (C, C); rows sum to 1, NaN of a class without labelled nodes."""
    return latent.class_mass / latent.class_mass.sum(1, keepdim=True)


def same_class(task: NodeTask, source_L: Tensor, target_L: Tensor) -> Tensor:
    """1, 0, or -1 where one of the two has no label or the task has several labels a node."""
    if task.kind == "multilabel":
        return torch.full_like(source_L, -1)
    one, two = task.y[source_L], task.y[target_L]
    return torch.where((one < 0) | (two < 0), -1, (one == two).long())


def _chance_of_own_class(task: NodeTask) -> Tensor:
    """Share of the class of each node among the other labelled nodes of its graph, float64 (N,)."""
    graph = task.graph
    if task.kind == "multilabel":
        return torch.full((graph.num_nodes,), float("nan"), dtype=torch.float64)
    part = graph.segments if graph.segments is not None else torch.zeros_like(task.y)
    _, part = torch.unique(part, return_inverse=True)
    known = (task.y >= 0).long()
    labelled = torch.zeros(int(part.max()) + 1, dtype=torch.int64).index_add_(0, part, known)
    place = part * (len(task.classes) + 1) + task.y + 1
    size = torch.bincount(place)[place]
    return (size - 1).double() / (labelled[part] - 1)


def _density(graph: Graph) -> float | None:
    """Share of the pairs of two nodes of a graph that are entries."""
    source, target = graph.edge_index
    code = torch.unique((source * graph.num_nodes + target)[source != target])
    sizes = torch.tensor([graph.num_nodes])
    if graph.segments is not None:
        _, sizes = torch.unique(graph.segments, return_counts=True)
    pairs = int((sizes * (sizes - 1)).sum())
    return len(code) / pairs if pairs else None


def _mean(values: Tensor) -> float | None:
    return float(values.double().mean()) if len(values) else None
