"""Cost over size in words: a sentence an arm, and why something was not measured."""

from __future__ import annotations

from isoattn.ablate.cost_crossings import PARTS, Crossing, Part, crossing, own_size
from isoattn.ablate.cost_records import CostTable


def arm_sentence(table: CostTable, arm: str) -> str:
    """One arm against the baseline: where each part crosses, and by how much at the end."""
    clauses = [
        f"{name} {_clause(table, found)}"
        for part, name in PARTS.items()
        if (found := crossing(table, arm, part)) is not None
    ]
    if not clauses:
        return f"{arm}: at no size were both it and {table.baseline} measured."
    return f"{arm} against {table.baseline}: {'; '.join(clauses)}."


def crossing_cell(table: CostTable, arm: str, part: Part) -> str:
    """``cheaper from 500–1,000 (about 640)``, ``none up to 20,000 (dearer)``."""
    found = crossing(table, arm, part)
    if found is None:
        return "–"
    cross, side = found.crossover, found.side
    if cross is None or cross.between is None:
        return f"none up to {found.sizes[-1]:,} ({side})"
    low, high = cross.between
    about = "" if cross.tokens is None else f" (about {about_text(cross.tokens)})"
    return f"{side} from {low:,}–{high:,}{about}"


def _clause(table: CostTable, found: Crossing) -> str:
    last = f"{found.ratios[-1]:.2g} times at {found.sizes[-1]:,} {table.label}"
    cross = found.crossover
    if cross is None or cross.between is None:
        none = f"no crossover up to {found.sizes[-1]:,}"
        return f"{found.side} ({none}; {last})"
    low, high = cross.between
    about = []
    if cross.tokens is not None:
        about = [f"about {about_text(cross.tokens)}{_relative(table, cross.tokens)}"]
    inside = ", ".join([*about, last])
    return f"{found.side} from between {low:,} and {high:,} {table.label} on ({inside})"


def _relative(table: CostTable, size: float) -> str:
    own = own_size(table)
    return "" if own is None else f", {size / own:.2g} times the study's own {about_text(own)}"


def about_text(size: float) -> str:
    """An interpolated size without digits that nobody measured: ``640``, ``1,300``, ``2,708``."""
    if size == round(size):
        return f"{size:,.0f}"
    return f"{float(f'{size:.2g}'):,.0f}" if size >= 10 else f"{size:.2g}"


def not_measured(table: CostTable) -> list[str]:
    """A line for each arm and reason, with the sizes."""
    reasons: dict[tuple[str, str], list[int]] = {}
    for arm in table.shown:
        for row in table.of(arm):
            if row.cost is None:
                reasons.setdefault((arm, row.reason), []).append(row.size)
    return [
        f"{arm}, {', '.join(f'{size:,}' for size in sizes)} {table.label}: {reason}"
        for (arm, reason), sizes in reasons.items()
    ]
