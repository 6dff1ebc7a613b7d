"""The section of a report on the cost of the arms over a growing size (P9)."""

from __future__ import annotations

from typing import Any

from isoattn.ablate.cost_crossings import LEVEL, PARTS, own_size
from isoattn.ablate.cost_records import CostTable, SizedCost
from isoattn.ablate.report import cost_chart
from isoattn.ablate.report.blocks import Block, Bullets, Chart, Heading, Table, Text, table
from isoattn.ablate.report.cost_wording import (
    about_text,
    arm_sentence,
    crossing_cell,
    not_measured,
)
from isoattn.ablate.report.wording import NONE

ALT = "Step time and peak memory of the arms over size"


def cost_over_size(costs: CostTable) -> list[Block]:
    """What was measured, the figure, a sentence an arm, the crossovers, every number."""
    others = [arm for arm in costs.shown if arm != costs.baseline]
    blocks: list[Block] = [
        Heading(f"Cost over {costs.label}"),
        Text(_setting(costs), "note"),
        Chart("cost_over_size", cost_chart.svg(costs), ALT, caption(costs)),
    ]
    if others:
        blocks += [
            Bullets(tuple(arm_sentence(costs, arm) for arm in others)),
            _crossovers(costs, others),
        ]
    blocks.append(_every_number(costs))
    missing = not_measured(costs)
    if missing:
        blocks += [Text("Not measured:"), Bullets(tuple(missing))]
    return blocks


def caption(costs: CostTable) -> str:
    """What the figure shows."""
    own = own_size(costs)
    mark = f"; dashed line: the study's own size, {about_text(own)}" if own is not None else ""
    return (
        f"Median time of a training step and peak memory over {costs.label}, both axes "
        f"logarithmic. Ring: where an arm and {costs.baseline} cross, interpolated{mark}."
    )


def _setting(costs: CostTable) -> str:
    section, origin = costs.section, costs.environment
    configs = ", ".join(section["configs"]) or "those of the study"
    changed = "".join(f", {key}={value}" for key, value in section["overrides"].items())
    batches = sorted({row.cost.batch for row in costs.rows if row.cost})
    torch = origin.get("packages", {}).get("torch", "?")
    return (
        f"The whole model: a training step (forward, backward, optimiser) and a forward pass of a "
        f"batch of {', '.join(map(str, batches))}; {section['key']} grows, configs: "
        f"{configs}{changed}. Medians over rounds in which the arms take turns; peak memory that "
        f"training steps add in a process of its own. Measured on {origin.get('device', '?')}, "
        f"torch {torch}, commit {origin.get('commit') or 'unknown'}."
    )


def _crossovers(costs: CostTable, others: list[str]) -> Table:
    rows = [("", [arm, *(crossing_cell(costs, arm, part) for part in PARTS)]) for arm in others]
    return table(
        ("<crossover with " + costs.baseline, *(f"<{name}" for name in PARTS.values())),
        rows,
        "Between the last size at which an arm is on the other side and the first from which it "
        "stays on this one, and where the ratio passes 1 between them; costs within "
        f"{100 * LEVEL:g} % count as equal.",
    )


def _every_number(costs: CostTable) -> Table:
    rows = [
        (f"{size:,} {costs.label}", _cells(row, _of(costs.at(size), costs.baseline)))
        for size in costs.sizes
        for row in costs.at(size)
    ]
    return table(
        ("<arm", "step, ms", "IQR", "ratio", "forward, ms", "ratio", "peak, MiB", "ratio")
        + ("GFLOP forward", "rounds", "<note"),
        rows,
        f"Ratio: to {costs.baseline} at the same size. FLOPs of one sample, by closed forms. "
        "Rounds: warm-up + those that count.",
    )


def _of(rows: list[SizedCost], arm: str) -> Any:
    return next((row.cost for row in rows if row.arm == arm), None)


def _cells(row: SizedCost, base: Any) -> list[str]:
    cost = row.cost
    if cost is None:
        return [row.arm, *[NONE] * 9, row.reason.partition(":")[0]]
    cells = [row.arm, number(cost.step_ms), number(cost.step_ms_iqr)]
    cells += [_ratio(cost, base, "step_ms"), number(cost.forward_ms)]
    cells += [_ratio(cost, base, "forward_ms"), number(cost.peak_mib)]
    cells += [_ratio(cost, base, "peak_mib"), f"{cost.forward_flops / 1e9:.3g}"]
    notes = [cost.note, "by itself, not interleaved" if row.alone else ""]
    return [*cells, f"{row.warmup} + {row.repeats}", ", ".join(filter(None, notes))]


def _ratio(cost: Any, base: Any, part: str) -> str:
    if base is None or not getattr(base, part):
        return NONE
    return f"{getattr(cost, part) / getattr(base, part):.3g}"


def number(value: float) -> str:
    """Three digits, no exponent: ``0.123``, ``12.3``, ``1,234``."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
