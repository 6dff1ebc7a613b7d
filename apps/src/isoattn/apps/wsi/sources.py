"""The user's own bags as people name them first: a folder of features, and a table of labels."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from isoattn.apps.base.errors import UserError

_PATIENT = ("patient", "patient_id", "case_id", "case")
_SITE = ("site", "hospital", "centre", "center")
_SPLIT = ("split",)
_KNOWN = "the folder of feature files (ID.h5 or ID.pt), and the CSV of labels"


def source_spec(paths: list[str], *, labels: bool = True) -> dict[str, Any]:
    """The ``{class_path, init_args}`` of a bag source from a folder and, if wanted, a table.

    Columns of patients, sites and parts are found by their usual names, so that slides of one
    patient are not torn apart because nobody named the column. ``labels.csv`` in the folder, or
    beside it, need not be named.

    Args:
        paths: the folder, then the table.
        labels: whether labels are needed; without, none are looked for.

    Raises:
        UserError: names what is missing, or what could be given.
    """
    if len(paths) > 2:
        raise UserError(f"{' '.join(paths)}: give {_KNOWN}, no more.")
    root = Path(paths[0])
    if not root.is_dir():
        raise UserError(f"There is no folder {root}. Give {_KNOWN}.")
    options: dict[str, Any] = {"root": str(root)}
    table = Path(paths[1]) if len(paths) == 2 else _beside(root) if labels else None
    if table is None:
        if labels:
            raise UserError(f"{root} has no labels.csv in it or beside it. Give {_KNOWN}.")
    else:
        if not table.is_file():
            raise UserError(f"There is no table {table}. Give {_KNOWN}.")
        options |= {"labels": str(table), **_columns(table)}
    return {"class_path": "isoattn.wsi.bags.FeatureFolder", "init_args": options}


def _beside(root: Path) -> Path | None:
    places = (root, root.parent, root.parent / "cohort")
    return next((p / "labels.csv" for p in places if (p / "labels.csv").is_file()), None)


def _columns(table: Path) -> dict[str, str]:
    """Columns by their usual names, and a line that says which."""
    from isoattn.wsi.bags.labels import read_table

    try:
        header, _ = read_table(table)
    except (ValueError, FileNotFoundError) as error:
        raise UserError(str(error)) from error
    found = {}
    for option, names in (
        ("patient_column", _PATIENT),
        ("site_column", _SITE),
        ("split_column", _SPLIT),
    ):
        name = next((n for n in names if n in header), None)
        if name is not None:
            found[option] = name
    shown = ", ".join(f"{k} {v}" for k, v in found.items()) or "none, each slide its own patient"
    sys.stderr.write(f"{table.name}: {shown}\n")
    return found
