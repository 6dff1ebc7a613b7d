"""What two resolved configs differ in: the proof that arms differ in the attention alone (P1)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

ATTENTION = "model.attention"


@dataclass(frozen=True)
class Difference:
    """What an arm changes against another, in one level set.

    Args:
        baseline: name of the other one, as a rule the study's baseline.
        arm: name of the arm, or of a reference.
        level: level name.
        attention: (key, baseline's value, arm's value) below ``model.attention``.
        other: differences anywhere else; must be empty between arms.
        parameters: trainable parameters of the baseline and of the arm.
        unequal_weights: weights outside the attention whose initial values differ.
    """

    baseline: str
    arm: str
    level: str
    attention: list[tuple[str, Any, Any]]
    other: list[tuple[str, Any, Any]]
    parameters: tuple[int, int]
    unequal_weights: list[str]


def config_differences(old: Any, new: Any, prefix: str = "") -> list[tuple[str, Any, Any]]:
    """Leaves in which two nested configs differ: (dotted key, old, new)."""
    if isinstance(old, dict) and isinstance(new, dict):
        found = []
        for key in sorted(old.keys() | new.keys()):
            dotted = f"{prefix}.{key}" if prefix else key
            found += config_differences(old.get(key), new.get(key), dotted)
        return found
    # As text: 1 and 1.0 are equal, but as a limit one batch and all of them.
    same = json.dumps(old, default=str) == json.dumps(new, default=str)
    return [] if same else [(prefix, old, new)]


def of_attention(key: str) -> bool:
    """Whether an option belongs to the attention."""
    return key == ATTENTION or key.startswith(f"{ATTENTION}.")


def difference_text(differences: Iterable[Difference]) -> str:
    """The differences of arms as lines for the terminal and the report."""
    lines = []
    for d in differences:
        lines.append(f"{d.baseline} -> {d.arm} ({d.level})")
        lines += [f"  {key}: {_show(old)} -> {_show(new)}" for key, old, new in d.attention]
        lines += [f"  NOT ALLOWED {key}: {old} -> {new}" for key, old, new in d.other]
        flag = " FLAGGED: more than 2 %" if abs(_percent(d)) > 2 else ""
        lines.append(_parameters(d) + flag)
        lines.append(
            f"  initial weights outside the attention: {len(d.unequal_weights)} differ"
            if d.unequal_weights
            else "  initial weights outside the attention: bit-identical"
        )
    return "\n".join(lines)


def reference_text(differences: Iterable[Difference]) -> str:
    """What each reference changes; it may change anything, so nothing here is a fault."""
    lines = []
    for d in differences:
        lines.append(f"{d.baseline} -> {d.arm} ({d.level}): beside, not judged: another network")
        changes = [*d.other, *d.attention]
        lines += [f"  {key}: {_show(old)} -> {_show(new)}" for key, old, new in changes]
        lines.append(_parameters(d))
    return "\n".join(lines)


def _percent(d: Difference) -> float:
    return 100 * (d.parameters[1] - d.parameters[0]) / max(d.parameters[0], 1)


def _parameters(d: Difference) -> str:
    return f"  parameters {d.parameters[0]:,} -> {d.parameters[1]:,} ({_percent(d):+.2f} %)"


def _show(value: Any) -> str:
    text = "-" if value is None else str(value)
    return text.removeprefix("isoattn.core.")
