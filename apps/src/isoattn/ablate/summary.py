"""A study and its results as one plain structure: what the report and the terminal table print.

The structure is JSON-able and depends on neither the order of the cells nor on timing; all that is
measured in seconds lies under the keys ``costs`` and ``timing``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from isoattn.ablate.records import CellResult, StudyResults
from isoattn.ablate.report.costs import costs, parameters, timing
from isoattn.ablate.report.files import in_study_order
from isoattn.ablate.report.items import per_item
from isoattn.ablate.report.wording import (
    Scale,
    level_sentence,
    level_text,
    p_text,
    rate_sentence,
    rate_text,
    study_sentence,
)
from isoattn.ablate.rows import (
    cell_row,
    choice_row,
    compared_row,
    known_rate,
    reference_rows,
    stratum_rows,
    swap_rows,
    t_row,
    usage_row,
)
from isoattn.ablate.selection import (
    ArmLevel,
    Choice,
    Runs,
    chosen_rates,
    confirmed,
    is_diverged,
    scorer,
)
from isoattn.ablate.statistics import paired_t
from isoattn.ablate.study import ALL_LEVELS, Metric, Study, level_name
from isoattn.ablate.verdict import MINIMUM_PAIRS, Verdicts, judge

Data = dict[str, Any]


def summarise(study: Study, results: StudyResults) -> Data:
    """Everything a report says, as plain data.

    Reads the prediction files of the cells where they exist.
    """
    cells = in_study_order(study, results.cells)
    choices = chosen_rates(study, cells, results.rates_tried or study.search.values)
    runs = confirmed(study, cells, choices)
    verdicts = judge(study, results, choices)
    levels = [level_name(levels) for levels in study.level_sets]
    by_level = {lv: [c for c in verdicts.comparisons if c.level == lv] for lv in levels}
    rows = _result_rows(study, results, choices, runs, verdicts)
    data: Data = plain(
        {
            "study": {**study.as_dict(), "hash": study.hash, "levels": levels},
            "status": _status(study, results, verdicts),
            "verdict": study_sentence(study, verdicts.comparisons),
            "level_verdicts": {lv: level_sentence(study, by_level[lv]) for lv in levels},
            "rates": rate_sentence(study),
            "results": rows,
            "references": reference_rows(study, results, runs),
            "search": [choice_row(choice) for choice in choices.values()],
            "curves": _curves(study, cells, choices, runs),
            "usage": [usage_row(usage) for usage in verdicts.usages],
            "swaps": swap_rows(study, runs),
            "strata": stratum_rows(study, runs),
            "gauges": [
                {"arm": g.arm, "level": g.level, "without": g.without, **vars(g.t)}
                for g in verdicts.gauges
            ],
            "interactions": [
                {"arm": i.arm, "factor": i.factor, "from": i.start, "to": i.to, **vars(i.t)}
                for i in verdicts.interactions
            ],
            "self_checks": [
                {
                    **{"level": s.level, "kind": s.kind, "arm": s.arm, "rejects": s.rejects},
                    **{"largest": s.largest, "t": t_row(s.t)},
                }
                for s in verdicts.self_checks
            ],
            "items": per_item(study, verdicts.comparisons, runs),
            "parameters": parameters(study, cells),
            "same_runs": Counter(
                cell.same_run.rpartition("/")[0] for cell in results.cells if cell.same_run
            ),
            "baselines": _baselines(study, results, rows),
            "deviations": list(results.deviations),
            "gate_failures": list(results.gate_failures),
            "troubles": _troubles(study, cells, choices, verdicts),
            "environment": dict(results.environment),
            "costs": costs(study, results, rows),
            "timing": timing(study, cells, runs),
        }
    )
    return data


def final_table(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    """The table of the terminal, a row per level set and arm; nothing in it is measured in time."""
    study = summary["study"]
    scale = scale_of(summary)
    table = []
    for row in summary["results"]:
        d = row["difference"] or {}
        table.append(
            {
                "levels": row["level"],
                "arm": row["arm"] + (" (baseline)" if row["arm"] == study["baseline"] else ""),
                "rate": rate_text(row["rate"]),
                "runs": str(row["n"]) + (f" ({k} diverged)" if (k := len(row["diverged"])) else ""),
                scale.unit: scale.value(row["mean"]),
                "SD": scale.value(row["sd"]),
                "difference": scale.signed(d.get("mean")),
                "95 % interval": scale.interval(d.get("low"), d.get("high")),
                "pairs": str(d["n"]) if d else "–",
                "p sign-flip": p_text(row["p_sign_flip"]),
                "p Holm": p_text(row["p_holm"]),
                "verdict": row["verdict"],
            }
        )
    return table


def reference_table(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    """What stands beside the table of the arms, a row per level set and reference."""
    scale = scale_of(summary)
    table = []
    for row in summary["references"]:
        d = row["difference"] or {}
        failed = f" ({len(row['failed'])} failed)" if row["failed"] else ""
        table.append(
            {
                "levels": row["level"],
                "reference": row["arm"],
                "rate": rate_text(row["rate"]),
                "runs": str(row["n"])
                + (f" ({k} diverged)" if (k := len(row["diverged"])) else "")
                + failed,
                scale.unit: scale.value(row["mean"]),
                "SD": scale.value(row["sd"]),
                "difference": scale.signed(d.get("mean")),
                "95 % interval": scale.interval(d.get("low"), d.get("high")),
                "pairs": str(d["n"]) if d else "–",
                "parameters": "–" if row["parameters"] is None else f"{row['parameters']:,}",
            }
        )
    return table


def timing_table(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    """Training seconds per level set and arm: what two runs of one study need not agree on."""
    return [
        {
            "levels": row["level"],
            "arm": row["arm"],
            "median seconds": f"{row['median_seconds']:.1f}",
            "total seconds": f"{row['total_seconds']:.1f}",
        }
        for row in summary["timing"]["arms"]
    ]


def scale_of(summary: Mapping[str, Any]) -> Scale:
    """The number format of a summary's metric."""
    return Scale.of(Metric(**summary["study"]["metric"]))


