"""Figures of a node task beyond the report of isoattn.graph: degrees, features, classes by part.

Shape suffixes: N nodes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from isoattn.graph.data import Report
from isoattn.graph.graph import Graph
from isoattn.graph.task import NodeTask

SIDES = ("all", "train", "val", "test")


def with_figures(report: Report, task: NodeTask) -> Report:
    """The report with ``degree``, ``feature_values``, ``chance_homophily``, ``class_counts``."""
    more: dict[str, Any] = {
        "degree": spread(degrees(task.graph)),
        "feature_values": feature_values(task.graph.x),
        "class_counts": class_counts(task),
        "edges": dict(task.facts.get("edges", {})),
    }
    if task.kind == "multiclass":
        more["chance_homophily"] = chance_homophily(task.graph.edge_index, task.y)
    return replace(report, figures={**report.figures, **more})


def degrees(graph: Graph) -> Tensor:
    """Entries that arrive at each node, int64 (N,)."""
    return torch.bincount(graph.edge_index[1], minlength=graph.num_nodes)


def spread(values_N: Tensor) -> dict[str, float]:
    """Least, median, mean and greatest of integers, and how many are 0."""
    ordered = values_N.sort().values.double()
    middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    return {
        "min": int(ordered[0]),
        "median": float(middle),
        "mean": float(ordered.mean()),
        "max": int(ordered[-1]),
        "zero": int((values_N == 0).sum()),
    }


def feature_values(x: Tensor) -> dict[str, float]:
    """Share of numbers that are not 0, and the least and the greatest finite one."""
    finite = x[x.isfinite()]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    return {"nonzero": float((x != 0).double().mean()), "min": low, "max": high}


def class_counts(task: NodeTask) -> dict[str, dict[str, int]]:
    """Nodes of each class, or nodes that have each label, of all and of each part."""
    everywhere = torch.arange(task.graph.num_nodes)
    columns = [
        _counts(task, everywhere),
        *(_counts(task, nodes) for _, nodes in task.split.items()),
    ]
    rows = zip(*columns, strict=True)
    return {
        name: dict(zip(SIDES, row, strict=True))
        for name, row in zip(task.classes, rows, strict=True)
    }


def chance_homophily(edge_index: Tensor, y_N: Tensor) -> float:
    """Edge homophily of the same degrees and labels with ends joined at random; NaN without any."""
    source, target = y_N[edge_index[0]], y_N[edge_index[1]]
    known = (source >= 0) & (target >= 0)
    if not bool(known.any()):
        return float("nan")
    size = int(y_N.max()) + 1
    starts, ends = (torch.bincount(end[known], minlength=size).double() for end in (source, target))
    return float((starts * ends).sum() / known.sum() ** 2)


def _counts(task: NodeTask, nodes: Tensor) -> list[int]:
    y = task.y[nodes]
    if task.kind == "multilabel":
        positive: list[int] = (y == 1).sum(0).tolist()
        return positive
    counted: list[int] = torch.bincount(y[y >= 0], minlength=len(task.classes)).tolist()
    return counted
