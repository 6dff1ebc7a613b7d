"""The section on groups of test items: how each arm does where the items are hard in one way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes

from isoattn.ablate.report import style
from isoattn.ablate.report.blocks import Block, Chart, Heading, Text, table
from isoattn.ablate.report.sections import group_of
from isoattn.ablate.report.wording import NONE, Scale, level_text

Data = Mapping[str, Any]


def strata(summary: Data, scale: Scale) -> list[Block]:
    """A chart of all strata and a table of each; nothing where the test items have none."""
    rows = summary["strata"]
    if not rows:
        return []
    blocks: list[Block] = [
        Heading("By stratum"),
        Text(
            "The same test scores over groups of test items. Shown to say where a difference comes "
            "from; nothing is judged here, and no p is adjusted for the number of groups.",
            "note",
        ),
    ]
    blocks.append(
        Chart(
            "strata",
            stratum_chart(summary, scale),
            "Test score of each arm over the groups of each stratum",
            "Mean over seeds; bars: SD over seeds.",
        )
    )
    for name in dict.fromkeys(row["stratum"] for row in rows):
        mine = [row for row in rows if row["stratum"] == name]
        blocks.append(
            table(
                (f"<{name}", "items", "<arm", "runs", f"test {scale.unit} ± SD")
                + ("difference [95 % interval]",),
                [(group_of(row), _cells(row, scale)) for row in mine],
            )
        )
    return blocks


def _cells(row: Data, scale: Scale) -> list[str]:
    d = row["difference"] or {}
    return [
        *(row["group"], NONE if row["items"] is None else f"{row['items']:,.0f}"),
        *(row["arm"], str(row["n"]), scale.with_sd(row["mean"], row["sd"])),
        scale.estimate(d.get("mean"), d.get("low"), d.get("high")),
    ]


def stratum_chart(summary: Data, scale: Scale) -> str:
    """A panel per stratum and level set; a line per arm over the groups."""
    rows = summary["strata"]
    panels_of = list(dict.fromkeys((row["level"], row["stratum"]) for row in rows))
    with style.chart_style():
        styles = style.arm_styles(summary)
        figure, panels = style.facets(len(panels_of), 2.6)
        for ax, (level, stratum) in zip(panels, panels_of, strict=True):
            here = [row for row in rows if (row["level"], row["stratum"]) == (level, stratum)]
            title = stratum if level == "all" else f"{stratum}, {level_text(level)}"
            _panel(ax, here, title, styles, scale)
        panels[0].set_ylabel(f"test {scale.unit}")
        return style.svg_of(figure)


def _panel(
    ax: Axes, rows: list[Data], title: str, styles: Mapping[str, style.ArmStyle], scale: Scale
) -> None:
    groups = list(dict.fromkeys(row["group"] for row in rows))
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    ends = []
    for number, arm in enumerate(arms):
        mine = [row for row in rows if row["arm"] == arm]
        aside = 0.16 * (number / max(len(arms) - 1, 1) - 0.5)  # bars of two arms stay apart
        x = [groups.index(row["group"]) + aside for row in mine]
        y = [scale.scaled(row["mean"]) for row in mine]
        look = styles[arm]
        bars = [scale.scaled(row["sd"] or 0.0) for row in mine]
        ax.errorbar(
            x, y, yerr=bars, fmt=look.marker, linestyle=look.dash, color=look.color, elinewidth=1.0
        )
        ends.append((x[-1], y[-1], arm, look.color))
    ax.set_title(title)
    ax.set_xticks(range(len(groups)), groups)
    ax.set_xlim(-0.4, len(groups) - 0.6)
    style.label_ends(ax, ends)