def _status(study: Study, results: StudyResults, verdicts: Verdicts) -> Data:
    cells = [*results.cells, *results.references]
    done = [cell for cell in cells if cell.status in ("done", "diverged")]
    planned = len(cells) + results.unfinished
    warnings = []
    if not study.claim:
        warnings.append(f"{study.preset}: no claim")
    if results.unfinished:
        warnings.append(f"unfinished: {len(cells)} of {planned} cells")
    seeds = len(study.confirm_seeds)
    if seeds < MINIMUM_PAIRS:
        warnings.append(f"{seeds} confirmation seed{'s' if seeds > 1 else ''}: exploratory")
    if results.gate_failures:
        warnings.append("the conformance gate failed: verdicts are blocked")
    alarms = [check.level for check in verdicts.self_checks if check.rejects]
    if alarms:
        warnings.append(
            f"A/A alarm ({', '.join(map(level_text, alarms))}): the baseline differs from itself, "
            "so no difference here can be trusted"
        )
    return {
        "finished": len(done),
        "present": len(cells),
        "planned": planned,
        "unfinished": results.unfinished,
        "registered": not results.deviations,
        "warnings": warnings,
    }


def _result_rows(
    study: Study,
    results: StudyResults,
    choices: Mapping[ArmLevel, Choice],
    runs: Runs,
    verdicts: Verdicts,
) -> list[Data]:
    score = scorer(study, results.cells)
    name = f"test/{study.metric.name}"
    compared = {(row.arm, row.level): row for row in verdicts.comparisons}
    rows = []
    for levels in study.level_sets:
        for arm in study.arms:
            key = arm, level_name(levels)
            mine = runs.get(key, {})
            values = {s: v for s in sorted(mine) if (v := score(mine[s])) is not None}
            t = paired_t(list(values.values())) if values else None
            rows.append(
                {
                    "level": key[1],
                    "levels": levels,
                    "arm": arm,
                    "rate": known_rate(study, choices[key]),
                    "n": len(values),
                    "mean": t.mean if t else None,
                    "sd": t.sd if t else None,
                    "values": values,
                    "diverged": [s for s, cell in mine.items() if is_diverged(cell, name)],
                    **compared_row(compared.get(key)),
                }
            )
    return rows


def _curves(
    study: Study,
    cells: Sequence[CellResult],
    choices: Mapping[ArmLevel, Choice],
    runs: Runs,
) -> list[Data]:
    """Validation metric per epoch of the confirmation runs; of the search runs until they exist."""
    name = f"val/{study.metric.name}"
    found = []
    for level in map(level_name, study.level_sets):
        for arm in study.arms:
            mine, stage = dict(runs.get((arm, level), {})), "confirm"
            choice = choices.get((arm, level))
            if not mine and choice is not None:
                stage = "search"
                mine = {
                    cell.seed: cell
                    for cell in cells
                    if (cell.arm, level_name(cell.levels)) == (arm, level)
                    and (cell.stage, cell.learning_rate) == ("search", choice.rate)
                }
            series = {
                seed: [[row["epoch"], row[name]] for row in cell.curve if name in row]
                for seed, cell in mine.items()
            }
            series = {seed: points for seed, points in series.items() if points}
            if series:
                found.append({"arm": arm, "level": level, "stage": stage, "seeds": series})
    return found


def _baselines(study: Study, results: StudyResults, rows: Sequence[Data]) -> list[Data]:
    sign = 1 if study.metric.mode == "max" else -1
    found = []
    for level, scores in results.baselines.items():
        judged = [r for r in rows if level in (ALL_LEVELS, r["level"]) and r["mean"] is not None]
        for name, value in scores.items():
            above = [
                {"arm": row["arm"], "level": row["level"]}
                for row in judged
                if sign * (row["mean"] - value) > 0
            ]
            found.append({"name": name, "level": level, "value": value, "beaten_by": above})
    return found


def _troubles(
    study: Study,
    cells: Sequence[CellResult],
    choices: Mapping[ArmLevel, Choice],
    verdicts: Verdicts,
) -> Data:
    name = f"test/{study.metric.name}"

    return {
        "failed": [cell_row(cell) for cell in cells if cell.status == "failed"],
        "diverged": [cell_row(cell) for cell in cells if is_diverged(cell, name)],
        "other_rate": [
            cell_row(cell)
            for cell in cells
            if cell.stage == "confirm"
            and (choice := choices.get((cell.arm, level_name(cell.levels)))) is not None
            and cell.learning_rate != choice.rate
        ],
        "void": [
            {"arm": row.arm, "level": row.level, "seed": seed, "reason": reason}
            for row in verdicts.comparisons
            for seed, reason in row.pairing.void.items()
        ],
    }


def plain(value: Any) -> Any:
    """JSON-able copy: string keys, lists, None for what is not finite."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int, bool)):
        return value
    return str(value)
