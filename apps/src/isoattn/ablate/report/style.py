"""How charts look: colours of the arms, and SVG that is read on light and on dark paper.

Colours are those of Okabe and Ito (2008), told apart with the common colour deficiencies; controls
are grey and dashed. Ink, grid and paper are placeholders that the page replaces by its own.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

INK, SOFT, GRID, BAND = "#1b1f27", "#5b6471", "#dfe3e8", "#eef1f5"
BASELINE = "#0072b2"
ARMS = ("#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8f5fd7", "#a3752c")
CONTROLS = ("#6f7782", "#9aa2ad", "#4d545e")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
WIDTH = 8.6
"""Inches; at 72 units an inch the nine-point text is about 12 px in a column of 860 px."""

_FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_SETTINGS: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "text.color": INK,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "axes.labelcolor": INK,
    "axes.edgecolor": SOFT,
    "axes.facecolor": "none",
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "isoattn",
    "axes.unicode_minus": True,
    "text.parse_math": False,  # An arm may be called anything.
}


@dataclass(frozen=True)
class ArmStyle:
    """Colour, marker and dash of one arm, the same in every chart."""

    color: str
    marker: str
    dash: str


def arm_styles(summary: Mapping[str, Any]) -> dict[str, ArmStyle]:
    """A style per arm, by the order of the study file: one more arm at its end changes no other."""
    study = summary["study"]
    styles: dict[str, ArmStyle] = {}
    plain = grey = 0
    for index, arm in enumerate(study["arms"]):
        marker = MARKERS[index % len(MARKERS)]
        if arm == study["baseline"]:
            styles[arm] = ArmStyle(BASELINE, marker, "-")
        elif arm in study["controls"]:
            styles[arm] = ArmStyle(CONTROLS[grey % len(CONTROLS)], marker, "--")
            grey += 1
        else:
            dash = "-" if plain < len(ARMS) else ":"
            styles[arm] = ArmStyle(ARMS[plain % len(ARMS)], marker, dash)
            plain += 1
    return styles


@contextmanager
def chart_style() -> Iterator[None]:
    """The settings of all charts, on top of matplotlib's own and not of a user's matplotlibrc."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_SETTINGS)
        yield


def facets(count: int, height: float, *, columns: int = 2) -> tuple[Figure, list[Axes]]:
    """A figure with ``count`` panels side by side, wrapped after ``columns``."""
    across = min(count, columns)
    down = -(-count // across)
    width = WIDTH if across > 1 else 0.72 * WIDTH
    figure = Figure(figsize=(width, height * down), layout=ConstrainedLayoutEngine(hspace=0.09))
    grid = figure.subplots(down, across, squeeze=False)
    panels = [ax for row in grid for ax in row]
    for extra in panels[count:]:
        extra.remove()
    return figure, panels[:count]


def svg_of(figure: Figure) -> str:
    """The figure as SVG text without date, XML head, fixed size or fonts of this machine."""
    out = io.StringIO()
    figure.set_canvas(FigureCanvasSVG(figure))
    figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    # A style element inside one inline SVG would apply to the whole page.
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    return text.replace("'DejaVu Sans'", _FONTS).replace('"DejaVu Sans"', _FONTS)


def on_paper(svg: str) -> str:
    """A file of its own: white paper and a size, for viewers that know neither theme nor page."""
    width, height = re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)[0]
    opened = svg.index(">") + 1
    paper = '<rect width="100%" height="100%" fill="#ffffff"/>'
    sized = svg[: opened - 1] + f' width="{width}pt" height="{height}pt">' + paper
    return '<?xml version="1.0" encoding="utf-8"?>\n' + sized + svg[opened:]


