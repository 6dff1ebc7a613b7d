"""What is judged, measured or shown beside it, as the plain rows of a summary."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median, stdev
from typing import Any

from isoattn.ablate.records import ArmCost, CellResult, StudyResults
from isoattn.ablate.references import Beside, cells_of, references_beside
from isoattn.ablate.selection import Choice, Runs, is_diverged
from isoattn.ablate.statistics import PairedT
from isoattn.ablate.strata import by_stratum
from isoattn.ablate.study import Study, level_name
from isoattn.ablate.swaps import Swap, swaps
from isoattn.ablate.verdict import Comparison, Usage

Data = dict[str, Any]


def t_row(t: PairedT | None) -> Data | None:
    """Mean, SD and interval."""
    return None if t is None else dict(vars(t))


def compared_row(row: Comparison | None) -> Data:
    """The comparison of an arm; of the baseline, which is compared with nothing, empty."""
    if row is None:
        return {
            **dict.fromkeys(("difference", "p_sign_flip", "p_sign_flip_smallest", "p_holm")),
            **dict.fromkeys(("equivalence", "effect", "fresh_seed", "differences")),
            **{"role": "baseline", "verdict": "baseline", "reasons": [], "void": {}, "missing": []},
        }
    flip, equal = row.sign_flip, row.equivalence
    return {
        "role": row.role,
        "verdict": row.word,
        "reasons": list(row.reasons),
        "difference": t_row(row.t),
        "differences": row.pairing.differences,
        "p_sign_flip": flip.p if flip else None,
        "p_sign_flip_smallest": flip.smallest if flip else None,
        "p_holm": row.holm,
        "equivalence": None if equal is None else {**vars(equal), "p_holm": row.equivalence_holm},
        "effect": row.effect,
        "fresh_seed": row.fresh_seed,
        "void": row.pairing.void,
        "missing": list(row.pairing.missing),
    }


def choice_row(choice: Choice) -> Data:
    """A learning rate and the curve behind it."""
    return {
        "arm": choice.arm,
        "level": choice.level,
        "rate": choice.rate,
        "score": choice.score,
        "edge": choice.edge,
        "flat": choice.flat,
        "window": list(choice.window),
        "window_decades": choice.window_decades,
        "shared_rate": choice.shared_rate,
        "shared_score": choice.shared_score,
        "curve": [
            {
                **{"rate": p.rate, "mean": p.mean, "values": p.values},
                **{"diverged": list(p.diverged), "failed": list(p.failed)},
            }
            for p in choice.curve
        ],
    }


def known_rate(study: Study, choice: Choice) -> float | None:
    """The chosen rate, None while its search has no result."""
    return choice.rate if choice.score is not None or len(study.search.values) == 1 else None


def usage_row(usage: Usage) -> Data:
    """Whether an arm uses its attention."""
    return {
        **{"arm": usage.arm, "level": usage.level, "state": usage.state, "reason": usage.reason},
        "replaced_by": usage.replaced_by,
        "own": _mean(usage.own.values()),
        "replaced": _mean(usage.replaced.values()),
        "spread": usage.spread,
        "drop": t_row(usage.drop),
    }


def cell_row(cell: CellResult) -> Data:
    """Which run it is, and what went wrong in it."""
    return {
        **{"cell": cell.cell, "arm": cell.arm, "level": level_name(cell.levels)},
        **{"rate": cell.learning_rate, "seed": cell.seed, "stage": cell.stage},
        **{"attempts": cell.attempts, "error": cell.error},
    }


def reference_rows(study: Study, results: StudyResults, runs: Runs) -> list[Data]:
    """Every reference at every level set of the arms."""
    return [_reference(study, results, row) for row in references_beside(study, results, runs)]


def swap_rows(study: Study, runs: Runs) -> list[Data]:
    """Every trained arm evaluated with every swapped attention."""
    return [
        {**_swap(s), **({} if s.tuned is None else {"tuned": _swap(s.tuned)})}
        for s in swaps(study, runs)
    ]


def _swap(s: Swap) -> Data:
    return {
        **{"trained": s.trained, "evaluated": s.evaluated, "level": s.level},
        **{"own": _mean(s.own.values()), "swapped": _mean(s.swapped.values())},
        **{"unscored": list(s.unscored), "difference": t_row(s.t)},
    }


def stratum_rows(study: Study, runs: Runs) -> list[Data]:
    """Every group of test items under every arm."""
    return [
        {
            **{"stratum": g.stratum, "group": g.group, "arm": g.arm, "level": g.level},
            **{"items": g.items, "n": len(g.values), "values": g.values},
            **{"mean": _mean(g.values.values()), "sd": _sd(g.values.values())},
            "difference": t_row(g.t),
        }
        for g in by_stratum(study, runs)
    ]


def _reference(study: Study, results: StudyResults, row: Beside) -> Data:
    name = f"test/{study.metric.name}"
    own = row.own
    cells = [c for c in cells_of(results, row.name) if level_name(c.levels) == row.run_at]
    sizes = [cell.parameters for cell in cells if cell.parameters]
    return {
        **{"arm": row.name, "level": row.level, "run_at": row.run_at},
        "options": study.references[row.name],
        "rate": known_rate(study, row.choice),
        "search": choice_row(row.choice),
        "n": len(row.values),
        "mean": None if own is None else own.mean,
        "sd": None if own is None else own.sd,
        "values": row.values,
        "diverged": [seed for seed, cell in row.runs.items() if is_diverged(cell, name)],
        "difference": t_row(row.difference),
        "differences": row.pairing.differences,
        "void": row.pairing.void,
        "missing": list(row.pairing.missing),
        "failed": [cell_row(cell) for cell in cells if cell.status == "failed"],
        "parameters": sizes[0] if sizes else None,
        "costs": _cost(results.costs, row),
    }


def _cost(costs: Sequence[ArmCost], row: Beside) -> Data:
    """Cost where it was measured, and the median time of a confirmation run."""
    measured = [c for c in costs if (c.arm, level_name(c.levels)) == (row.name, row.run_at)]
    seconds = [c.seconds for c in row.runs.values() if c.status == "done" and c.seconds > 0]
    return {
        "forward_flops": measured[0].forward_flops if measured else None,
        "step_ms": measured[0].step_ms if measured else None,
        "peak_mib": measured[0].peak_mib if measured else None,
        "median_seconds": median(seconds) if seconds else None,
    }


def _sd(values: Iterable[float]) -> float | None:
    found = list(values)
    return stdev(found) if len(found) > 1 else None


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return math.fsum(found) / len(found) if found else None
