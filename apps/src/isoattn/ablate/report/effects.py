"""Charts of what is judged: differences to the baseline, and what the attention is worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from isoattn.ablate.report import style
from isoattn.ablate.report.wording import Scale, level_text

Data = Mapping[str, Any]
Row = Mapping[str, Any]
ROW, LEFT, RIGHT, TOP, BOTTOM = 0.28, 1.55, 3.15, 0.3, 0.52
"""Inches: height of a row, margins around the panel (names left, two columns of text right)."""


def effect_chart(summary: Data, scale: Scale) -> str | None:
    """Forest plot: a row per arm and level set, every seed as a dot, the margin as a band.

    The axis is set by the arms in question. A control far away becomes an arrow at the edge; its
    number stands in the column on the right.
    """
    rows = [row for row in summary["results"] if row["difference"] is not None]
    if not rows:
        return None
    study = summary["study"]
    with style.chart_style():
        figure, ax, places = _panel(rows)
        ax.set_xlim(*_effect_limits(summary, rows, scale))
        margin = scale.scaled(study["metric"]["margin"])
        ax.axvspan(-margin, margin, color=style.BAND, linewidth=0, zorder=0)
        ax.axvline(0, color=style.SOFT, linewidth=0.9, zorder=1)
        styles = style.arm_styles(summary)
        for y, row in zip(places, rows, strict=True):
            _effect_row(ax, y, row, scale, styles[row["arm"]])
        better = "right" if study["metric"]["mode"] == "max" else "left"
        ax.set_xlabel(
            f"arm − {study['baseline']}, {scale.difference_unit}; better to the {better}; "
            f"band: margin {scale.margin(study['metric']['margin'])}"
        )
        _column_titles(ax, "difference [95 % interval]", "verdict")
        return style.svg_of(figure)


def usage_chart(summary: Data, scale: Scale) -> str | None:
    """Test score as trained (filled) and with the attention replaced (open), per arm."""
    rows = [row for row in summary["usage"] if row["drop"] is not None]
    if not rows:
        return None
    with style.chart_style():
        figure, ax, places = _panel(rows)
        styles = style.arm_styles(summary)
        for y, row in zip(places, rows, strict=True):
            color, marker = styles[row["arm"]].color, styles[row["arm"]].marker
            own, swapped = scale.scaled(row["own"]), scale.scaled(row["replaced"])
            ax.plot([swapped, own], [y, y], color=color, linewidth=2, alpha=0.5, zorder=2)
            ax.plot(swapped, y, marker, color=color, markersize=6, fillstyle="none", zorder=3)
            ax.plot(own, y, marker, color=color, markersize=6, zorder=4)
            _columns(
                ax,
                y,
                scale.estimate(*(row["drop"][k] for k in ("mean", "low", "high"))),
                row["state"],
            )
        ax.margins(x=0.07)
        ax.set_xlabel(f"test {scale.unit}; filled: as trained, open: attention replaced")
        _column_titles(ax, "drop [95 % interval]", "attention")
        return style.svg_of(figure)


def _panel(rows: Sequence[Row]) -> tuple[Figure, Axes, list[float]]:
    """A panel with arm names on the left, grouped by level set, and room for text on the right."""
    places: list[float] = []
    ticks: list[tuple[float, str]] = []
    heads: list[tuple[float, str]] = []
    y, level = 0.0, None
    for row in rows:
        if row["level"] != level:
            level = row["level"]
            if level != "all":
                y -= 0.35 if places else 0.0
                heads.append((y, level_text(level)))
                y -= 1
        places.append(y)
        ticks.append((y, row["arm"]))
        y -= 1
    bottom, top = y + 0.4, 0.6
    height = TOP + BOTTOM + ROW * (top - bottom)
    figure = Figure(figsize=(style.WIDTH, height))
    width = style.WIDTH - LEFT - RIGHT
    box = LEFT / style.WIDTH, BOTTOM / height, width / style.WIDTH, 1 - (TOP + BOTTOM) / height
    ax = figure.add_axes(box)
    ax.set_ylim(bottom, top)
    ax.set_yticks([place for place, _ in ticks], [name for _, name in ticks])
    ax.tick_params(axis="y", length=0, pad=9)
    ax.spines["left"].set_visible(False)
    ax.grid(axis="y", visible=False)
    for place, text in heads:
        x = -LEFT / width + 0.02
        ax.text(x, place, text, transform=ax.get_yaxis_transform(), weight="bold", va="center")
    return figure, ax, places


def _effect_limits(summary: Data, rows: Sequence[Row], scale: Scale) -> tuple[float, float]:
    asked = [row for row in rows if row["role"] != "control"] or list(rows)
    margin = summary["study"]["metric"]["margin"]
    reach = [-1.6 * margin, 1.6 * margin]
    for row in asked:
        reach += row["differences"].values()
        # The interval of two pairs is 9 SDs wide; it may run out of the panel.
        if row["difference"]["n"] > 2:
            reach += [row["difference"]["low"], row["difference"]["high"]]
    pad = 0.06 * (max(reach) - min(reach))
    return scale.scaled(min(reach) - pad), scale.scaled(max(reach) + pad)


def _effect_row(ax: Axes, y: float, row: Row, scale: Scale, arm: style.ArmStyle) -> None:
    low, high = ax.get_xlim()
    d = row["difference"]
    mean = scale.scaled(d["mean"])
    seeds = np.array([scale.scaled(v) for v in row["differences"].values()])
    shown = seeds[(seeds >= low) & (seeds <= high)]
    ax.plot(shown, np.full(len(shown), y - 0.24), "|", color=arm.color, markersize=5, alpha=0.75)
    if d["low"] is not None:
        ends = np.clip([scale.scaled(d["low"]), scale.scaled(d["high"])], low, high)
        ax.plot(ends, [y, y], color=arm.color, linewidth=2.2, solid_capstyle="butt", zorder=3)
    if low <= mean <= high:
        ax.plot(mean, y, arm.marker, color=arm.color, markersize=6.5, zorder=4)
    else:
        edge, marker = (low, "<") if mean < low else (high, ">")
        ax.plot(edge, y, marker, color=arm.color, markersize=8, clip_on=False, zorder=4)
    _columns(ax, y, scale.estimate(d["mean"], d["low"], d["high"]), row["verdict"])


def _columns(ax: Axes, y: float, estimate: str, word: str) -> None:
    weight = "bold" if word in ("better", "worse", "equivalent", "a/a alarm") else "normal"
    for x, text, bold in ((0.18, estimate, "normal"), (2.0, word, weight)):
        ax.annotate(
            text,
            (1, y),
            xycoords=ax.get_yaxis_transform(),
            xytext=(72 * x, 0),
            textcoords="offset points",
            va="center",
            weight=bold,
            fontsize=8.5,
            annotation_clip=False,
        )


def _column_titles(ax: Axes, *titles: str) -> None:
    for x, text in zip((0.18, 2.0), titles, strict=True):
        ax.annotate(
            text,
            (1, 1),
            xycoords="axes fraction",
            xytext=(72 * x, 6),
            textcoords="offset points",
            color=style.SOFT,
            fontsize=8,
            annotation_clip=False,
        )
