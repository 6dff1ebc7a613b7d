"""What a study says while it runs: a bar on a terminal, one line a cell anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from isoattn.ablate.records import CellResult
from isoattn.ablate.study import level_name


class Speaker:
    """Lines on standard error; a line is never wrapped, and nothing in it is markup."""

    def __init__(self) -> None:
        self.console = Console(stderr=True)

    def say(self, text: str, style: str | None = None) -> None:
        """One line."""
        self.console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def progress(self, phase: str, total: int, done: int) -> Iterator[Callable[[CellResult], None]]:
        """Yields what is called with each cell that ends; ``done`` of ``total`` were there."""
        if done:
            self.say(f"{phase}: {done} of {total} cells are there already")
        if done == total:
            yield lambda result: None
            return
        if not sys.stderr.isatty():
            count = done

            def line(result: CellResult) -> None:
                nonlocal count
                count += 1
                self.say(f"{phase} {count}/{total}  {cell_line(result)}")

            yield line
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self.console) as bar:
            task = bar.add_task(phase, total=total, completed=done)

            def step(result: CellResult) -> None:
                self.say(cell_line(result))
                bar.advance(task)

            yield step


def cell_line(result: CellResult) -> str:
    """A cell that is over, in a line."""
    metrics = "  ".join(
        f"{name} {value:.4f}"
        for name, value in result.metrics.items()
        if name.count("/") == 1 and "balanced" not in name and "loss" not in name
        if not name.endswith(result.of_swaps)
    )
    error = " ".join(result.error.split())
    status = metrics if result.status == "done" else f"{result.status}: {error[:80]}"
    time = f"  ({result.seconds:.0f} s)" if result.seconds else ""
    return (
        f"{result.arm} {level_name(result.levels)} lr={result.learning_rate:g} "
        f"seed={result.seed}  {status}{time}"
    )
