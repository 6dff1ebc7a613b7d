"""What ``isoattn bench`` leaves: a table, JSON, CSV, a picture, a page of Markdown."""

from __future__ import annotations

import csv
import io
import math
import statistics
import sys
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from isoattn.apps.base.crossover import Crossover
from isoattn.apps.base.files import write_atomic, write_json
from isoattn.apps.core.bench_records import BASELINE, Bench, Row, crossovers
from isoattn.apps.core.picture import legend_beside, log_ticks, png, style, token_axis

BUSY = 1.3
"""Wall over processor time of a call, median over all rows, from which the wall is not trusted."""

_PARTS = {
    "forward": "forward time",
    "train": "forward + backward time",
    "forward_peak": "forward memory",
    "train_peak": "forward + backward memory",
}


def write_bench(bench: Bench, folder: Path) -> None:
    """Write ``results.json``, ``results.csv``, ``bench.png`` and ``report.md``."""
    crossed = {m: crossovers(bench, m) for m in bench.methods if m != BASELINE.label}
    write_json(
        folder / "results.json",
        {
            "settings": bench.settings,
            "machine": {
                "matrix_product_flops_per_second": bench.peaks.flops,
                "copy_bytes_per_second": bench.peaks.bytes,
            },
            "rows": [asdict(row) for row in bench.rows],
            "crossover_with_softmax": {
                m: {part: asdict(c) for part, c in found.items()} for m, found in crossed.items()
            },
            "absent": bench.absent,
        },
    )
    write_atomic(folder / "results.csv", _csv(bench.rows))
    write_atomic(folder / "bench.png", picture(bench, crossed))
    write_atomic(folder / "report.md", report(bench, crossed))


