"""What ``isoattn probe`` leaves: a table, JSON, CSV, a picture."""

from __future__ import annotations

import csv
import io
import math
import sys
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from isoattn.apps.base.files import write_atomic, write_json
from isoattn.apps.core.picture import SOFTMAX, legend_beside, png, skill_ticks, style, token_axis
from isoattn.apps.core.probe import Probed
from isoattn.core.meter import Quantity

_SIZES = ("attention", "batch", "heads", "queries", "keys", "rows", "causal")


def write_probe(probed: list[Probed], settings: dict[str, Any], folder: Path) -> None:
    """Write ``readings.json``, ``readings.csv`` and ``probe.png``."""
    readings = [{"label": p.label, **p.where, "reading": p.reading.as_dict()} for p in probed]
    write_json(folder / "readings.json", {"settings": settings, "readings": readings})
    write_atomic(folder / "readings.csv", _csv(probed))
    by_layer = "batch" in probed[0].where
    write_atomic(folder / "probe.png", layers(probed) if by_layer else curves(probed))


def _csv(probed: list[Probed]) -> str:
    """One row a reading; ``X`` and ``X_error`` for each quantity, empty where undefined."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = list(probed[0].reading.quantities())
    # the sizes of a reading are named apart from where it was taken: both have a batch
    sizes = [f"shape_{s}" if s in probed[0].where else s for s in _SIZES]
    header = ["label", *probed[0].where, *sizes]
    writer.writerow([*header, *(x for name in names for x in (name, f"{name}_error"))])
    for p in probed:
        numbers = [x for q in p.reading.quantities().values() for x in (q.value, q.error)]
        given = [getattr(p.reading, s) for s in _SIZES]
        cells = ["" if math.isnan(x) else repr(x) for x in numbers]
        writer.writerow([p.label, *p.where.values(), *given, *cells])
    return text.getvalue()


def print_probe(probed: list[Probed], folder: Path) -> None:
    """The readings as a table; why something is undefined; where the files are."""
    console = Console(width=None if sys.stdout.isatty() else 150)
    first = probed[0].reading
    form = "causal" if first.causal else "bidirectional"
    table = Table(
        title=Text(f"{form}, batch {first.batch}, {first.heads} heads, {first.rows} queries"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    wide = console.width >= 120
    columns = ["", *probed[0].where, "tokens", "skill", "error", "mean pool", "KL", "top-1"]
    columns += ["negative", "row sum", "keys", "softmax", "rank", "softmax"] if wide else []
    for column in columns:
        table.add_column(Text(column), no_wrap=True, justify="right" if column else "left")
    for p in probed:
        r = p.reading
        shown = [r.output_error, r.mean_error, r.kl, r.top1]
        if wide:
            shown += [r.negative_mass, r.row_sum, r.effective_keys, r.softmax_effective_keys]
            shown += [r.effective_rank, r.softmax_effective_rank]
        cells = [p.label, *map(str, p.where.values()), f"{r.keys:,}", _with_error(r.skill)]
        table.add_row(*map(Text, (*cells, *map(_number, shown))))
    console.print(table)
    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    more = "; keys: exp(entropy) of a row; rank: effective rank; softmax: the same of exact softmax"
    say(f"error and mean pool: output error against softmax{more if wide else ''}.")
    lines: dict[str, None] = {}
    for p in probed:
        for q in p.reading.quantities().values():
            if not q.defined:
                lines[f"{p.label}: - is {q.estimator}"] = None
    for line in lines:
        say(line)
    say(f"written {folder}: readings.json, readings.csv, probe.png")


def _number(q: Quantity) -> str:
    if not q.defined:
        return "-"
    if math.isinf(q.value):
        return "inf"
    if abs(q.value) < 5e-5:
        return "0"
    return f"{q.value:.3g}" if abs(q.value) < 1000 else f"{q.value:,.0f}"


def _with_error(q: Quantity) -> str:
    if not q.defined or math.isinf(q.value):
        return _number(q)
    error = "" if math.isnan(q.error) or q.error < 5e-4 else f" ± {q.error:.2g}"
    value = 0.0 if abs(q.value) < 5e-4 else q.value
    return f"{value:.3f}{error}" if abs(q.value) < 1000 else f"{q.value:.3g}{error}"


def curves(probed: list[Probed]) -> bytes:
    """Skill over tokens, a panel for each kind of tokens and std; logarithmic below -1."""
    kinds = list(dict.fromkeys(str(p.where["data"]) for p in probed))
    stds = list(dict.fromkeys(p.where["std"] for p in probed))
    figure = Figure(figsize=(4.2 * len(stds) + 2.5, 3.4 * len(kinds)), layout="constrained")
    grid = figure.subplots(len(kinds), len(stds), squeeze=False, sharey=True)
    labels = list(dict.fromkeys(p.label for p in probed))
    for row, kind in enumerate(kinds):
        for column, std in enumerate(stds):
            axes = grid[row][column]
            here = [p for p in probed if (p.where["data"], p.where["std"]) == (kind, std)]
            for number, label in enumerate(labels):
                points = [p.reading for p in here if p.label == label and p.reading.skill.defined]
                look: Any = style(label, number)
                axes.errorbar(
                    [r.keys for r in points],
                    [r.skill.value for r in points],
                    [0.0 if math.isnan(r.skill.error) else r.skill.error for r in points],
                    label=label,
                    capsize=2,
                    **look,
                )
            token_axis(axes, sorted({p.reading.keys for p in here}))
            axes.axhline(0.0, color="#8a8f98", linewidth=0.8)
            axes.set_yscale("symlog", linthresh=1.0)
            axes.set_ylim(top=1.15)
            skill_ticks(axes.yaxis)
            axes.set_title(f"{kind}, std {std:g}", fontsize=10, loc="left")
            if not column:
                axes.set_ylabel("skill (1 softmax, 0 mean pooling)")
    legend_beside(figure, grid[0][0])
    return png(figure)


def layers(probed: list[Probed]) -> bytes:
    """Skill and effective keys of every layer; one dot a batch."""
    names = list(dict.fromkeys(p.label for p in probed))
    figure = Figure(figsize=(11, 1.6 + 0.32 * len(names)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    panels: list[tuple[Axes, str, str | None]] = [
        (left, "skill", None),
        (right, "effective_keys", "softmax_effective_keys"),
    ]
    for axes, ours, exact in panels:
        for name, colour, label in ((ours, "#d55e00", "this model"), (exact, SOFTMAX, "softmax")):
            found = [(names.index(p.label), p.reading.quantities()[name]) for p in probed if name]
            found = [(y, q) for y, q in found if q.defined]
            if found:
                axes.errorbar(
                    [q.value for _, q in found],
                    [y for y, _ in found],
                    xerr=[0.0 if math.isnan(q.error) else q.error for _, q in found],
                    fmt="o",
                    color=colour,
                    label=label,
                    markersize=5,
                )
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    left.set_yticks(range(len(names)), names, fontsize=8)
    left.invert_yaxis()
    left.set_xlabel("skill (1 softmax of the same q and k, 0 mean pooling)")
    left.set_xscale("symlog", linthresh=1.0)
    left.set_xlim(right=1.15)
    skill_ticks(left.xaxis)
    left.axvline(0.0, color="#8a8f98", linewidth=0.8)
    right.set_xlabel("effective number of keys of a query, exp(entropy)")
    right.legend(fontsize=8, frameon=False)
    return png(figure)
