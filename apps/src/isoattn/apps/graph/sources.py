"""The user's own files, named as people name them first: a folder, two tables, one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isoattn.apps.base.errors import UserError

_KNOWN = "nodes.csv (and edges.csv), a folder that holds them, a .graphml or a .npz file"


def source_spec(paths: list[str]) -> dict[str, Any]:
    """The ``{class_path, init_args}`` of a task source from one path or two.

    Args:
        paths: a folder with ``nodes.csv`` and, if there are edges, ``edges.csv``; a node table and
            an edge table; a ``.graphml`` or an ``.npz`` file.

    Raises:
        UserError: names what is missing, or what could be given.
    """
    files = [Path(path) for path in paths]
    missing = [str(file) for file in files if not file.exists()]
    if missing:
        raise UserError(f"There is no {', '.join(missing)}. Give {_KNOWN}.")
    if len(files) == 1 and files[0].is_dir():
        return _folder(files[0])
    suffixes = [file.suffix.lower() for file in files]
    if suffixes in ([".csv"], [".csv", ".csv"]):
        return _tables(*files)
    if suffixes == [".graphml"]:
        return {"class_path": "isoattn.graph.data.GraphMLFile", "init_args": {"path": paths[0]}}
    if suffixes == [".npz"]:
        return {"class_path": "isoattn.graph.data.NpzFile", "init_args": {"path": paths[0]}}
    raise UserError(f"{' '.join(paths)} is no graph that can be read. Give {_KNOWN}.")


def _folder(folder: Path) -> dict[str, Any]:
    nodes, edges = folder / "nodes.csv", folder / "edges.csv"
    if not nodes.is_file():
        raise UserError(f"The folder {folder} has no nodes.csv. Give {_KNOWN}.")
    return _tables(nodes, *([edges] if edges.is_file() else []))


def _tables(nodes: Path, edges: Path | None = None) -> dict[str, Any]:
    options: dict[str, Any] = {"nodes": str(nodes)}
    if edges is not None:
        options["edges"] = str(edges)
    return {"class_path": "isoattn.graph.data.TableFiles", "init_args": options}