def _csv(rows: list[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, [f.name for f in fields(Row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return text.getvalue()


def print_bench(bench: Bench, folder: Path) -> None:
    """The times at every number of tokens and the crossovers, then where the files are."""
    console = Console(width=None if sys.stdout.isatty() else 140)
    unit = "layer" if bench.sizes.dim else "operator"
    both = console.width >= 120
    parts = "forward / forward + backward" if both else "forward + backward"
    table = Table(
        title=Text(f"{headline(bench)}: ms {parts} of one {unit}"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("")
    for count in bench.tokens:
        table.add_column(f"{count:,}", justify="right", no_wrap=True)
    table.add_column("MiB", justify="right", no_wrap=True)
    cheaper = "cheaper than Softmax from" if both else "crossover"
    table.add_column(cheaper, justify="right", no_wrap=True)
    for method in bench.methods:
        rows = {row.tokens: row for row in bench.of(method)}
        last = rows[bench.tokens[-1]]
        crossed = "" if method == BASELINE.label else crossovers(bench, method)["train"].text
        cells = [
            method,
            *(_times(rows[count], both) for count in bench.tokens),
            _mib(last.train_peak),
            crossed,
        ]
        table.add_row(*map(Text, cells))
    console.print(table)
    say = _sayer(console)
    notes = dict.fromkeys(
        f"{r.method}, {r.tokens:,} tokens: {r.note}" for r in bench.rows if r.note
    )
    for line in [*notes, *bench.absent]:
        say(line)
    if any(row.train_peak is not None for row in bench.rows):
        say(f"MiB: peak of forward + backward above the inputs at {bench.tokens[-1]:,} tokens.")
    if busy := disturbed(bench):
        say(busy)
    say(
        f"Measured here: {bench.peaks.flops / 1e9:,.0f} GFLOP/s in a matrix product, "
        f"{bench.peaks.bytes / 1e9:,.0f} GB/s in a copy."
    )
    say(f"written {folder}: report.md, bench.png, results.csv, results.json")


def disturbed(bench: Bench) -> str:
    """A warning where other programs took a good part of the time on the wall; else empty."""
    waits = [
        row.train_wall / row.train_cpu
        for row in bench.rows
        if row.train_wall and row.train_cpu and bench.sizes.device == "cpu"
    ]
    if not waits or bench.settings["clock"] != "wall" or statistics.median(waits) < BUSY:
        return ""
    times = statistics.median(waits)
    return (
        f"The machine was busy: a call took {times:.1f} times its processor time on the wall. "
        "Ratios and crossovers may be noise; --clock cpu is steadier."
    )


def _sayer(console: Console) -> Any:
    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    return say


def headline(bench: Bench) -> str:
    """Sizes in a line."""
    s = bench.sizes
    layer = f"layers of {s.dim} channels, " if s.dim else ""
    form = "causal" if s.causal else "bidirectional"
    return f"{layer}{form}, batch {s.batch}, {s.heads} heads of {s.head_dim}, {s.dtype}, {s.device}"


def _times(row: Row, both: bool) -> str:
    if row.forward is None or row.train is None:
        return "-"
    return f"{_ms(row.forward)} / {_ms(row.train)}" if both else _ms(row.train)


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{1e3 * seconds:.3g}" if seconds < 0.1 else f"{1e3 * seconds:,.0f}"


def _mib(count: int | None) -> str:
    return "-" if count is None else f"{count / 2**20:,.0f}"


def _short(x: float | None, scale: float = 1.0) -> str:
    return "-" if x is None else f"{x / scale:.3g}"


def picture(bench: Bench, crossed: dict[str, dict[str, Crossover]]) -> bytes:
    """Time of forward + backward over tokens, crossovers with Softmax as stars; memory beside."""
    weighed = any(row.train_peak is not None for row in bench.rows)
    figure = Figure(figsize=(13.5 if weighed else 9, 6), layout="constrained")
    panels = [("train", 1e3, "ms, forward + backward")]
    if weighed:
        panels.append(("train_peak", 2.0**20, "MiB above the inputs, forward + backward"))
    axes: Axes | None = None
    for place, (part, scale, label) in enumerate(panels, 1):
        axes = figure.add_subplot(1, len(panels), place)
        _curves(axes, bench, crossed, part, scale if part.endswith("peak") else 1 / scale)
        token_axis(axes, bench.tokens)
        axes.set_yscale("log")
        log_ticks(axes.yaxis)
        axes.set_ylabel(label)
    assert axes is not None
    legend_beside(figure, axes)
    figure.suptitle(f"{headline(bench)}; star: where it becomes cheaper than Softmax", fontsize=10)
    return png(figure)


def _curves(
    axes: Axes, bench: Bench, crossed: dict[str, dict[str, Crossover]], part: str, scale: float
) -> None:
    base = _points(bench, BASELINE.label, part)
    for number, method in enumerate(bench.methods):
        points = _points(bench, method, part)
        if not points:
            continue
        look: Any = style(method, number)
        if bench.of(method)[0].kind == "peer":
            look["linestyle"] = "--"
        axes.plot([n for n, _ in points], [y / scale for _, y in points], label=method, **look)
        place = crossed[method][part].tokens if method in crossed else None
        if place is not None and base:
            height = _interpolate(base, place) / scale
            axes.plot(place, height, "*", color=look["color"], markersize=11, zorder=6)


def _points(bench: Bench, method: str, part: str) -> list[tuple[int, float]]:
    found = [(row.tokens, getattr(row, part)) for row in bench.of(method)]
    return [(n, float(y)) for n, y in found if y]


def _interpolate(points: list[tuple[int, float]], place: float) -> float:
    """Between the measured points, both axes logarithmic."""
    for (left, low), (right, high) in zip(points, points[1:], strict=False):
        if left <= place <= right:
            share = math.log(place / left) / math.log(right / left)
            return math.exp(math.log(low) + share * math.log(high / low))
    return points[-1][1]


def report(bench: Bench, crossed: dict[str, dict[str, Crossover]]) -> str:
    """The page: what was run, a table at each number of tokens, the crossovers."""
    settings, environment = bench.settings, bench.settings["environment"]
    packages = ", ".join(f"{k} {v}" for k, v in environment["packages"].items())
    lines = [
        "# Benchmark of attentions",
        "",
        f"    {environment['command']}",
        "",
        f"{headline(bench)}. {environment['device']}, {settings['threads']} thread(s), {packages}. "
        f"Measured here: {bench.peaks.flops / 1e9:,.1f} GFLOP/s in a matrix product, "
        f"{bench.peaks.bytes / 1e9:,.1f} GB/s read and written in a copy.",
        "",
        f"Times are medians of up to {settings['rounds']} interleaved rounds, in ms by the "
        f"{settings['clock']} clock; x is the ratio to Softmax, taken round by round. CPU is the "
        "processor time of the process for forward and backward. Memory is the peak of a process "
        "of its own above its inputs. Of bound: the roofline time (FLOPs and bytes in closed form "
        "over what the machine reached above) as a share of the measured one; small inputs lie in "
        "the cache, so that it can exceed 100 %. Before timing, gelu(tanh) was run once: until "
        "then float32 elu and expm1 can be several times slower in a process.",
        "",
        *([f"**{busy}**", ""] if (busy := disturbed(bench)) else []),
        "![time and memory](bench.png)",
        "",
    ]
    for count in bench.tokens:
        lines += [f"## {count:,} tokens", "", *_table(bench, count), ""]
    lines += ["## Where it becomes cheaper than Softmax, in tokens", ""]
    lines += ["| | " + " | ".join(_PARTS.values()) + " |", "|---" * (1 + len(_PARTS)) + "|"]
    for method, found in crossed.items():
        cells = [found[part].text.replace("<", "&lt;").replace(">", "&gt;") for part in _PARTS]
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    notes = [f"{r.method}, {r.tokens:,} tokens: {r.note}" for r in bench.rows if r.note]
    if notes or bench.absent:
        lines += ["", "## Not measured", ""]
        lines += [f"- {note}" for note in [*notes, *bench.absent]]
    return "\n".join(lines) + "\n"


def _table(bench: Bench, count: int) -> list[str]:
    header = ["", "rounds", "forward", "x", "fwd + bwd", "x", "IQR", "CPU"]
    header += ["GFLOP", "of bound", "MiB fwd", "MiB f+b"]
    lines = ["| " + " | ".join(header) + " |", "|---" + "|---:" * (len(header) - 1) + "|"]
    for row in bench.rows:
        if row.tokens != count:
            continue
        share = "-"
        if row.train and row.train_bound is not None:
            share = f"{row.train_bound / row.train:.0%}"
        name = f"{row.method} {row.version}".strip()
        cells = [
            name,
            str(row.rounds or "-"),
            _ms(row.forward),
            _short(row.forward_ratio),
            _ms(row.train),
            _short(row.train_ratio),
            _ms(row.train_iqr),
            _ms(row.train_cpu),
            _short(None if row.train_flops is None else float(row.train_flops), 1e9),
            share,
            _mib(row.forward_peak),
            _mib(row.train_peak),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines
