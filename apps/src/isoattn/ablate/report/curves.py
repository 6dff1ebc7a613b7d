"""Charts of the runs themselves: over learning rates, over epochs, and against time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from isoattn.ablate.report import style
from isoattn.ablate.report.wording import Scale, level_text, rate_text

Data = Mapping[str, Any]


def rate_chart(summary: Data, scale: Scale) -> str | None:
    """Validation metric over the learning rate: means as lines, seeds as dots, the choice ringed.

    A diverged run is a cross at the bad end of the panel; it pulls its mean there too.
    """
    searched = [choice for choice in summary["search"] if len(choice["curve"]) > 1]
    levels = _levels(summary, searched)
    if not levels:
        return None
    bad = 0.0 if summary["study"]["metric"]["mode"] == "max" else 1.0
    with style.chart_style():
        styles = style.arm_styles(summary)
        figure, panels = style.facets(len(levels), 3.0)
        rates = sorted({p["rate"] for c in searched for p in c["curve"]})
        for ax, level in zip(panels, levels, strict=True):
            _title(ax, level)
            here = [choice for choice in searched if choice["level"] == level]
            ax.set_ylim(
                *_limits(scale.scaled(v) for c in here for p in c["curve"] for v in _kept(p))
            )
            ax.set_xscale("log")
            ax.set_xticks(rates, [rate_text(rate) for rate in rates])
            ax.minorticks_off()
            ax.set_xlabel("learning rate")
            ends = []
            for choice in here:
                end = _rate_line(ax, choice, scale, styles[choice["arm"]], bad)
                ends += [] if end is None else [end]
            style.label_ends(ax, ends)
        panels[0].set_ylabel(f"validation {scale.unit}")
        return style.svg_of(figure)


def learning_chart(summary: Data, scale: Scale) -> str | None:
    """Validation metric over epochs: mean over seeds, band of one SD to either side.

    None where no run was validated twice: a point is no curve.
    """
    levels = _levels(summary, summary["curves"])
    lines: dict[str, list[tuple[str, np.ndarray, np.ndarray, np.ndarray]]] = {}
    for curve in summary["curves"]:
        x, mean, sd = _over_seeds(curve["seeds"], scale)
        lines.setdefault(curve["level"], []).append((curve["arm"], x, mean, sd))
    every = [line for group in lines.values() for line in group]
    if all(len(x) < 2 for _, x, _, _ in every):
        return None
    with style.chart_style():
        styles = style.arm_styles(summary)
        figure, panels = style.facets(len(levels), 3.0)
        panels[0].set_ylim(
            *_limits(v for _, _, mean, sd in every for v in (*(mean - sd), *(mean + sd)))
        )
        for ax, level in zip(panels, levels, strict=True):
            _title(ax, level)
            ax.set_xlabel("epoch")
            bands = [(mean - sd, mean + sd) for _, _, mean, sd in lines[level]]
            ax.set_ylim(*_limits(v for band in bands for edge in band for v in edge))
            ends = []
            for arm, x, mean, sd in lines[level]:
                look = styles[arm]
                ax.fill_between(x, mean - sd, mean + sd, color=look.color, alpha=0.16, linewidth=0)
                ax.plot(x, mean, look.dash, color=look.color)
                ends.append((float(x[-1]), float(mean[-1]), arm, look.color))
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
            style.label_ends(ax, ends)
        panels[0].set_ylabel(f"validation {scale.unit}")
        return style.svg_of(figure)


def cost_chart(summary: Data, scale: Scale) -> str | None:
    """Test metric against the time of a training step; bars: SD over seeds, IQR over repeats."""
    costs = [cost for cost in summary["costs"] if cost["score"] is not None]
    levels = _levels(summary, costs)
    if not levels:
        return None
    sds = {(row["arm"], row["level"]): row["sd"] or 0.0 for row in summary["results"]}
    with style.chart_style():
        styles = style.arm_styles(summary)
        figure, panels = style.facets(len(levels), 3.0)
        for ax, level in zip(panels, levels, strict=True):
            _title(ax, level)
            ax.set_xlabel("milliseconds a training step")
            here = [cost for cost in costs if cost["level"] == level]
            named = []
            spans = []
            for cost in here:
                look = styles[cost["arm"]]
                y, sd = scale.scaled(cost["score"]), scale.scaled(sds[cost["arm"], level])
                ax.errorbar(
                    cost["step_ms"],
                    y,
                    xerr=cost["step_ms_iqr"] / 2,
                    yerr=sd,
                    fmt=look.marker,
                    color=look.color,
                    markersize=6.5,
                    elinewidth=1.1,
                )
                name = f"{cost['arm']} ({cost['note']})" if cost["note"] else cost["arm"]
                named.append((cost["step_ms"], y, name))
                spans += [y - sd, y + sd]
            ax.set_ylim(*_limits(spans))
            ax.set_xlim(0, 1.12 * max(cost["step_ms"] + cost["step_ms_iqr"] for cost in here))
            style.label_points(ax, named)
        panels[0].set_ylabel(f"test {scale.unit}")
        return style.svg_of(figure)


def _rate_line(
    ax: Axes, choice: Data, scale: Scale, look: style.ArmStyle, bad: float
) -> tuple[float, float, str, str] | None:
    points = [point for point in choice["curve"] if point["mean"] is not None]
    if not points:
        return None
    means = [scale.scaled(point["mean"]) for point in points]
    ax.plot([p["rate"] for p in points], means, look.dash, color=look.color, zorder=2)
    for point, mean in zip(points, means, strict=True):
        kept = [scale.scaled(value) for value in _kept(point)]
        at = [point["rate"]] * len(kept)
        ax.plot(at, kept, look.marker, color=look.color, markersize=3, alpha=0.55, zorder=3)
        if point["diverged"]:
            _cross(ax, point, look.color, bad)
        if point["rate"] == choice["rate"]:
            ax.plot(
                point["rate"],
                mean,
                "o",
                markersize=10,
                fillstyle="none",
                color=style.INK,
                markeredgewidth=1.3,
                zorder=4,
            )
    return points[-1]["rate"], means[-1], choice["arm"], look.color


def _cross(ax: Axes, point: Data, color: str, bad: float) -> None:
    ax.plot(
        point["rate"],
        bad,
        "x",
        color=color,
        markersize=7,
        markeredgewidth=1.8,
        transform=ax.get_xaxis_transform(),
        clip_on=False,
        zorder=5,
    )
    ax.annotate(
        f"{len(point['diverged'])} diverged",
        (point["rate"], bad),
        xycoords=ax.get_xaxis_transform(),
        xytext=(-7, 6 if bad == 0 else -6),
        textcoords="offset points",
        ha="right",
        va="center",
        fontsize=7.5,
        color=style.SOFT,
    )


def _kept(point: Data) -> list[float]:
    """Validation metric of the runs that did not diverge."""
    return [v for seed, v in point["values"].items() if int(seed) not in point["diverged"]]


def _over_seeds(
    seeds: Mapping[str, Sequence[Sequence[float]]], scale: Scale
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Epochs that any seed reached, mean and SD over the seeds that reached them."""
    by_epoch: dict[float, list[float]] = {}
    for series in seeds.values():
        for epoch, value in series:
            if value is not None:
                by_epoch.setdefault(epoch, []).append(scale.scaled(value))
    epochs = sorted(by_epoch)
    mean = np.array([np.mean(by_epoch[e]) for e in epochs])
    sd = np.array([np.std(v, ddof=1) if len(v := by_epoch[e]) > 1 else 0.0 for e in epochs])
    return np.array(epochs), mean, sd


def _levels(summary: Data, rows: Iterable[Data]) -> list[str]:
    there = {row["level"] for row in rows}
    return [level for level in summary["study"]["levels"] if level in there]


def _limits(values: Iterable[float]) -> tuple[float, float]:
    finite = [value for value in values if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    pad = 0.07 * (high - low) or 0.05 * abs(high) or 1.0
    return low - pad, high + pad


def _title(ax: Axes, level: str) -> None:
    if level != "all":
        ax.set_title(level_text(level))
