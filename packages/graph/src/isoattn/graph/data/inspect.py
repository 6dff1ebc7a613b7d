"""What is odd about a node task before training: errors spoil a result, warnings do not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from isoattn.graph.data.source import TaskSource
from isoattn.graph.task import NodeTask

Level = Literal["error", "warning"]
SHOWN = 5


@dataclass(frozen=True)
class Finding:
    """One oddity.

    Args:
        level: ``error``: a result would be wrong or not a number; ``warning``: worth knowing.
        kind: short stable name, such as ``isolated_nodes``.
        text: what was found, how many, which, and what to do.
        count: how many.
    """

    level: Level
    kind: str
    text: str
    count: int = 1


@dataclass(frozen=True)
class Report:
    """Figures of a task and what is odd about it.

    Args:
        name: of the task.
        figures: nodes, entries, components, homophily, sizes of the split, ...
        findings: errors first.
    """

    name: str
    figures: dict[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Findings that forbid training."""
        return tuple(finding for finding in self.findings if finding.level == "error")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """Findings that do not."""
        return tuple(finding for finding in self.findings if finding.level == "warning")

    def text(self) -> str:
        """For people: figures, then findings."""
        width = max((len(key) for key in self.figures), default=0)
        lines = [self.name]
        lines += [f"  {key:<{width}}  {_plain(value)}" for key, value in self.figures.items()]
        lines += [f"  {f.level.upper()} {f.kind}: {f.text}" for f in self.findings]
        return "\n".join([*lines, f"  {len(self.errors)} errors, {len(self.warnings)} warnings"])

    def to_json(self) -> str:
        """For programs; NaN becomes null."""
        content = asdict(self) | {"errors": len(self.errors), "warnings": len(self.warnings)}
        return json.dumps(_finite(content), indent=2, allow_nan=False)

    def raise_errors(self) -> None:
        """Stop if there is an error.

        Raises:
            ValueError: lists the errors.
        """
        if self.errors:
            found = "; ".join(f"{f.kind}: {f.text}" for f in self.errors)
            raise ValueError(f"{self.name} cannot be trained on: {found}")


def inspect_source(source: TaskSource) -> Report:
    """The report of a source; what its loading refuses (such as overlapping splits) is an error."""
    try:
        task = source.load()
    except ValueError as error:
        return Report(type(source).__name__, {}, (Finding("error", "load", str(error)),))
    return inspect_task(task)


def inspect_task(task: NodeTask) -> Report:
    """Look at features, edges, labels and split of a task.

    Takes O(N F + E); nothing is changed.
    """
    findings = [
        *_feature_findings(task),
        *_edge_findings(task),
        *_label_findings(task),
    ]
    findings.sort(key=lambda finding: finding.level)
    return Report(task.name, _figures(task), tuple(findings))


def _feature_findings(task: NodeTask) -> Iterator[Finding]:
    x = task.graph.x
    bad_NF = ~x.isfinite()
    bad = bad_NF.any(1)
    if bool(bad.any()):
        yield Finding(
            "error",
            "features_not_finite",
            f"{_have(bad)} NaN or infinite features, such as {_some(task, bad)}"
            f"{_columns(task, bad_NF.any(0))}: fill or drop them",
            int(bad.sum()),
        )
    zero = (x == 0).all(1)
    if bool(zero.any()):
        yield Finding(
            "warning",
            "zero_rows",
            f"{_have(zero)} no feature other than 0, such as {_some(task, zero)}",
            int(zero.sum()),
        )
    if len(x) > 1:
        constant = int((x == x[0]).all(0).sum())
        if constant:
            yield Finding(
                "warning", "constant_features", f"{constant} features never vary", constant
            )


def _edge_findings(task: NodeTask) -> Iterator[Finding]:
    graph, counts = task.graph, task.facts.get("edges", {})
    if graph.num_edges == 0:
        yield Finding(
            "warning",
            "no_edges",
            "there are no edges: relational bias and edge loss have no effect",
        )
    else:
        isolated = torch.bincount(graph.edge_index.flatten(), minlength=graph.num_nodes) == 0
        if bool(isolated.any()):
            yield Finding(
                "warning",
                "isolated_nodes",
                f"{_have(isolated)} no edge, such as {_some(task, isolated)}",
                int(isolated.sum()),
            )
        if (one_way := _one_way(graph.edge_index, graph.num_nodes)) > 0:
            yield Finding(
                "warning",
                "directed",
                f"{one_way} of {graph.num_edges} entries have no entry back: messages flow one "
                "way; set undirected=true unless that is meant",
                one_way,
            )
    for kind, key, words in (
        ("duplicate_edges", "duplicates_dropped", "entries occurred more than once; one was kept"),
        ("self_loops", "self_loops_dropped", "self loops were dropped"),
    ):
        if counts.get(key):
            yield Finding("warning", kind, f"{counts[key]} {words}", counts[key])