def inline(svg: str, name: str, label: str) -> str:
    """SVG for a page that sets ``--ink``, ``--soft``, ``--grid`` and ``--band``.

    Args:
        svg: a chart.
        name: unique in the page; goes before every id, which charts otherwise share.
        label: what is read out; escaped already.
    """
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'url\(#|href="#', lambda found: f"{found[0]}{name}-", svg)
    for placeholder, name in ((INK, "ink"), (SOFT, "soft"), (GRID, "grid"), (BAND, "band")):
        svg = svg.replace(placeholder, f"var(--{name})")
    return svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


def label_ends(ax: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Name lines at their right end; labels that would overlap are moved apart, with a leader.

    Args:
        ax: the panel; its limits must be final.
        ends: x, y (data), text, colour.
    """
    low, high = ax.get_ylim()
    placed = sorted(ends, key=lambda end: end[1])
    to_axes = ax.transScale + ax.transLimits  # an axis may be logarithmic
    heights = [float(to_axes.transform((x, y))[1]) for x, y, _, _ in placed]
    wanted = [min(1.0, max(0.0, height)) for height in heights]
    for (x, y, text, color), spot in zip(placed, spread(wanted, 11 / _HEIGHT), strict=True):
        ax.annotate(
            text,
            xy=(x, min(max(y, low), high)),
            xytext=(1.05, spot),
            textcoords="axes fraction",
            va="center",
            fontsize=8.5,
            arrowprops={
                **{"arrowstyle": "-", "color": color, "linewidth": 0.9, "relpos": (0, 0.5)},
                **{"shrinkA": 1, "shrinkB": 4},
            },
            annotation_clip=False,
        )


def label_points(ax: Axes, points: Sequence[tuple[float, float, str]]) -> None:
    """Name points beside them, on the first side that is still free.

    Args:
        ax: the panel; its limits must be final.
        points: x, y (data), text.
    """
    (left, right), (low, high) = ax.get_xlim(), ax.get_ylim()
    at = [
        (_BREADTH * (x - left) / (right - left), _HEIGHT * (y - low) / (high - low))
        for x, y, _ in points
    ]
    taken = [(x - 5, x + 5, y - 5, y + 5) for x, y in at]
    for (x, y, text), (px, py) in zip(points, at, strict=True):
        width = 5.2 * len(text)
        for dx, dy, align in _SIDES:
            start = px + dx - {"left": 0.0, "center": width / 2, "right": width}[align]
            box = (start, start + width, py + dy - 5, py + dy + 5)
            inside = box[0] > -2 and box[1] < _BREADTH + 40
            if inside and not any(_overlap(box, other) for other in taken):
                break
        taken.append(box)
        ax.annotate(
            text,
            (x, y),
            xytext=(dx, dy),
            textcoords="offset points",
            ha=align,
            va="center",
            fontsize=8.5,
            annotation_clip=False,
        )


_HEIGHT, _BREADTH = 165.0, 215.0
"""Points a panel of :func:`facets` is high and wide, near enough to place labels."""
_SIDES = (
    *((8.0, 0.0, "left"), (0.0, 11.0, "center"), (0.0, -11.0, "center"), (-8.0, 0.0, "right")),
    *((0.0, 22.0, "center"), (0.0, -22.0, "center"), (0.0, 33.0, "center"), (0.0, -33.0, "center")),
)


def _overlap(one: Sequence[float], two: Sequence[float]) -> bool:
    return one[0] < two[1] and two[0] < one[1] and one[2] < two[3] and two[2] < one[3]


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Ascending positions at least ``gap`` apart, near the wanted ones and centred on them."""
    groups = [[position] for position in wanted]
    merged: list[tuple[list[float], float]] = []
    for group in groups:
        merged.append((group, group[0]))
        while len(merged) > 1:
            (one, a), (two, b) = merged[-2:]
            if b - gap * (len(two) - 1) / 2 - (a + gap * (len(one) - 1) / 2) >= gap - 1e-12:
                break
            both = one + two
            merged[-2:] = [(both, sum(both) / len(both))]
    return [
        centre + gap * (i - (len(group) - 1) / 2)
        for group, centre in merged
        for i in range(len(group))
    ]
