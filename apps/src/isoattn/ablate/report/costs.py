"""Sizes, costs and times of the arms (P2, P8, P9), as plain rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Any

from isoattn.ablate.records import CellResult, StudyResults
from isoattn.ablate.selection import ArmLevel, Runs
from isoattn.ablate.study import Study, level_name

Data = dict[str, Any]
PARAMETER_FLAG = 2.0
"""Percent of parameters by which an arm may differ before it is flagged (P2)."""


def parameters(study: Study, cells: Sequence[CellResult]) -> list[Data]:
    """Sizes per level set and arm, against the baseline (P2)."""
    sizes: dict[ArmLevel, tuple[int, int]] = {}
    for cell in cells:
        if cell.parameters:
            key = cell.arm, level_name(cell.levels)
            sizes.setdefault(key, (cell.parameters, cell.attention_parameters))
    rows = []
    for level in map(level_name, study.level_sets):
        base = sizes.get((study.baseline, level))
        for arm in study.arms:
            if (size := sizes.get((arm, level))) is None:
                continue
            percent = None if base is None else 100 * (size[0] - base[0]) / base[0]
            rows.append(
                {
                    **{"arm": arm, "level": level, "parameters": size[0]},
                    "attention_parameters": size[1],
                    "percent": percent,
                    "flagged": percent is not None and abs(percent) > PARAMETER_FLAG,
                }
            )
    return rows


def costs(study: Study, results: StudyResults, rows: Sequence[Data]) -> list[Data]:
    """The cost table with the score beside it, and which arms another arm beats on both counts."""
    sign = 1 if study.metric.mode == "max" else -1
    score = {(row["arm"], row["level"]): row["mean"] for row in rows}
    order = {arm: i for i, arm in enumerate(study.arms)}
    levels = {level_name(lv): i for i, lv in enumerate(study.level_sets)}
    table = [
        {
            **vars(cost),
            "level": level_name(cost.levels),
            "score": score.get((cost.arm, level_name(cost.levels))),
        }
        for cost in results.costs
        if cost.arm not in study.references
    ]
    table.sort(key=lambda c: (levels.get(c["level"], 99), order.get(c["arm"], 99), c["note"]))
    for cost in table:
        cost["dominated_by"] = [
            other["arm"]
            for other in table
            if other["level"] == cost["level"]
            and other["arm"] != cost["arm"]
            and None not in (other["score"], cost["score"])
            and sign * (other["score"] - cost["score"]) > study.metric.margin
            and other["step_ms"] < cost["step_ms"]
        ]
    return table


def timing(study: Study, cells: Sequence[CellResult], runs: Runs) -> Data:
    """Training seconds per arm, and how far each came in the time of the quickest (P8)."""
    rows = []
    for level in map(level_name, study.level_sets):
        own = {arm: list(runs.get((arm, level), {}).values()) for arm in study.arms}
        done = {a: [c for c in cs if c.status == "done" and c.seconds > 0] for a, cs in own.items()}
        medians = {arm: median(c.seconds for c in cs) for arm, cs in done.items() if cs}
        for arm, seconds in medians.items():
            budget = min(medians.values())
            rows.append(
                {
                    **{"arm": arm, "level": level, "median_seconds": seconds},
                    "total_seconds": math.fsum(c.seconds for c in own[arm]),
                    "equal_time": _at_equal_time(study, done[arm], budget),
                }
            )
    return {"arms": rows, "total_seconds": math.fsum(cell.seconds for cell in cells)}


def _at_equal_time(study: Study, cells: Sequence[CellResult], budget: float) -> float | None:
    """Mean validation metric at the epoch reached when the quickest arm was done (P8)."""
    name = f"val/{study.metric.name}"
    reached = []
    for cell in cells:
        epochs = math.floor(len(cell.curve) * min(1.0, budget / cell.seconds) + 1e-9)
        values = [row[name] for row in cell.curve[:epochs] if name in row]
        if values:
            reached.append(values[-1])
    return math.fsum(reached) / len(reached) if reached else None
