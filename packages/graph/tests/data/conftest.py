"""Real files where they lie beside the repository, and tiny folders in OGB's layout."""

import gzip
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from isoattn.graph.graph import Graph, tidy_edges
from isoattn.graph.task import NodeTask, Split

REAL = Path(__file__).parents[5] / "shared" / "data"


@pytest.fixture
def real_data() -> Path:
    if not REAL.is_dir():
        pytest.skip("the real data are not beside the repository")
    return REAL


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No terminal to ask on and no network to ask."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("asked for input or network")

    monkeypatch.setattr("builtins.input", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def write_gz(path: Path, table: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = np.atleast_2d(np.asarray(table))
    if np.asarray(table).ndim == 1:
        rows = rows.T
    with gzip.open(path, "wt") as file:
        file.writelines(",".join(str(cell) for cell in row) + "\n" for row in rows)


def write_ogb(root: Path, name: str, nodes: int = 60, edges: int = 120) -> dict[str, np.ndarray]:
    """A folder as OGB's download unpacks it."""
    rng = np.random.default_rng(7)
    folder = root / name.replace("-", "_")
    folder.mkdir(parents=True)
    (folder / "RELEASE_v1.txt").write_text("")
    raw = folder / "raw"
    pairs = rng.choice(nodes * (nodes - 1) // 2, edges, replace=False)
    upper = np.stack(np.triu_indices(nodes, 1), 1)[pairs]
    write_gz(raw / "edge.csv.gz", upper)
    write_gz(raw / "num-node-list.csv.gz", [nodes])
    write_gz(raw / "num-edge-list.csv.gz", [edges])
    made: dict[str, np.ndarray] = {"edge": upper}
    if name == "ogbn-proteins":
        made["edge-feat"] = rng.random((edges, 8)).round(4)
        made["node_species"] = rng.integers(3, 6, nodes)
        made["node-label"] = rng.integers(0, 2, (nodes, 112))
        split = "species"
    else:
        made["node-feat"] = rng.standard_normal((nodes, 128)).round(4)
        made["node_year"] = rng.integers(2010, 2020, nodes)
        made["node-label"] = rng.integers(0, 40, nodes)
        split = "time"
    for key, table in made.items():
        write_gz(raw / f"{key}.csv.gz", table)
    order = rng.permutation(nodes)
    for part, members in zip(("train", "valid", "test"), np.split(order, [30, 45]), strict=True):
        write_gz(folder / "split" / split / f"{part}.csv.gz", members)
        made[part] = members
    return made


@pytest.fixture
def ogb_folder() -> Callable[..., dict[str, np.ndarray]]:
    return write_ogb


def make_task(
    edges: list[tuple[int, int]], nodes: int, *, train: list[int] | None = None, classes: int = 2
) -> NodeTask:
    """A small task whose features tell each node apart."""
    pairs = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).T
    ids = torch.arange(nodes)
    chosen = torch.tensor(train, dtype=torch.int64) if train is not None else ids[: nodes // 2]
    rest = ids[~torch.isin(ids, chosen)]
    return NodeTask(
        name="small",
        graph=Graph(torch.stack([ids.float(), ids.float() ** 2], 1), tidy_edges(pairs, nodes)[0]),
        y=ids % classes,
        kind="multiclass",
        classes=tuple(str(c) for c in range(classes)),
        metric="accuracy",
        split=Split(chosen, rest[::2], rest[1::2]),
    )


@pytest.fixture
def small_task() -> Callable[..., NodeTask]:
    return make_task
