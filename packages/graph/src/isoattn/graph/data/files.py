"""The user's own graphs: tables with string ids, and npz.

Ids are kept as they are written ("007" stays "007") and come back in every export.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from isoattn.graph.data.knn import knn_edges, standardise
from isoattn.graph.data.source import (
    Array,
    TaskSource,
    as_tensor,
    normalise_rows,
    read_npz,
)
from isoattn.graph.data.split import DRAWN, SplitOptions, draw_split, split_from_masks
from isoattn.graph.graph import Graph, tidy_edges
from isoattn.graph.task import UNLABELLED, Kind, Metric, NodeTask, Split

PART_NAMES = {
    "train": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "": "",
}
MASKS = ("train_mask", "val_mask", "test_mask")
SHOWN = 5


def build_task(
    name: str,
    x: Tensor,
    pairs: Tensor,
    y: Tensor,
    *,
    classes: Sequence[str],
    split: Split | SplitOptions,
    metric: Metric = "accuracy",
    undirected: bool = True,
    self_loops: bool = False,
    row_normalize: bool = False,
    node_ids: Sequence[str] | None = None,
    features: Sequence[str] | None = None,
    source: str = "python",
) -> NodeTask:
    """A task from tensors.

    Args:
        name: for messages and results.
        x: float (N, F).
        pairs: int64 (2, E), entries source -> target, in any order.
        y: int64 (N,), -1 = unlabelled; or float (N, T) with NaN, for multilabel.
        classes: names of the classes or labels.
        split: a split, or options of a drawn one.
        metric: ``accuracy`` or ``roc_auc``.
        undirected: add the other direction to each entry.
        self_loops: keep entries from a node to itself.
        row_normalize: divide each feature row by its sum.
        node_ids: names of the nodes.
        features: names of the columns of x, kept with the facts.
        source: where the data come from.
    """
    kind: Kind = "multiclass" if y.ndim == 1 else "multilabel"
    Graph(x, pairs).check_ids()
    edges, counts = tidy_edges(pairs, len(x), undirected=undirected, self_loops=self_loops)
    return NodeTask(
        name=name,
        graph=Graph(normalise_rows(x) if row_normalize else x, edges),
        y=y,
        kind=kind,
        classes=tuple(classes),
        metric=metric,
        split=draw_split(y, kind, split) if isinstance(split, SplitOptions) else split,
        node_ids=tuple(node_ids) if node_ids is not None else None,
        facts={
            "source": source,
            "edges": counts,
            "undirected": undirected,
            "row_normalize": row_normalize,
            **({"features": list(features)} if features is not None else {}),
        },
    )


def data_name(file: Path) -> str:
    """What data in a file are called: after the file, or after the folder of a ``nodes.csv``."""
    return file.resolve().parent.name if file.stem == "nodes" else file.stem


class TableFiles(TaskSource):
    """A table of nodes and a table of edges, as CSV.

    Args:
        nodes: CSV with one row a node.
        edges: CSV with one row an edge; ``None``: no graph, or a kNN graph over the features.
        id_column: of the nodes; any text, each once.
        label_column: a class name a node, empty = unlabelled; or several columns of 0, 1 or empty
            for a multilabel task; ``None``: no labels, to predict only.
        feature_columns: numbers; ``None``: all columns that are not id, label or split.
        split_column: train, val, test or empty; ``None``: the split is drawn.
        source_column, target_column: of the edges, ids of nodes.
        knn: neighbours of the kNN graph, over standardised features, where there are no edges.
        metric: ``accuracy``, or ``roc_auc`` for two classes or several label columns.
        split: drawn split, where there is no split column.
        undirected: add the other direction to each edge.
        self_loops: keep edges from a node to itself.
        row_normalize: divide each feature row by its sum.
    """

    def __init__(
        self,
        nodes: str,
        edges: str | None = None,
        id_column: str = "id",
        label_column: str | list[str] | None = "label",
        feature_columns: list[str] | None = None,
        split_column: str | None = None,
        source_column: str = "source",
        target_column: str = "target",
        knn: int = 0,
        metric: Metric = "accuracy",
        split: SplitOptions | None = None,
        undirected: bool = True,
        self_loops: bool = False,
        row_normalize: bool = False,
    ) -> None:
        if edges is not None and knn:
            raise ValueError("knn builds edges where no edge file is given: drop knn or edges")
        if split_column is not None and split is not None:
            raise ValueError("split_column gives the split already: drop split or split_column")
        self.nodes = Path(nodes)
        self.edges = Path(edges) if edges is not None else None
        self.id_column = id_column
        self.label_column = label_column
        self.feature_columns = feature_columns
        self.split_column = split_column
        self.source_column = source_column
        self.target_column = target_column
        self.knn = knn
        self.metric: Metric = metric
        self.split = (split or SplitOptions("random")).only("a table")
        self.undirected = undirected
        self.self_loops = self_loops
        self.row_normalize = row_normalize

    def load(self) -> NodeTask:
        """The task; node i is row i of the node table."""
        labels = [self.label_column] if isinstance(self.label_column, str) else self.label_column
        labels = labels or []
        special = [self.id_column, *labels, *([self.split_column] if self.split_column else [])]
        table = _read_table(self.nodes, [*special, *(self.feature_columns or [])])
        ids = table[self.id_column]
        place = _number(ids, self.nodes)
        features = self.feature_columns or [column for column in table if column not in special]
        x = _numbers(table, features, self.nodes, len(ids))
        if isinstance(self.label_column, str):
            y, classes = encode_labels(table[self.label_column])
        elif not labels:
            y, classes = encode_labels([""] * len(ids))
        else:
            y, classes = _numbers(table, labels, self.nodes, len(ids)), list(labels)
        return build_task(
            data_name(self.nodes),
            x,
            self._pairs(x, place),
            y,
            classes=classes,
            split=self._split(table),
            metric=self.metric,
            undirected=self.undirected,
            self_loops=self.self_loops,
            row_normalize=self.row_normalize,
            node_ids=ids,
            features=features,
            source=self.nodes.name,
        )

    def _pairs(self, x: Tensor, place: Mapping[str, int]) -> Tensor:
        if self.edges is None:
            return knn_edges(standardise(x), self.knn)[0]
        table = _read_table(self.edges, [self.source_column, self.target_column])
        ends = [table[self.source_column], table[self.target_column]]
        unknown = sorted({end for column in ends for end in column if end not in place})
        if unknown:
            raise ValueError(
                f"{self.edges} names {len(unknown)} node(s) that {self.nodes} lacks, such as "
                f"{', '.join(map(repr, unknown[:SHOWN]))}: add them, or drop their edges"
            )
        numbers = [[place[end] for end in column] for column in ends]
        return torch.tensor(numbers, dtype=torch.int64).reshape(2, -1)

    def _split(self, table: Mapping[str, list[str]]) -> Split | SplitOptions:
        if self.split_column is None:
            return self.split
        return split_from_names(table[self.split_column], f"{self.nodes}: {self.split_column}")


class NpzFile(TaskSource):
    """An npz file with ``x`` (N, F), ``edge_index`` (2, E) and ``y``.

    Optional keys: ``train_mask``, ``val_mask``, ``test_mask`` (N,); ``node_ids`` and ``classes``,
    names. y is (N,) class numbers with -1 = unlabelled, or (N, T) with NaN.

    Args:
        path: of the file.
        split: ``public``: its masks; or drawn.
        metric: ``accuracy``, or ``roc_auc`` for two classes or multilabel.
        undirected: add the other direction to each entry.
        self_loops: keep entries from a node to itself.
        row_normalize: divide each feature row by its sum.
    """

    def __init__(
        self,
        path: str,
        split: SplitOptions = SplitOptions("public"),  # noqa: B008 - frozen
        metric: Metric = "accuracy",
        undirected: bool = True,
        self_loops: bool = False,
        row_normalize: bool = False,
    ) -> None:
        self.path = Path(path)
        self.split = split.only("an npz file", "public")
        self.metric: Metric = metric
        self.undirected = undirected
        self.self_loops = self_loops
        self.row_normalize = row_normalize

    def load(self) -> NodeTask:
        """The task."""
        drawn = self.split.kind in DRAWN
        arrays = read_npz(self.path, ("x", "edge_index", "y", *(() if drawn else MASKS)))
        multiclass = arrays["y"].ndim == 1
        y = as_tensor(arrays["y"], torch.int64 if multiclass else torch.float32)
        number = int(y.max()) + 1 if multiclass else y.shape[1]
        split: Split | SplitOptions = self.split
        if not drawn:
            self.split.single(str(self.path))
            split = split_from_masks(*(as_tensor(arrays[key], torch.bool) for key in MASKS))
        return build_task(
            self.path.stem,
            as_tensor(arrays["x"], torch.float32),
            as_tensor(arrays["edge_index"], torch.int64),
            y,
            classes=_names(arrays.get("classes")) or [str(c) for c in range(number)],
            split=split,
            metric=self.metric,
            undirected=self.undirected,
            self_loops=self.self_loops,
            row_normalize=self.row_normalize,
            node_ids=_names(arrays.get("node_ids")),
            source=self.path.name,
        )


def encode_labels(labels: Sequence[str]) -> tuple[Tensor, list[str]]:
    """Class numbers in alphabetical order of the names; the empty text is unlabelled (-1)."""
    classes = sorted({text for text in labels if text})
    if all(text.lstrip("-").isdigit() for text in classes):
        classes.sort(key=int)
    number = {text: i for i, text in enumerate(classes)} | {"": UNLABELLED}
    return torch.tensor([number[text] for text in labels], dtype=torch.int64), classes


def split_from_names(names: Sequence[str], where: str) -> Split:
    """A split from one name a node; empty: in no part.

    Raises:
        ValueError: a name that is no part.
    """
    lowered = [name.strip().lower() for name in names]
    unknown = sorted(set(lowered) - set(PART_NAMES))
    if unknown:
        raise ValueError(
            f"{where} has {', '.join(map(repr, unknown[:SHOWN]))}: use train, val, test or nothing"
        )
    parts = np.array([PART_NAMES[name] for name in lowered])
    return split_from_masks(*(torch.from_numpy(parts == p) for p in ("train", "val", "test")))


def _read_table(path: Path, needed: Sequence[str]) -> dict[str, list[str]]:
    """Columns of a CSV file as text."""
    import pandas

    if not path.is_file():
        raise FileNotFoundError(f"The folder {path.parent} has no file {path.name}")
    try:
        # As text: "007" stays an id, and a node called "NA" exists.
        table = pandas.read_csv(path, dtype=str, keep_default_na=False, skipinitialspace=True)
    except (pandas.errors.ParserError, pandas.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no CSV table with a header, or damaged: {error}") from error
    missing = [column for column in needed if column not in table.columns]
    if missing:
        raise ValueError(
            f"{path} lacks the column(s) {', '.join(missing)}; it has {', '.join(table.columns)}"
        )
    return {str(column): table[column].tolist() for column in table.columns}


def _number(ids: Sequence[str], path: Path) -> dict[str, int]:
    place = {node: i for i, node in enumerate(ids)}
    if len(place) != len(ids):
        counted: dict[str, int] = {}
        for node in ids:
            counted[node] = counted.get(node, 0) + 1
        twice = [node for node, times in counted.items() if times > 1]
        raise ValueError(
            f"{path} has {len(twice)} id(s) more than once, such as "
            f"{', '.join(map(repr, twice[:SHOWN]))}: each node needs an id of its own"
        )
    return place


def _numbers(
    table: Mapping[str, list[str]], columns: Sequence[str], path: Path, rows: int
) -> Tensor:
    """Columns as float32 (N, F), empty cells as NaN; a single 1 where there is no column."""
    if not columns:
        return torch.ones(rows, 1)
    values = np.empty((rows, len(columns)), dtype=np.float32)
    for i, column in enumerate(columns):
        try:
            values[:, i] = [float(cell) if cell else np.nan for cell in table[column]]
        except ValueError as error:
            parts = {cell.strip().lower() for cell in table[column]} <= PART_NAMES.keys()
            remedy = (
                f"if it is the split, say split_column={column}"
                if parts
                else "name the numeric ones in feature_columns"
            )
            raise ValueError(
                f"{path}: the column {column} is no column of numbers ({error}); {remedy}"
            ) from error
    return torch.from_numpy(values)


def _names(values: Array | None) -> list[str] | None:
    return None if values is None else [str(value) for value in values.tolist()]
