"""The user's own files, named as people name them first: a folder, two tables, one file."""

from __future__ import annotations

import csv
import zipfile
from pathlib import Path
from typing import Any

from isoattn.apps.base.errors import UserError

_KNOWN = "nodes.csv (and edges.csv), a folder that holds them, a .graphml or a .npz file"
FEATURES = {"TableFiles": "feature_columns", "GraphMLFile": "features"}
"""The option that names the features, by the source."""
_OF_TRAINING = ("nodes", "edges", "path", "split", "split_column", "split_attribute")
"""Options of a source that another graph does not share."""


def source_spec(paths: list[str], like: dict[str, Any] | None = None) -> dict[str, Any]:
    """The ``{class_path, init_args}`` of a task source from one path or two.

    Args:
        paths: a folder with ``nodes.csv`` and, if there are edges, ``edges.csv``; a node table and
            an edge table; a ``.graphml`` or an ``.npz`` file.
        like: the source that a model was trained on: names of columns and the like are taken from
            it, where it is of the same kind. Labels are not needed to predict.

    Raises:
        UserError: names what is missing, or what could be given.
    """
    spec = _spec([Path(path) for path in paths])
    if like is None or _leaf(like) != _leaf(spec):
        return spec
    if like["init_args"].get("edges") and not spec["init_args"].get("edges", True):
        raise UserError(
            f"The model was trained with edges, {spec['init_args']['nodes']} comes without: give "
            "edges.csv beside it, or as the second file."
        )
    shared = {k: v for k, v in like.get("init_args", {}).items() if k not in _OF_TRAINING}
    options = {**shared, **spec["init_args"]}
    if _leaf(spec) == "TableFiles":
        options["label_column"] = _labels(Path(options["nodes"]), options.get("label_column"))
    return {"class_path": spec["class_path"], "init_args": options}


def _spec(files: list[Path]) -> dict[str, Any]:
    missing = [str(file) for file in files if not file.exists()]
    if missing:
        raise UserError(f"There is no {', '.join(missing)}. Give {_KNOWN}.")
    if len(files) == 1 and files[0].is_dir():
        return _folder(files[0])
    suffixes = [file.suffix.lower() for file in files]
    if suffixes in ([".csv"], [".csv", ".csv"]):
        return _tables(*files)
    if suffixes == [".graphml"]:
        return _source("GraphMLFile", path=str(files[0]))
    if suffixes == [".npz"]:
        return _npz(files[0])
    shown = " ".join(map(str, files))
    raise UserError(f"{shown} is no graph that can be read. Give {_KNOWN}.")


def _npz(file: Path) -> dict[str, Any]:
    """The kind of npz by what it holds: those of two collections, else plain arrays."""
    try:
        with zipfile.ZipFile(file) as archive:
            names = {name.removesuffix(".npy") for name in archive.namelist()}
    except (OSError, zipfile.BadZipFile):  # said where the arrays are read
        names = set()
    place = {"name": file.stem, "root": str(file.parent)}
    if "node_features" in names:
        return _source("Heterophilous", **place)
    if "adj_indptr" in names:
        return _source("GnnBenchmark", **place)
    return _source("NpzFile", path=str(file))


def _source(kind: str, /, **options: str | None) -> dict[str, Any]:
    return {"class_path": f"isoattn.graph.data.{kind}", "init_args": options}


def _folder(folder: Path) -> dict[str, Any]:
    nodes, edges = folder / "nodes.csv", folder / "edges.csv"
    if not nodes.is_file():
        raise UserError(f"The folder {folder} has no nodes.csv. Give {_KNOWN}.")
    return _tables(nodes, *([edges] if edges.is_file() else []))


def _tables(nodes: Path, edges: Path | None = None) -> dict[str, Any]:
    return _source("TableFiles", nodes=str(nodes), edges=None if edges is None else str(edges))


def _labels(nodes: Path, column: str | list[str] | None) -> str | list[str] | None:
    """The label columns where the table has them, else none."""
    with nodes.open(newline="", encoding="utf-8-sig") as file:
        header = next(csv.reader(file), [])
    wanted = [column] if isinstance(column, str) else column or []
    return column if all(name in header for name in wanted) else None


def _leaf(spec: dict[str, Any]) -> str:
    return str(spec["class_path"]).rsplit(".", 1)[-1]
