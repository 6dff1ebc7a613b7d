"""Cost over size in words: a sentence an arm, and why something was not measured."""

from __future__ import annotations

from isoattn.ablate.cost_crossings import PARTS, Crossing, Part, crossing, own_size
from isoattn.ablate.cost_records import CostTable


def arm_sentence(table: CostTable, arm: str) -> str:
    """One arm against the baseline: how much of each part, and where each crosses."""
    found = {part: crossing(table, arm, part) for part in PARTS}
    clauses = [_clause(table, part, c) for part, c in found.items() if c is not None]
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


def _clause(table: CostTable, part: Part, found: Crossing) -> str:
    last = f"{found.sizes[-1]:,}"
    amount = f"{found.ratios[-1]:.2g} times the {PARTS[part]} at {last} {table.label}"
    cross = found.crossover
    if cross is None or cross.between is None:
        return f"{amount} (crossover: none up to {last})"
    low, high = cross.between
    place = f"{found.side} from between {low:,} and {high:,} on"
    if cross.tokens is None:
        return f"{amount} ({place})"
    return f"{amount} ({place}, about {about_text(cross.tokens)}{_relative(table, cross.tokens)})"


def _relative(table: CostTable, size: float) -> str:
    own = own_size(table)
    return "" if own is None else f", {size / own:.2g} times the study's own size"


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
