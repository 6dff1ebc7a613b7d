"""A graph over feature data: each row is joined to its nearest rows.

The data are real and ship with scikit-learn, so this works without folder and network. The files
are read in place: importing scikit-learn would cost a second.

Shape suffixes: N rows, F features, K neighbours.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from isoattn.graph.data.source import TaskSource, as_tensor
from isoattn.graph.data.split import SplitOptions, draw_split
from isoattn.graph.graph import Graph, tidy_edges
from isoattn.graph.task import NodeTask

Dataset = Literal["digits", "wine", "breast_cancer", "iris"]
FILES = {
    "digits": "digits.csv.gz",
    "wine": "wine_data.csv",
    "breast_cancer": "breast_cancer.csv",
    "iris": "iris.csv",
}
CHUNK = 1024


class KnnGraph(TaskSource):
    """Rows of feature data as nodes, joined to their nearest neighbours.

    Args:
        dataset: ``digits`` (1,797 x 64, 10 classes), ``breast_cancer`` (569 x 30, 2), ``wine``
            (178 x 13, 3) or ``iris`` (150 x 4, 3).
        neighbors: K, entries a row before the other direction is added; 0: no graph.
        standardize: each feature to mean 0 and deviation 1 over all rows, for graph and model.
        split: drawn from the labels by its seed.
    """

    def __init__(
        self,
        dataset: Dataset = "digits",
        neighbors: int = 5,
        standardize: bool = True,
        split: SplitOptions = SplitOptions("stratified"),  # noqa: B008 - frozen
    ) -> None:
        if dataset not in FILES:
            raise ValueError(f"dataset must be one of {', '.join(FILES)}, got {dataset!r}")
        self.dataset = dataset
        self.neighbors = neighbors
        self.standardize = standardize
        self.split = split.only(dataset)

    def load(self) -> NodeTask:
        """The task; symmetrised, without self loops."""
        x, y, classes = _read(self.dataset)
        if self.standardize:
            x = standardise(x)
        edges, counts = knn_edges(x, self.neighbors)
        return NodeTask(
            name=f"{self.dataset}_knn{self.neighbors}",
            graph=Graph(x, edges),
            y=y,
            kind="multiclass",
            classes=classes,
            metric="accuracy",
            split=draw_split(y, "multiclass", self.split),
            facts={
                "source": f"scikit-learn {FILES[self.dataset]}",
                "edges": counts,
                "undirected": True,
                "neighbors": self.neighbors,
                "standardize": self.standardize,
            },
        )


def standardise(x_NF: Tensor) -> Tensor:
    """Mean 0 and deviation 1 of each feature; a constant feature becomes 0."""
    centred_NF = x_NF - x_NF.mean(0)
    deviation_F = centred_NF.square().mean(0).sqrt()
    return torch.where(deviation_F > 0, centred_NF / deviation_F, torch.zeros(()))


def knn_edges(x_NF: Tensor, neighbors: int) -> tuple[Tensor, dict[str, int]]:
    """Entries between each row and its nearest others by Euclidean distance, both directions.

    Rows are compared in chunks, so memory is O(N), not N x N.

    Args:
        x_NF: features, finite.
        neighbors: K, from 0 to N - 1.

    Returns:
        int64 (2, E) and the counts of :func:`~isoattn.graph.graph.tidy_edges`.

    Raises:
        ValueError: K out of range, or features that are not finite.
    """
    rows = len(x_NF)
    if not 0 <= neighbors < max(rows, 1):
        raise ValueError(f"neighbors must lie in 0..{rows - 1} for {rows} rows, got {neighbors}")
    if not bool(x_NF.isfinite().all()):
        raise ValueError("Neighbours need finite features: fill or drop NaN and infinity")
    # In float64, so that equal distances are equal whatever the size of the chunk.
    x_NF = x_NF.double()
    pairs = []
    for start in range(0, rows, CHUNK):
        distance = torch.cdist(
            x_NF[start : start + CHUNK], x_NF, compute_mode="donot_use_mm_for_euclid_dist"
        )
        own = torch.arange(start, start + len(distance))
        distance[torch.arange(len(distance)), own] = torch.inf
        nearest = distance.topk(neighbors, dim=1, largest=False).indices
        pairs.append(torch.stack([nearest.flatten(), own.repeat_interleave(neighbors)]))
    return tidy_edges(torch.cat(pairs, 1), rows)


def _read(dataset: str) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    found = importlib.util.find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        raise FileNotFoundError(f"{dataset} comes with scikit-learn, which is not installed")
    path = Path(found.submodule_search_locations[0]) / "datasets" / "data" / FILES[dataset]
    if not path.is_file():
        raise FileNotFoundError(f"The folder {path.parent} of scikit-learn has no {path.name}")
    headed = dataset != "digits"
    table = np.loadtxt(path, delimiter=",", skiprows=int(headed))
    if headed:
        with path.open() as file:
            classes = tuple(file.readline().strip().split(",")[2:])
    else:
        classes = tuple(str(digit) for digit in range(10))
    return as_tensor(table[:, :-1], torch.float32), as_tensor(table[:, -1], torch.int64), classes
