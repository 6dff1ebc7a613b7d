"""What a report consists of before it becomes Markdown or HTML, which therefore say the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Heading:
    """A section heading."""

    text: str


@dataclass(frozen=True)
class Text:
    """A paragraph; ``kind`` sets the verdict, warnings and explanations apart."""

    text: str
    kind: Literal["plain", "verdict", "warning", "note"] = "plain"


@dataclass(frozen=True)
class Bullets:
    """A list of lines."""

    items: tuple[str, ...]
    kind: Literal["plain", "verdict", "note"] = "plain"


@dataclass(frozen=True)
class Table:
    """A table whose rows come in titled groups.

    Args:
        columns: heads; one that starts with ``<`` is text (left), the others are numbers (right).
        groups: (title, rows); an empty title prints none.
        caption: what the columns mean.
    """

    columns: tuple[str, ...]
    groups: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...]
    caption: str = ""

    @property
    def heads(self) -> tuple[tuple[str, bool], ...]:
        """(text, is a number) of every column."""
        return tuple((name.removeprefix("<"), not name.startswith("<")) for name in self.columns)


@dataclass(frozen=True)
class Chart:
    """A figure: ``name`` becomes a file beside the Markdown, the HTML holds the SVG itself."""

    name: str
    svg: str
    alt: str
    caption: str


@dataclass(frozen=True)
class Listing:
    """Text to be shown as it is: a command, a difference of configs."""

    text: str


Block = Heading | Text | Bullets | Table | Chart | Listing


def table(
    columns: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]], caption: str = ""
) -> Table:
    """A table from (group title, cells) rows; neighbours of one title form a group."""
    groups: list[tuple[str, list[tuple[str, ...]]]] = []
    for title, cells in rows:
        if not groups or groups[-1][0] != title:
            groups.append((title, []))
        groups[-1][1].append(tuple(cells))
    return Table(tuple(columns), tuple((title, tuple(cells)) for title, cells in groups), caption)
