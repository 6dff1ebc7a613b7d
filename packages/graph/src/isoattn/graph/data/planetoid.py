"""Cora, CiteSeer, PubMed from the raw Planetoid files (Yang et al., ICML 2016), read safely.

The files are Python-2 pickles. They are read by an unpickler that knows numpy arrays, sparse rows,
lists and defaultdicts, and refuses everything else.
"""

from __future__ import annotations

import collections
import pickle
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy._core.multiarray import _reconstruct
from torch import Tensor

from isoattn.graph.data.source import (
    TaskSource,
    as_tensor,
    find_folder,
    normalise_rows,
    read_npz,
)
from isoattn.graph.data.split import DRAWN, SplitOptions, draw_split, split_from_masks
from isoattn.graph.graph import Graph, tidy_edges
from isoattn.graph.task import UNLABELLED, NodeTask, Split

Name = Literal["cora", "citeseer", "pubmed"]
FOLDERS = {"cora": "Cora", "citeseer": "CiteSeer", "pubmed": "PubMed"}
SUFFIXES = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
# Named by the sizes of the classes, which are those of the named files of gnn-benchmark.
CLASSES = {
    "cora": (
        "Theory",
        "Reinforcement_Learning",
        "Genetic_Algorithms",
        "Neural_Networks",
        "Probabilistic_Methods",
        "Case_Based",
        "Rule_Learning",
    ),
}
VALIDATION = 500


class Planetoid(TaskSource):
    """A citation network of Planetoid.

    Args:
        name: ``cora``, ``citeseer`` or ``pubmed``.
        root: folder with ``ind.<name>.*``; ``<root>/<Name>/raw`` (as torch_geometric has it) and
            ``<root>/planetoid`` are looked in as well.
        split: ``public`` (20 per class, 500 val, 1000 test), ``full``, ``geom-gcn`` (files
            ``<name>_split_0.6_0.2_<index>.npz`` that the user brings), or drawn.
        row_normalize: divide each feature row by its sum, as NodeFormer does.

    CiteSeer has 15 nodes that the files give neither features nor label; they are unlabelled here
    (torch_geometric gives them class 0).
    """

    def __init__(
        self,
        name: Name = "cora",
        root: str = "data",
        split: SplitOptions = SplitOptions("public"),  # noqa: B008 - frozen
        row_normalize: bool = True,
    ) -> None:
        if name not in FOLDERS:
            raise ValueError(f"Planetoid has {', '.join(FOLDERS)}, got {name!r}")
        self.name = name
        self.root = Path(root)
        self.split = split.only(name, "public", "full", "geom-gcn")
        self.row_normalize = row_normalize

    def load(self) -> NodeTask:
        """The task; undirected, without self loops and duplicates."""
        files = {suffix: f"ind.{self.name}.{suffix}" for suffix in SUFFIXES}
        base = self.root / FOLDERS[self.name] / "raw"
        folder = find_folder(
            self.name, [self.root, base, self.root / "planetoid"], list(files.values())
        )
        raw = {key: _read(folder / file) for key, file in files.items() if key != "test.index"}
        test = torch.from_numpy(np.loadtxt(folder / files["test.index"], dtype=np.int64))
        x, one_hot = _place(raw, test)
        y = torch.where(one_hot.sum(1) > 0, one_hot.argmax(1), UNLABELLED)
        edges, counts = tidy_edges(_edges(raw["graph"]), len(y))
        names = CLASSES.get(self.name, tuple(str(c) for c in range(one_hot.shape[1])))
        return NodeTask(
            name=self.name,
            graph=Graph(normalise_rows(x) if self.row_normalize else x, edges).check_ids(),
            y=y,
            kind="multiclass",
            classes=names,
            metric="accuracy",
            split=self._split(y, len(raw["y"]), test),
            facts={
                "source": "kimiyoung/planetoid",
                "edges": counts,
                "undirected": True,
                "unlabelled": int((y == UNLABELLED).sum()),
                "row_normalize": self.row_normalize,
            },
        )

    def _split(self, y: Tensor, train: int, test: Tensor) -> Split:
        options = self.split
        if options.kind in DRAWN:
            return draw_split(y, "multiclass", options)
        if options.kind == "geom-gcn":
            file = f"{self.name}_split_0.6_0.2_{options.index}.npz"
            places = [self.root / FOLDERS[self.name] / "geom-gcn" / "raw", self.root / "geom-gcn"]
            keys = ("train_mask", "val_mask", "test_mask")
            masks = read_npz(
                find_folder(f"{self.name} geom-gcn split", places, [file]) / file, keys
            )
            return split_from_masks(*(as_tensor(masks[key], torch.bool) for key in keys))
        options.single(self.name)
        val = torch.arange(train, train + VALIDATION)
        test = test.sort().values
        if options.kind == "public":
            return Split(torch.arange(train), val, test)
        others = y != UNLABELLED
        others[val] = False
        others[test] = False
        return Split(others.nonzero()[:, 0], val, test)


def _place(raw: dict[str, Any], test: Tensor) -> tuple[Tensor, Tensor]:
    """Features and one-hot labels of all nodes; test rows go where test.index says."""
    nodes = max(len(raw["graph"]), int(test.max()) + 1)
    tables = []
    for known, tested in (("allx", "tx"), ("ally", "ty")):
        table = torch.zeros(nodes, raw[known].shape[1])
        table[: len(raw[known])] = torch.from_numpy(raw[known]).float()
        table[test] = torch.from_numpy(raw[tested]).float()
        tables.append(table)
    return tables[0], tables[1]


def _edges(graph: dict[int, list[int]]) -> Tensor:
    sources = [node for node, others in graph.items() for _ in others]
    targets = [other for others in graph.values() for other in others]
    return torch.tensor([sources, targets], dtype=torch.int64)


class _SparseRows:
    """Stands in for scipy's csr_matrix; its state arrives as attributes."""

    data: Any
    indices: Any
    indptr: Any
    _shape: Any

    def dense(self) -> Any:
        table = np.zeros(self._shape, dtype=np.float32)
        rows = np.repeat(np.arange(self._shape[0]), np.diff(self.indptr))
        np.add.at(table, (rows, self.indices), self.data)
        return table


class _PlainUnpickler(pickle.Unpickler):
    known: dict[tuple[str, str], Any] = {
        ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("scipy.sparse.csr", "csr_matrix"): _SparseRows,
        ("scipy.sparse._csr", "csr_matrix"): _SparseRows,
        ("collections", "defaultdict"): collections.defaultdict,
        ("__builtin__", "list"): list,
        ("builtins", "list"): list,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.known:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}")
        return self.known[module, name]


def _read(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            content = _PlainUnpickler(file, encoding="latin1").load()
    except Exception as error:  # a damaged pickle raises almost anything
        raise ValueError(f"{path} is no Planetoid file, or damaged: {error}") from error
    return content.dense() if isinstance(content, _SparseRows) else content
