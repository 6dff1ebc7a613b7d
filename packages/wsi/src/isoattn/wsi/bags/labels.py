"""Tables of the user's: labels of slides, and splits. Ids are text: "001" stays "001"."""

from __future__ import annotations

import csv
import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ID = "slide_id"
SHOWN = 5
"""Names that a message lists."""


@dataclass(frozen=True)
class LabelTable:
    """One row a slide, in the order of the file.

    Args:
        ids: of the slides.
        labels: class names.
        patients: of each slide; its id where the table has no such column.
        sites: of each slide, such as the hospital; ``None`` where it has no such column.
        parts: ``train``, ``val``, ``test`` or empty; ``None`` where it has no such column.
    """

    ids: tuple[str, ...]
    labels: tuple[str, ...]
    patients: tuple[str, ...]
    sites: tuple[str, ...] | None = None
    parts: tuple[str, ...] | None = None


def read_labels(
    path: str | Path,
    *,
    id_column: str = ID,
    label_column: str = "label",
    patient_column: str | None = None,
    site_column: str | None = None,
    split_column: str | None = None,
) -> LabelTable:
    """A table of slides and labels: CSV with commas, semicolons or tabs, and a header.

    Args:
        path: of the file.
        id_column: each id once. A table without ``slide_id`` may call it ``slide``, as those do
            that ``isoattn wsi predict`` writes.
        label_column: class names.
        patient_column: slides of one patient stay in one part of a split.
        site_column: where a slide comes from.
        split_column: train, val, test, or empty for slides that are left out.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a missing column, an empty id or label, or an id twice; names rows and remedy.
    """
    path = Path(path)
    header, rows = read_table(path)
    if id_column == ID and ID not in header and "slide" in header:
        id_column = "slide"
    columns = {
        "id": id_column,
        "label": label_column,
        "patient": patient_column,
        "site": site_column,
        "split": split_column,
    }
    found = {
        what: _column(path, header, rows, name, what)
        for what, name in columns.items()
        if name is not None
    }
    for what in ("id", "label", "patient", "site"):
        empty = [number for number, value in enumerate(found.get(what, ()), 2) if not value]
        if empty:
            raise ValueError(
                f"{path.name}: column {columns[what]!r} is empty in {_lines(empty)}: fill it in, "
                "or leave the rows out"
            )
    _each_once(path, found["id"])
    return LabelTable(
        ids=found["id"],
        labels=found["label"],
        patients=found.get("patient", found["id"]),
        sites=found.get("site"),
        parts=found.get("split"),
    )


def read_table(path: Path) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a CSV file as text without surrounding blanks.

    Raises:
        FileNotFoundError: no such file.
        ValueError: no rows, no text, or rows of another length than the header.
    """
    if not path.is_file():
        raise FileNotFoundError(f"There is no table {path}: give the CSV file of the slides")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path.name} is no text in UTF-8 ({error}): save it as such") from error
    first = text.partition("\n")[0]
    delimiter = max(",;\t", key=first.count)
    table = [
        [cell.strip() for cell in row]
        for row in csv.reader(text.splitlines(), delimiter=delimiter)
        if any(cell.strip() for cell in row)
    ]
    if len(table) < 2:
        raise ValueError(f"{path.name} has no rows below its header: {first!r}")
    header, *rows = table
    wrong = [number for number, row in enumerate(rows, 2) if len(row) != len(header)]
    if wrong:
        raise ValueError(
            f"{path.name}: {_lines(wrong)} have not the {len(header)} cells of the header "
            f"(separated by {delimiter!r})"
        )
    return header, rows


def class_order(labels: Sequence[str]) -> tuple[str, ...]:
    """The names that occur, each once: by number where all are numbers, else by name."""
    names = set(labels)
    if all(name.isascii() and name.isdigit() for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def shown(names: Sequence[str]) -> str:
    """A few names, for a message."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _column(
    path: Path, header: Sequence[str], rows: Sequence[Sequence[str]], name: str, what: str
) -> tuple[str, ...]:
    if header.count(name) != 1:
        near = difflib.get_close_matches(name, header, n=1)
        hint = f"Did you mean {near[0]!r}? " if near and name not in header else ""
        how = "twice" if name in header else "not"
        raise ValueError(
            f"{path.name} has {how} the column {name!r} (of the {what}s). {hint}Its columns: "
            f"{', '.join(header)}. Name the right one with {what}_column."
        )
    place = header.index(name)
    return tuple(row[place] for row in rows)


def _each_once(path: Path, ids: Sequence[str]) -> None:
    seen: dict[str, int] = {}
    twice = []
    for number, name in enumerate(ids, 2):
        if name in seen:
            twice.append(f"{name!r} in rows {seen[name]} and {number}")
        seen.setdefault(name, number)
    if twice:
        raise ValueError(f"{path.name} lists slides twice: {shown(twice)}. Keep one row of each.")


def _lines(numbers: Sequence[int]) -> str:
    return f"row{'s' if len(numbers) > 1 else ''} {shown([str(n) for n in numbers])}"
