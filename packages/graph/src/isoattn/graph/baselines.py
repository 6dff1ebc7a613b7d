"""Scores that need no training: the commonest class, and the labels of labelled neighbours.

Shape suffixes: N nodes, C classes.
"""

from __future__ import annotations

import torch

from isoattn.graph.task import UNLABELLED, NodeTask


def label_shares(task: NodeTask) -> dict[str, float]:
    """Test accuracy of the commonest train class, and of label propagation.

    Propagation (Zhou et al. 2004, "Learning with local and global consistency", eq. 4, alpha 0.9,
    50 steps) uses the graph and the train labels, no features: what a network gains above it, it
    gains from features or from far nodes.

    Args:
        task: multiclass, scored by accuracy; other tasks have no such reference here.

    Returns:
        Name -> accuracy in [0, 1]; empty for other tasks.
    """
    if task.kind != "multiclass" or task.metric != "accuracy":
        return {}
    train, test = task.split.train, task.split.test
    train = train[task.y[train] != UNLABELLED]
    test = test[task.y[test] != UNLABELLED]
    counts_C = torch.bincount(task.y[train], minlength=task.out_dim)
    commonest = int(counts_C.argmax())
    spread_NC = _propagate(task, train)
    # Nodes that no label reaches are given the commonest class.
    answer_N = torch.where(spread_NC.sum(1) > 0, spread_NC.argmax(1), commonest)
    return {
        "commonest class": float((task.y[test] == commonest).double().mean()),
        "label propagation": float((task.y[test] == answer_N[test]).double().mean()),
    }


def _propagate(
    task: NodeTask, train: torch.Tensor, alpha: float = 0.9, steps: int = 50
) -> torch.Tensor:
    nodes, (source, target) = task.graph.num_nodes, task.graph.edge_index
    degree_N = torch.bincount(target, minlength=nodes).double().clamp(min=1).rsqrt()
    seed_NC = torch.zeros(nodes, task.out_dim, dtype=torch.float64)
    seed_NC[train, task.y[train]] = 1
    weight_E = (degree_N[source] * degree_N[target])[:, None]
    spread_NC = seed_NC
    for _ in range(steps):
        arrived_NC = torch.zeros_like(seed_NC).index_add_(0, target, weight_E * spread_NC[source])
        spread_NC = alpha * arrived_NC + (1 - alpha) * seed_NC
    return spread_NC
