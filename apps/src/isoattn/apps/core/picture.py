"""How the plots of the measuring commands look."""

from __future__ import annotations

import io
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9",
    "#8f5fd7", "#a3752c", "#3b8686", "#b4004e", "#5c7d00", "#7a5195",
)  # fmt: skip
"""Okabe and Ito (2008), extended."""
MARKERS = "os^DvPX<>ph*"
SOFTMAX = "#111111"
CONTROLS = ("Mean", "Identity", "Zero")


def style(label: str, number: int) -> dict[str, object]:
    """Colour, marker and line of a method: softmax black, controls grey, the rest told apart."""
    if label == "Softmax":
        return {"color": SOFTMAX, "linewidth": 2.6, "marker": "o", "zorder": 5}
    if label in CONTROLS:
        dash = (0, (1 + CONTROLS.index(label), 2))
        return {"color": "#8a8f98", "linewidth": 1.2, "linestyle": dash}
    return {
        "color": COLOURS[number % len(COLOURS)],
        "marker": MARKERS[number // len(COLOURS) % len(MARKERS)],
        "markersize": 4,
        "linewidth": 1.4,
    }


def token_axis(axes: Axes, tokens: Sequence[int]) -> None:
    """A logarithmic axis with the measured numbers of tokens as ticks."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(tokens), [f"{n:,}" for n in tokens])
    axes.tick_params(axis="x", which="minor", bottom=False)
    axes.set_xlabel("tokens")
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def log_ticks(axis: Axis) -> None:
    """Ticks of a logarithmic axis at 1, 2 and 5 times the powers of ten, as plain numbers."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_formatter(NullFormatter())


def skill_ticks(axis: Axis) -> None:
    """Even steps between -1 and 1, powers of ten below: the ticks of a symlog axis of skill."""
    steps = [-1000.0, -100.0, -10.0, -1.0, -0.5, 0.0, 0.25, 0.5, 0.75, 1.0]
    axis.set_major_locator(FixedLocator(steps))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_locator(NullLocator())


def legend_beside(figure: Figure, axes: Axes) -> None:
    """One legend right of everything."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize=8, frameon=False)


def png(figure: Figure) -> bytes:
    """The picture as PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()
