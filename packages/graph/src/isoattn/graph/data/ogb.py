"""OGB node tasks from folders on disk, through OGB's own classes, without prompt or network.

OGB 1.3.6 asks on the terminal, downloads, looks for newer releases when imported, and unpickles
classes that torch >= 2.6 refuses; this adapter checks first and leaves it nothing to ask.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from isoattn.graph.data.source import TaskSource
from isoattn.graph.data.split import DRAWN, SplitOptions, draw_split
from isoattn.graph.graph import Graph, tidy_edges
from isoattn.graph.task import UNLABELLED, Kind, NodeTask, Split

Name = Literal["ogbn-arxiv", "ogbn-products", "ogbn-proteins"]
SPLIT_FOLDERS = {"ogbn-arxiv": "time", "ogbn-products": "sales_ranking", "ogbn-proteins": "species"}
RAW = {
    "ogbn-arxiv": ("node-feat", "node_year"),
    "ogbn-products": ("node-feat",),
    "ogbn-proteins": ("edge-feat", "node_species"),
}
RAW_ALL = ("edge", "node-label", "num-node-list", "num-edge-list")


class Ogb(TaskSource):
    """An OGB node task.

    Args:
        name: ``ogbn-arxiv``, ``ogbn-products`` or ``ogbn-proteins``.
        root: folder that holds ``ogbn_arxiv`` (or ``ogbn_arxiv_pyg``), as OGB's download unpacks
            it. OGB keeps what it has read in ``processed`` there.
        split: ``public``: the official one; or drawn.
        undirected: add the other direction to each entry (arXiv's citations are directed).

    ogbn-proteins has no node features: a node gets the mean of the 8 features of its edges, and
    112 binary labels.
    """

    def __init__(
        self,
        name: Name = "ogbn-arxiv",
        root: str = "data",
        split: SplitOptions = SplitOptions("public"),  # noqa: B008 - frozen
        undirected: bool = True,
    ) -> None:
        if name not in RAW:
            raise ValueError(f"name must be one of {', '.join(RAW)}, got {name!r}")
        self.name = name
        self.root = Path(root)
        self.split = split.only(name, "public")
        self.undirected = undirected

    def load(self) -> NodeTask:
        """The task."""
        self._check_files()
        data, given = _read(self.name, self.root)
        nodes = int(data.num_nodes)
        x = (
            data.x.float()
            if data.x is not None
            else mean_edge_features(data.edge_index, data.edge_attr, nodes)
        )
        edges, counts = tidy_edges(data.edge_index, nodes, undirected=self.undirected)
        kind: Kind = "multilabel" if data.y.shape[1] > 1 else "multiclass"
        y = data.y.float() if kind == "multilabel" else _classes(data.y[:, 0])
        number = _number_of_classes(self.name) if kind == "multiclass" else data.y.shape[1]
        drawn = self.split.kind in DRAWN
        if not drawn:
            self.split.single(self.name)
        return NodeTask(
            name=self.name,
            graph=Graph(x, edges).check_ids(),
            y=y,
            kind=kind,
            classes=tuple(str(c) for c in range(number)),
            metric="roc_auc" if kind == "multilabel" else "accuracy",
            split=draw_split(y, kind, self.split)
            if drawn
            else Split(given["train"], given["valid"], given["test"]),
            facts={
                "source": "snap-stanford/ogb",
                "edges": counts,
                "undirected": self.undirected,
                "official_evaluator": self.name,
            },
        )

    def _check_files(self) -> None:
        """Everything that OGB would otherwise prompt for or download."""
        base = self.name.replace("-", "_")
        with_suffix = self.root / f"{base}_pyg"
        folder = with_suffix if with_suffix.exists() else self.root / base  # OGB's own preference
        needed = ["RELEASE_v1.txt"]
        needed += [f"raw/{name}.csv.gz" for name in (*RAW_ALL, *RAW[self.name])]
        place = folder / "split" / SPLIT_FOLDERS[self.name]
        if not (place / "split_dict.pt").is_file():
            needed += [f"split/{place.name}/{part}.csv.gz" for part in ("train", "valid", "test")]
        if (folder / "raw" / "species.csv.gz").is_file():
            needed.remove("raw/node_species.csv.gz")  # OGB renames it
        missing = [name for name in needed if not (folder / name).is_file()]
        if missing:
            raise FileNotFoundError(
                f"{self.name}: the folder {folder} lacks {', '.join(missing)}. Unpack OGB's "
                "download there, or point root to the folder that holds it; nothing is downloaded "
                "and nothing is asked."
            )


def mean_edge_features(edge_index: Tensor, edge_attr: Tensor, num_nodes: int) -> Tensor:
    """Mean over the entries that end in a node, (N, D); zeros for a node without any.

    Args:
        edge_index: int64 (2, E), both directions.
        edge_attr: float (E, D).
        num_nodes: N.
    """
    total = torch.zeros(num_nodes, edge_attr.shape[1]).index_add_(
        0, edge_index[1], edge_attr.float()
    )
    degree = torch.bincount(edge_index[1], minlength=num_nodes).clamp(min=1)
    return total / degree[:, None]


def official_score(name: str, logits: Tensor, y: Tensor) -> float:
    """The score of OGB's own Evaluator: accuracy, or mean ROC-AUC of the labels.

    Args:
        name: of the OGB data.
        logits: (M, C) or (M, T), of the nodes to score.
        y: int64 (M,), or float (M, T) with NaN = unknown.
    """
    with _quiet_ogb() as ogb:
        evaluator = ogb.Evaluator(name)
        multiclass = y.ndim == 1
        truth = y[:, None] if multiclass else y
        guess = logits.argmax(1)[:, None] if multiclass else logits
        result = evaluator.eval({"y_true": truth.cpu(), "y_pred": guess.detach().cpu()})
    return float(result[evaluator.eval_metric])


def _read(name: str, root: Path) -> tuple[Any, dict[str, Tensor]]:
    with _quiet_ogb() as ogb:
        from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
        from torch_geometric.data.storage import GlobalStorage

        known = [DataEdgeAttr, DataTensorAttr, GlobalStorage]
        with torch.serialization.safe_globals(known):
            dataset = ogb.PygNodePropPredDataset(name, root=str(root))
            return dataset[0], dataset.get_idx_split()


@contextlib.contextmanager
def _quiet_ogb() -> Iterator[Any]:
    """``ogb.nodeproppred`` without its look for releases, its prints and its warnings."""
    absent = object()
    before = sys.modules.get("outdated", absent)
    setting = os.environ.get("OUTDATED_IGNORE")
    if "ogb" not in sys.modules:
        sys.modules["outdated"] = None  # type: ignore[assignment]  # its import fails: no thread
    try:
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield importlib.import_module("ogb.nodeproppred")
    finally:
        if before is absent:
            sys.modules.pop("outdated", None)
        else:
            sys.modules["outdated"] = before  # type: ignore[assignment]
        if setting is None:
            os.environ.pop("OUTDATED_IGNORE", None)
        else:
            os.environ["OUTDATED_IGNORE"] = setting


def _classes(label: Tensor) -> Tensor:
    """Class numbers; NaN, OGB's mark of a missing label, becomes -1."""
    if not label.is_floating_point():
        return label.long()
    return torch.where(label.isnan(), UNLABELLED, label.nan_to_num()).long()


def _number_of_classes(name: str) -> int:
    return {"ogbn-arxiv": 40, "ogbn-products": 47}[name]
