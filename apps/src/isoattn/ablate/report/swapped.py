"""The chart of the test-time swaps (P10): trained with against evaluated with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from isoattn.ablate.report import style
from isoattn.ablate.report.wording import Scale, level_text

Data = Mapping[str, Any]
_ROW = 0.5
"""Inches a row is high."""
_STRONGEST = 0.6
"""Opacity of the largest change: ink is read on it on light and on dark paper."""


def swap_chart(summary: Data, scale: Scale) -> str | None:
    """A panel per level set; each field holds the mean and the difference to as trained."""
    rows = [row for row in summary["swaps"] if row["difference"] is not None]
    levels = [lv for lv in summary["study"]["levels"] if lv in {row["level"] for row in rows}]
    if not levels:
        return None
    trained = list(dict.fromkeys(row["trained"] for row in rows))
    evaluated = [arm for arm in summary["study"]["swaps"] if arm in {r["evaluated"] for r in rows}]
    largest = max(abs(row["difference"]["mean"]) for row in rows)
    better = 1 if summary["study"]["metric"]["mode"] == "max" else -1
    with style.chart_style():
        figure, panels = style.facets(
            len(levels), 1.1 + _ROW * len(trained), columns=2 if len(evaluated) < 4 else 1
        )
        for ax, level in zip(panels, levels, strict=True):
            _frame(ax, trained, evaluated)
            if level != "all":
                ax.set_title(level_text(level))
            for row in (r for r in rows if r["level"] == level):
                strength = better * row["difference"]["mean"] / largest if largest else 0.0
                at = evaluated.index(row["evaluated"]), trained.index(row["trained"])
                _field(ax, at, row, strength, scale)
        return style.svg_of(figure)


def _frame(ax: Axes, trained: list[str], evaluated: list[str]) -> None:
    ax.set_xlim(0, len(evaluated))
    ax.set_ylim(len(trained), 0)
    ax.set_xticks([i + 0.5 for i in range(len(evaluated))], evaluated)
    ax.set_yticks([i + 0.5 for i in range(len(trained))], trained)
    if len(evaluated) > 4:
        ax.tick_params(axis="x", rotation=30)
    ax.tick_params(length=0)
    ax.grid(visible=False)
    for side in ax.spines.values():
        side.set_visible(False)
    ax.set_xlabel("evaluated with")
    ax.set_ylabel("trained with")


def _field(ax: Axes, at: tuple[int, int], row: Data, strength: float, scale: Scale) -> None:
    x, y = at
    color = style.BASELINE if strength > 0 else style.ARMS[0]
    ax.add_patch(
        Rectangle(
            (x + 0.02, y + 0.04), 0.96, 0.92, color=color, alpha=_STRONGEST * abs(strength), lw=0
        )
    )
    ax.text(x + 0.5, y + 0.36, scale.value(row["swapped"]), ha="center", va="center", weight="bold")
    ax.text(
        x + 0.5,
        y + 0.7,
        scale.signed(row["difference"]["mean"]),
        ha="center",
        va="center",
        fontsize=8,
    )
