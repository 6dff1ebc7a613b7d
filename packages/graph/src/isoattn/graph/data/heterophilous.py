"""Heterophilous benchmarks (Platonov et al., ICLR 2023) from their npz files.

Each file holds every undirected edge once and ten splits as masks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch

from isoattn.graph.data.source import (
    TaskSource,
    as_tensor,
    find_folder,
    normalise_rows,
    read_npz,
)
from isoattn.graph.data.split import DRAWN, SplitOptions, draw_split, split_from_masks
from isoattn.graph.graph import Graph, tidy_edges
from isoattn.graph.task import Metric, NodeTask, Split

MASKS = ("train_masks", "val_masks", "test_masks")
KEYS = ("node_features", "node_labels", "edges", *MASKS)


class Heterophilous(TaskSource):
    """A graph of the heterophilous collection, or any npz file with the same keys.

    Args:
        name: of the file without ``.npz``: ``texas``, ``minesweeper``, ``tolokers``, ``actor``,
            ``chameleon_filtered``, ``squirrel_filtered``, ... ``-`` is read as ``_``.
        root: folder with the file; ``<root>/heterophilous`` and ``<root>/<name>/raw`` (as
            torch_geometric has it) are looked in as well.
        split: ``public``: mask number ``index`` of the file; or drawn.
        metric: ``auto``: ROC-AUC for two classes, else accuracy.
        row_normalize: divide each feature row by its sum.
        undirected: let messages flow both ways, which the single entries of the file mean.
    """

    def __init__(
        self,
        name: str = "texas",
        root: str = "data",
        split: SplitOptions = SplitOptions("public"),  # noqa: B008 - frozen
        metric: Literal["auto", "accuracy", "roc_auc"] = "auto",
        row_normalize: bool = False,
        undirected: bool = True,
    ) -> None:
        self.name = name.lower().replace("-", "_")
        self.root = Path(root)
        self.split = split.only(self.name, "public")
        self.metric: Literal["auto", "accuracy", "roc_auc"] = metric
        self.row_normalize = row_normalize
        self.undirected = undirected

    def load(self) -> NodeTask:
        """The task."""
        file = f"{self.name}.npz"
        places = [self.root, self.root / "heterophilous", self.root / self.name / "raw"]
        path = find_folder(self.name, places, [file]) / file
        needed = KEYS if self.split.kind == "public" else KEYS[:3]
        arrays = read_npz(path, needed)
        x = as_tensor(arrays["node_features"], torch.float32)
        y = as_tensor(arrays["node_labels"], torch.int64)
        pairs = as_tensor(arrays["edges"], torch.int64)
        edges, counts = tidy_edges(pairs.T, len(y), undirected=self.undirected)
        classes = int(y.max()) + 1
        metric: Metric = "accuracy"
        if self.metric == "roc_auc" or (self.metric == "auto" and classes == 2):
            metric = "roc_auc"
        if self.split.kind in DRAWN:
            split = draw_split(y, "multiclass", self.split)
        else:
            split = self._given({key: as_tensor(arrays[key], torch.bool) for key in MASKS}, path)
        return NodeTask(
            name=self.name,
            graph=Graph(normalise_rows(x) if self.row_normalize else x, edges).check_ids(),
            y=y,
            kind="multiclass",
            classes=tuple(str(c) for c in range(classes)),
            metric=metric,
            split=split,
            facts={
                "source": "yandex-research/heterophilous-graphs",
                "edges": counts,
                "undirected": self.undirected,
                "row_normalize": self.row_normalize,
            },
        )

    def _given(self, masks: dict[str, torch.Tensor], path: Path) -> Split:
        number = len(masks[MASKS[0]])
        if self.split.index >= number:
            raise ValueError(
                f"{path} has {number} splits: index must lie in 0..{number - 1}, got "
                f"{self.split.index}"
            )
        return split_from_masks(*(masks[key][self.split.index] for key in MASKS))
