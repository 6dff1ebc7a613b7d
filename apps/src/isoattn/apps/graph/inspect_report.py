"""``isoattn graph inspect``, printed: figures, classes by part, then what is odd."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from isoattn.graph.data import Report
from isoattn.graph.task import NodeTask

_MOST_CLASSES = 20
_STYLES = {"error": "bold red", "warning": "yellow"}


def print_report(report: Report, task: NodeTask | None) -> None:
    """Print it; ``task`` is None where it could not be loaded."""
    console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
    console.print(Text(report.name, style="bold"))
    if task is not None:
        console.print(_figures(report.figures, task))
        console.print(_classes(report.figures, task))
    for finding in report.findings:
        mark = Text(finding.level.upper(), style=_STYLES[finding.level])
        console.print(Text.assemble(mark, f" {finding.kind}: {finding.text}"), soft_wrap=True)
    errors, warnings = len(report.errors), len(report.warnings)
    console.print(f"{_number(errors, 'error')}, {_number(warnings, 'warning')}")


def _figures(figures: dict[str, Any], task: NodeTask) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 1))
    for name, words in _lines(figures, task):
        table.add_row(Text(name, style="dim"), Text(words))
    return table


def _lines(figures: dict[str, Any], task: NodeTask) -> Iterator[tuple[str, str]]:
    degree, values = figures["degree"], figures["feature_values"]
    yield "nodes", f"{figures['nodes']:,}"
    yield (
        "features",
        f"{figures['features']:,}; {100 * values['nonzero']:.3g} % of the numbers are not 0, "
        f"from {values['min']:.3g} to {values['max']:.3g}",
    )
    yield "edges", _edges(figures, task)
    yield (
        "degree",
        f"mean {degree['mean']:.1f}, median {degree['median']:g}, from {degree['min']:,} to "
        f"{degree['max']:,}; {degree['zero']:,} nodes at which nothing arrives",
    )
    yield "components", f"{figures['components']:,}"
    if "edge_homophily" in figures and figures["entries"]:
        yield (
            "homophily",
            f"{figures['edge_homophily']:.3f} of the edges join a class to itself, "
            f"{figures['chance_homophily']:.3f} by chance",
        )
    outputs = _number(len(task.classes), "class" if task.kind == "multiclass" else "label")
    labelled = f"{figures['labelled']:,} nodes are labelled"
    yield "labels", f"{task.kind}, {outputs}; {labelled}; scored by {task.metric}"
    if figures.get("majority_class"):
        yield "majority", f"{100 * figures['majority_class']:.1f} % are of the largest class"
    parts: dict[str, int] = {part: len(nodes) for part, nodes in task.split.items()}
    parts["in no part"] = figures["nodes"] - sum(parts.values())
    yield "parts", ", ".join(f"{part} {number:,}" for part, number in parts.items())


def _edges(figures: dict[str, Any], task: NodeTask) -> str:
    counts = figures["edges"]
    undirected = task.facts.get("undirected", False)
    form = f"{figures['entries'] // 2:,}, both ways" if undirected else "directed"
    words = f"{figures['entries']:,} entries ({form})"
    dropped = {
        "duplicates": counts.get("duplicates_dropped", 0),
        "self loops": counts.get("self_loops_dropped", 0),
    }
    lost = [f"{number:,} {name}" for name, number in dropped.items() if number]
    given = f", of {counts['entries_given']:,} given" if "entries_given" in counts else ""
    return words + given + (f"; dropped {', '.join(lost)}" if lost else "")


def _classes(figures: dict[str, Any], task: NodeTask) -> Table:
    what = "class" if task.kind == "multiclass" else "label (nodes that have it)"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for column in (what, "nodes", "share", "train", "val", "test"):
        table.add_column(Text(column), justify="left" if column == what else "right")
    labelled = max(figures["labelled"], 1)
    counts = figures["class_counts"]
    for name, row in list(counts.items())[:_MOST_CLASSES]:
        share = f"{100 * row['all'] / labelled:.1f} %"
        cells = [f"{row['all']:,}", share, *(f"{row[part]:,}" for part in ("train", "val", "test"))]
        table.add_row(Text(name), *cells)
    if len(counts) > _MOST_CLASSES:
        table.add_row(Text(f"and {len(counts) - _MOST_CLASSES} more", style="dim"))
    return table


def _number(count: int, word: str) -> str:
    plural = f"{word}es" if word.endswith("s") else f"{word}s"
    return f"{count:,} {word if count == 1 else plural}"
