"""Citation graphs of the GNN benchmark (Shchur et al., 2018) from their npz files.

Adjacency and features are sparse rows; citations are directed; nodes and classes have names.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from isoattn.graph.data.source import (
    Array,
    TaskSource,
    as_tensor,
    find_folder,
    normalise_rows,
    read_npz,
)
from isoattn.graph.data.split import SplitOptions, draw_split
from isoattn.graph.graph import Graph, tidy_edges
from isoattn.graph.task import NodeTask

PARTS = ("data", "indices", "indptr", "shape")
KEYS = (*(f"{table}_{part}" for table in ("adj", "attr") for part in PARTS), "labels")


class GnnBenchmark(TaskSource):
    """A citation network whose nodes have names.

    Args:
        name: of the file without ``.npz``, such as ``cora`` or ``citeseer``.
        root: folder with the file; ``<root>/gnn-benchmark`` is looked in as well.
        split: drawn; the files bring none.
        undirected: add the other direction to each citation.
        row_normalize: divide each feature row by its sum.
    """

    def __init__(
        self,
        name: str = "cora",
        root: str = "data",
        split: SplitOptions = SplitOptions("random"),  # noqa: B008 - frozen
        undirected: bool = True,
        row_normalize: bool = True,
    ) -> None:
        self.name = name
        self.root = Path(root)
        self.split = split.only(f"gnn-benchmark {name}")
        self.undirected = undirected
        self.row_normalize = row_normalize

    def load(self) -> NodeTask:
        """The task, with the names of the file as node ids."""
        file = f"{self.name}.npz"
        places = [self.root, self.root / "gnn-benchmark"]
        arrays = read_npz(find_folder(self.name, places, [file]) / file, KEYS)
        y = as_tensor(arrays["labels"], torch.int64)
        rows, columns = _entries(arrays, "adj")
        edges, counts = tidy_edges(torch.stack([rows, columns]), len(y), undirected=self.undirected)
        rows, columns = _entries(arrays, "attr")
        x = torch.zeros(len(y), int(as_tensor(arrays["attr_shape"], torch.int64)[1]))
        x[rows, columns] = as_tensor(arrays["attr_data"], torch.float32)
        number = int(y.max()) + 1
        names = arrays.get("class_names", np.arange(number)).tolist()
        ids = arrays["node_names"].tolist() if "node_names" in arrays else None
        return NodeTask(
            name=self.name,
            graph=Graph(normalise_rows(x) if self.row_normalize else x, edges).check_ids(),
            y=y,
            kind="multiclass",
            classes=tuple(str(name) for name in names),
            metric="accuracy",
            split=draw_split(y, "multiclass", self.split),
            node_ids=tuple(str(name) for name in ids) if ids is not None else None,
            facts={
                "source": "shchur/gnn-benchmark",
                "edges": counts,
                "undirected": self.undirected,
                "row_normalize": self.row_normalize,
            },
        )


def _entries(arrays: Mapping[str, Array], table: str) -> tuple[Tensor, Tensor]:
    """Row and column of each stored entry of a sparse table."""
    pointer = as_tensor(arrays[f"{table}_indptr"], torch.int64)
    rows = torch.repeat_interleave(torch.arange(len(pointer) - 1), pointer.diff())
    return rows, as_tensor(arrays[f"{table}_indices"], torch.int64)