def _label_findings(task: NodeTask) -> Iterator[Finding]:
    labelled = task.labelled()
    for part, nodes in task.split.items():
        if not len(nodes):
            yield Finding("error", f"empty_{part}", f"the {part} part has no node")
            continue
        without = int((~labelled[nodes]).sum())
        if without:
            yield Finding(
                "error" if without == len(nodes) else "warning",
                f"unlabelled_{part}",
                f"{without} of {len(nodes)} {part} nodes have no label and do not count",
                without,
            )
        absent = [name for name, n in zip(task.classes, _counts(task, nodes), strict=True) if not n]
        if absent and without < len(nodes):
            yield Finding(
                "error" if _unscorable(task, len(absent)) else "warning",
                f"absent_classes_{part}",
                f"{len(absent)} of {len(task.classes)} "
                f"{'classes' if task.kind == 'multiclass' else 'labels'} do not occur in {part}: "
                f"{', '.join(absent[:SHOWN])}{', ...' if len(absent) > SHOWN else ''}",
                len(absent),
            )


def _unscorable(task: NodeTask, absent: int) -> bool:
    """ROC-AUC needs both sides; one class absent of two leaves nothing to score or learn."""
    return task.metric == "roc_auc" and (task.kind == "multiclass" or absent == len(task.classes))


def _counts(task: NodeTask, nodes: Tensor) -> list[int]:
    """Nodes of each class, or nodes for which each label is 1."""
    y = task.y[nodes]
    if task.kind == "multilabel":
        counts: list[int] = (y == 1).sum(0).tolist()
    else:
        counts = torch.bincount(y[y >= 0], minlength=len(task.classes)).tolist()
    return counts


def _figures(task: NodeTask) -> dict[str, Any]:
    graph = task.graph
    figures: dict[str, Any] = {
        "nodes": graph.num_nodes,
        "features": graph.x.shape[1],
        "entries": graph.num_edges,
        "components": components(graph.edge_index, graph.num_nodes),
        "kind": task.kind,
        "classes": len(task.classes),
        "metric": task.metric,
        "labelled": int(task.labelled().sum()),
    }
    figures |= {part: len(nodes) for part, nodes in task.split.items()}
    if task.kind == "multiclass":
        figures["edge_homophily"] = edge_homophily(graph.edge_index, task.y)
        known = task.y[task.y >= 0]
        shares = torch.bincount(known, minlength=len(task.classes)).double() / max(len(known), 1)
        figures["majority_class"] = float(shares.max())
    return figures


def edge_homophily(edge_index: Tensor, y: Tensor) -> float:
    """Share of entries between labelled nodes that join equal labels; NaN without such entries."""
    source, target = y[edge_index[0]], y[edge_index[1]]
    known = (source >= 0) & (target >= 0)
    return float((source == target)[known].double().mean())


def components(edge_index: Tensor, num_nodes: int) -> int:
    """Number of connected components, direction ignored; a few passes over the entries.

    Each node takes the least label around it, and so does the node that its label names (Shiloach
    and Vishkin, 1982), until nothing changes.
    """
    source, target = torch.cat([edge_index, edge_index.flip(0)], 1)
    label = torch.arange(num_nodes)
    while True:
        low = label.scatter_reduce(0, label[target], label[source], "amin")
        low = low.scatter_reduce(0, target, label[source], "amin")
        low = low[low]
        if torch.equal(low, label):
            return len(torch.unique(label))
        label = low


def _one_way(edge_index: Tensor, num_nodes: int) -> int:
    code = edge_index[0] * num_nodes + edge_index[1]
    back = edge_index[1] * num_nodes + edge_index[0]
    return int((~torch.isin(code, back)).sum())


def _have(mask_N: Tensor) -> str:
    count = int(mask_N.sum())
    return "1 node has" if count == 1 else f"{count} nodes have"


def _some(task: NodeTask, mask_N: Tensor) -> str:
    """The first nodes of a mask: by their ids where they have some, else by number."""
    numbers: list[int] = mask_N.nonzero()[:SHOWN, 0].tolist()
    if task.node_ids is None:
        return f"node {', '.join(map(str, numbers))}"
    return ", ".join(repr(task.node_ids[number]) for number in numbers)


def _columns(task: NodeTask, mask_F: Tensor) -> str:
    """The first features of a mask, where they have names."""
    names = task.facts.get("features") or []
    if len(names) != len(mask_F):
        return ""
    first = [names[number] for number in mask_F.nonzero()[:SHOWN, 0].tolist()]
    more = ", ..." if int(mask_F.sum()) > SHOWN else ""
    return f" (feature {', '.join(first)}{more})"


def _plain(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and value != value else value
