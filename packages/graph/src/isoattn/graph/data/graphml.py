"""The user's own graphs as GraphML, or as networkx has them in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from isoattn.graph.data.files import build_task, encode_labels, split_from_names
from isoattn.graph.data.source import TaskSource
from isoattn.graph.data.split import SplitOptions
from isoattn.graph.task import Metric, NodeTask, Split


class GraphMLFile(TaskSource):
    """A GraphML file; features, label and split are attributes of its nodes.

    Args:
        path: of the file.
        label: attribute with the class name; nodes without it are unlabelled; ``None``: no labels,
            to predict only.
        features: attributes with numbers; ``None``: all numeric ones that every node has.
        split_attribute: train, val, test, or absent; ``None``: the split is drawn.
        split: drawn split, where there is no split attribute.
        metric: ``accuracy``, or ``roc_auc`` for two classes.
        undirected: add the other direction to each edge; an undirected file needs it.
    """

    def __init__(
        self,
        path: str,
        label: str | None = "label",
        features: list[str] | None = None,
        split_attribute: str | None = None,
        split: SplitOptions | None = None,
        metric: Metric = "accuracy",
        undirected: bool = True,
    ) -> None:
        self.path = Path(path)
        self.label = label
        self.features = features
        self.split_attribute = split_attribute
        self.split = split
        self.metric: Metric = metric
        self.undirected = undirected

    def load(self) -> NodeTask:
        """The task."""
        import networkx

        if not self.path.is_file():
            raise FileNotFoundError(f"The folder {self.path.parent} has no file {self.path.name}")
        try:
            graph = networkx.read_graphml(self.path)
        except Exception as error:  # the parser raises what it meets
            raise ValueError(f"{self.path} is no GraphML file, or damaged: {error}") from error
        return from_networkx(
            graph,
            name=self.path.stem,
            label=self.label,
            features=self.features,
            split_attribute=self.split_attribute,
            split=self.split,
            metric=self.metric,
            undirected=self.undirected,
        )


def from_networkx(
    graph: Any,
    *,
    name: str = "networkx",
    label: str | None = "label",
    features: Sequence[str] | None = None,
    split_attribute: str | None = None,
    split: SplitOptions | None = None,
    metric: Metric = "accuracy",
    undirected: bool = True,
) -> NodeTask:
    """A task from a networkx graph with attributes on its nodes.

    Args:
        graph: of any networkx kind; nodes are named by ``str``.
        name: for messages and results.
        label: attribute with the class; nodes without it are unlabelled; ``None``: no labels, to
            predict only.
        features: attributes with a number; ``None``: all numeric ones that every node has, in
            alphabetical order; where there is none, a single 1.
        split_attribute: train, val, test, or absent; ``None``: the split is drawn.
        split: options of a drawn split.
        metric: ``accuracy`` or ``roc_auc``.
        undirected: add the other direction to each edge. An undirected graph needs it.

    Example:
        >>> task = from_networkx(networkx.karate_club_graph(), label="club")
        >>> task.classes
        ('Mr. Hi', 'Officer')
    """
    if split_attribute is not None and split is not None:
        raise ValueError("split_attribute gives the split already: drop split or split_attribute")
    if not undirected and not graph.is_directed():
        raise ValueError(f"{name} is an undirected graph: undirected must be true")
    nodes = list(graph.nodes(data=True))
    place = {node: i for i, (node, _) in enumerate(nodes)}
    labels = [str(attributes.get(label, "")) for _, attributes in nodes]
    if label is not None and not any(labels):
        raise ValueError(f"{name}: no node has the attribute {label!r}; they have {_known(nodes)}")
    excluded = {label, split_attribute}
    chosen = list(features) if features is not None else _numeric(nodes, excluded)
    missing = [key for key in chosen if any(key not in attributes for _, attributes in nodes)]
    if missing:
        raise ValueError(f"{name}: not every node has {', '.join(missing)}; fill or leave out")
    rows = [[float(attributes[key]) for key in chosen] or [1.0] for _, attributes in nodes]
    pairs = [[place[a], place[b]] for a, b in graph.edges()]
    y, classes = encode_labels(labels)
    given: Split | SplitOptions = (split or SplitOptions("random")).only(name)
    if split_attribute is not None:
        names = [str(attributes.get(split_attribute, "")) for _, attributes in nodes]
        given = split_from_names(names, f"{name}: {split_attribute}")
    return build_task(
        name,
        torch.tensor(rows, dtype=torch.float32),
        torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).T,
        y,
        classes=classes,
        split=given,
        metric=metric,
        undirected=undirected,
        node_ids=[str(node) for node, _ in nodes],
        features=chosen or None,
        source="networkx",
    )


def _known(nodes: Sequence[tuple[Any, Mapping[str, Any]]]) -> str:
    return ", ".join(sorted({key for _, attributes in nodes for key in attributes})) or "none"


def _numeric(
    nodes: Sequence[tuple[Any, Mapping[str, Any]]], excluded: set[str | None]
) -> list[str]:
    shared = set.intersection(*(set(attributes) for _, attributes in nodes)) - excluded
    return sorted(
        key
        for key in shared
        if all(isinstance(attributes[key], (int, float)) for _, attributes in nodes)
    )
