"""The user's own files, named as people name them first: a folder, or a list of pairs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from isoattn.apps.base.errors import UserError

_PACKAGE = "isoattn.matching.data"
_KNOWN = (
    "a list of pairs (.txt), a folder with img1 and H1to2p (an Oxford sequence), or one with i_* "
    "and v_* folders (HPatches)"
)


def training_source(paths: list[str]) -> dict[str, Any]:
    """The ``{class_path, init_args}`` of a source to train on: a folder of photographs, or a list.

    Raises:
        UserError: names what is missing, or what could be given.
    """
    first, *rest = _existing(paths)
    if first.is_dir() and not rest:
        return _source("FolderPairs", root=str(first))
    if first.is_file():
        return _listed(first, rest)
    raise UserError(f"{' '.join(paths)} cannot be trained on. Give one folder of photographs.")


def evaluation_source(paths: list[str]) -> dict[str, Any]:
    """The ``{class_path, init_args}`` of a source to score or to predict.

    Args:
        paths: a list of pairs and, where that is not beside it, the folder of its images; or a
            folder in one of the layouts that are known.

    Raises:
        UserError: names what is missing, or what could be given.
    """
    first, *rest = _existing(paths)
    if first.is_file():
        return _listed(first, rest)
    names = [path.name for path in first.iterdir()]
    if not rest and any(re.fullmatch(r"img1\.(png|ppm|jpg)", name) for name in names):
        return _source("OxfordSequence", root=str(first))
    if not rest and any(name.startswith(("i_", "v_")) for name in names):
        return _source("HPatches", root=str(first))
    raise UserError(f"{' '.join(paths)} are no pairs that can be read. Give {_KNOWN}.")


def _existing(paths: list[str]) -> list[Path]:
    missing = [path for path in paths if not Path(path).exists()]
    if missing:
        raise UserError(f"There is no {', '.join(missing)}. Give {_KNOWN}.")
    return [Path(path) for path in paths]


def _listed(file: Path, rest: list[Path]) -> dict[str, Any]:
    if len(rest) > 1 or (rest and not rest[0].is_dir()):
        shown = " ".join(map(str, (file, *rest)))
        raise UserError(f"{shown}: after a list of pairs comes the folder of its images, if any.")
    if file.suffix.lower() not in (".txt", ".csv", ""):
        raise UserError(
            f"{file} is no list of pairs (.txt, two names a line). Two images are matched by: "
            "isoattn matching match A.jpg B.jpg"
        )
    root = rest[0] if rest else file.parent
    return _source("PairsFile", root=str(root), pairs=str(file.resolve()))


def _source(kind: str, /, **options: str) -> dict[str, Any]:
    return {"class_path": f"{_PACKAGE}.{kind}", "init_args": options}
