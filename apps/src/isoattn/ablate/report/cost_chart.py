"""The chart of cost over size: step time and peak memory, both axes logarithmic."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from isoattn.ablate.cost_crossings import Part, crossing, own_size, values
from isoattn.ablate.cost_records import CostTable
from isoattn.ablate.report import style
from isoattn.ablate.report.cost_wording import about_text

_PANELS: tuple[tuple[Part, str], ...] = (
    ("step_ms", "milliseconds a training step"),
    ("peak_mib", "peak memory, MiB"),
)


def svg(costs: CostTable) -> str:
    """For the report."""
    with style.chart_style():
        return style.svg_of(_figure(costs))


def png(costs: CostTable) -> bytes:
    """For viewers that read no SVG."""
    out = io.BytesIO()
    with style.chart_style():
        _figure(costs).savefig(out, format="png", dpi=180, metadata={"Software": None})
    return out.getvalue()


def _figure(costs: CostTable) -> Figure:
    study = {"arms": costs.arms, "baseline": costs.baseline, "controls": costs.controls}
    styles = style.arm_styles({"study": study})
    figure, panels = style.facets(len(_PANELS), 3.4)
    for axes, (part, label) in zip(panels, _PANELS, strict=True):
        _axes(axes, costs, label)
        lines = {arm: values(costs, arm, part) for arm in costs.shown}
        for arm, line in lines.items():
            look = styles[arm]
            axes.plot(
                list(line), list(line.values()), look.dash, color=look.color, marker=look.marker
            )
        _y_axis(axes, lines)
        _own_size(axes, costs)
        for arm in lines:
            _ring(axes, costs, arm, part, styles[arm].color)
        ends = [
            (size, y, arm, styles[arm].color)
            for arm, line in lines.items()
            for size, y in list(line.items())[-1:]
        ]
        style.label_ends(axes, ends)
    return figure


def _axes(axes: Axes, costs: CostTable, label: str) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    sizes = costs.sizes
    own = own_size(costs)
    low, high = float(sizes[0]), float(sizes[-1])
    if own is not None and low / 4 <= own <= 4 * high:
        low, high = min(low, own), max(high, own)
    pad = (high / low) ** 0.05 if high > low else 1.5
    axes.set_xlim(low / pad, high * pad)
    axes.set_xticks(sizes, _spaced(sizes))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(costs.label)
    axes.set_title(label)


def _y_axis(axes: Axes, lines: Mapping[str, Mapping[int, float]]) -> None:
    found = [y for line in lines.values() for y in line.values()]
    low, high = (min(found), max(found)) if found else (1.0, 10.0)
    pad = max(1.15, (high / low) ** 0.06)
    axes.set_ylim(low / pad, high * pad)
    narrow = math.log10(high * pad * pad / low) < 2.5
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if narrow else (1.0,)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.0f}" if y >= 1 else f"{y:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _own_size(axes: Axes, costs: CostTable) -> None:
    own = own_size(costs)
    low, high = axes.get_xlim()
    if own is None or not low <= own <= high:
        return
    axes.axvline(own, color=style.SOFT, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    middle = math.sqrt(low * high)
    axes.annotate(
        f"the study, {about_text(own)}",
        (own, 1.0),
        xycoords=axes.get_xaxis_transform(),
        xytext=(4 if own < middle else -4, -8),
        textcoords="offset points",
        ha="left" if own < middle else "right",
        fontsize=7.5,
        color=style.SOFT,
    )


def _ring(axes: Axes, costs: CostTable, arm: str, part: Part, color: str) -> None:
    found = crossing(costs, arm, part) if arm != costs.baseline else None
    if found is None or found.crossover is None or found.crossover.tokens is None:
        return
    at = found.crossover.tokens
    axes.plot(
        at,
        _between(values(costs, costs.baseline, part), at),
        "o",
        markersize=10,
        fillstyle="none",
        color=color,
        markeredgewidth=1.6,
        zorder=4,
    )


def _between(line: Mapping[int, float], at: float) -> float:
    """The line at a size, on logarithmic axes."""
    sizes = list(line)
    right = next(number for number, size in enumerate(sizes) if size >= at)
    low, high = sizes[max(0, right - 1)], sizes[right]
    if low == high:
        return line[high]
    share = math.log(at / low) / math.log(high / low)
    return math.exp(math.log(line[low]) + share * math.log(line[high] / line[low]))


def _spaced(sizes: Sequence[int]) -> list[str]:
    """A label at each size, left empty where it would run into the one before."""
    span = math.log(sizes[-1] / sizes[0]) or 1.0
    labels, end = [], -math.inf
    for size in sizes:
        text = f"{size:,}"
        half = 0.018 * len(text)  # of the axis
        place = math.log(size / sizes[0]) / span
        clear = place - half > end
        labels.append(text if clear else "")
        end = place + half if clear else end
    return labels
