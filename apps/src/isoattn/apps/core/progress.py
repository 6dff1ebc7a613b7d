"""A progress bar for the measuring commands."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Advance(Protocol):
    """Called after each step with what it was."""

    def __call__(self, text: str, /) -> None:
        """One step is done."""


@contextmanager
def progress(total: int) -> Iterator[Advance]:
    """A bar at a terminal, nothing elsewhere; counts what is done."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)

        def step(text: str) -> None:
            bar.update(task, advance=1, description=text)

        yield step
