"""From finished cells to verdicts: the rules, in the order in which they apply (P6).

``docs/protocol.md`` states every rule in words; the functions here are those words. What goes in
comes from :mod:`~isoattn.ablate.selection` (pairs) and :mod:`~isoattn.ablate.controls`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from isoattn.ablate import statistics
from isoattn.ablate.controls import a_versus_a, attention_used, gauges, is_twin
from isoattn.ablate.factors import interactions
from isoattn.ablate.judged import (
    ALPHA,
    Comparison,
    Gauge,
    Interaction,
    Role,
    SelfCheck,
    Usage,
    Verdicts,
    Word,
)
from isoattn.ablate.records import StudyResults
from isoattn.ablate.selection import ArmLevel, Choice, Pairing, confirmed, pair_up, scorer
from isoattn.ablate.study import Study, level_name

__all__ = [
    "ALPHA",
    "MINIMUM_PAIRS",
    "Comparison",
    "Gauge",
    "Interaction",
    "SelfCheck",
    "Usage",
    "Verdicts",
    "Word",
    "attention_used",
    "interactions",
    "is_twin",
    "judge",
]

MINIMUM_PAIRS = 5
"""With fewer a comparison is exploratory."""


def judge(study: Study, results: StudyResults, choices: Mapping[ArmLevel, Choice]) -> Verdicts:
    """Compare every arm with the baseline at every level set, by the rules of the protocol."""
    runs = confirmed(study, results.cells, choices)
    score = scorer(study, results.cells)
    levels = [level_name(levels) for levels in study.level_sets]
    usages = {
        (arm, level): attention_used(study, arm, level, runs.get((arm, level), {}))
        for level in levels
        for arm in study.arms
    }
    pairings = {
        (arm, level): pair_up(study, runs, score, arm, level)
        for level in levels
        for arm in study.arms
        if arm != study.baseline
    }
    checks = [a_versus_a(study, runs, score, level) for level in levels]
    adjusted = statistics.holm([check.p for check in checks])
    checks = [replace(check, p=p) for check, p in zip(checks, adjusted, strict=True)]
    comparisons: list[Comparison] = []
    for level, check in zip(levels, checks, strict=True):
        comparisons += _judge_level(study, results, level, pairings, usages, check)
    return Verdicts(
        tuple(comparisons),
        tuple(usages.values()),
        tuple(checks),
        tuple(gauge for level in levels for gauge in gauges(study, runs, score, level)),
        tuple(interactions(study, pairings)),
    )


def _judge_level(
    study: Study,
    results: StudyResults,
    level: str,
    pairings: Mapping[ArmLevel, Pairing],
    usages: Mapping[ArmLevel, Usage],
    check: SelfCheck,
) -> list[Comparison]:
    rows = [
        _measure(study, pairings[arm, level], usages[arm, level], usages[study.baseline, level])
        for arm in study.arms
        if arm != study.baseline
    ]
    family = [row for row in rows if row.role != "a/a"]
    adjusted = statistics.holm([row.t.p if row.t else math.nan for row in family])
    equal = statistics.holm([row.equivalence.p if row.equivalence else math.nan for row in family])
    by_arm = {row.arm: (p, q) for row, p, q in zip(family, adjusted, equal, strict=True)}
    judged = []
    for row in rows:
        p, q = by_arm.get(row.arm, (math.nan, math.nan))
        row = replace(row, holm=p, equivalence_holm=q)
        word, reasons = _decide(study, results, row, check)
        judged.append(replace(row, word=word, reasons=tuple(reasons)))
    return judged


def _measure(study: Study, pairing: Pairing, usage: Usage, baseline: Usage) -> Comparison:
    role: Role = "arm"
    if is_twin(study, usage.arm):
        role = "a/a"
    elif usage.arm in study.controls:
        role = "control"
    row = Comparison(usage.arm, usage.level, role, pairing, usage, baseline)
    values = list(pairing.differences.values())
    if not values:
        return row
    sign = 1.0 if study.metric.mode == "max" else -1.0
    return replace(
        row,
        t=statistics.paired_t(values),
        sign_flip=statistics.sign_flip_test(values),
        equivalence=statistics.tost(values, study.metric.margin, ALPHA),
        effect=statistics.standardised_difference(values),
        fresh_seed=statistics.fresh_seed_probability([sign * value for value in values]),
    )


def _pairs(count: int) -> str:
    return "pair" if count == 1 else "pairs"


def _decide(
    study: Study, results: StudyResults, row: Comparison, check: SelfCheck
) -> tuple[Word, list[str]]:
    """The first rule that applies, in the order of ``docs/protocol.md``."""
    if blocks := _blocks(study, results, row):
        return "blocked", blocks
    if row.pairing.missing:
        seeds = ", ".join(map(str, row.pairing.missing))
        word = "seed" if len(row.pairing.missing) == 1 else "seeds"
        return "unfinished", [f"{word} not there yet: {seeds}"]
    if row.t is None:
        return "blocked", ["every pair is void"]
    if len(row.pairing.both_diverged) == row.t.n:
        return "blocked", ["every run of both arms diverged"]
    if not study.claim:
        return "no claim", [f"{study.preset}: no claim"]
    if row.t.n < MINIMUM_PAIRS:
        return "exploratory", [f"{row.t.n} {_pairs(row.t.n)}; a verdict needs {MINIMUM_PAIRS}"]
    if row.role == "a/a":
        return ("a/a alarm" if check.rejects else "a/a passed"), []
    if limit := _at_a_limit(study, row):
        return limit
    if row.usage.state == row.baseline_usage.state == "unused":
        return "attention unused", ["neither arm uses its attention: no verdict on its kind"]
    return _weigh(study, row)


def _at_a_limit(study: Study, row: Comparison) -> tuple[Word, list[str]] | None:
    """Whether neither has learnt anything, or neither has room left: nothing to tell apart."""
    metric, sign = study.metric, 1.0 if study.metric.mode == "max" else -1.0
    both = [list(side.values()) for side in (row.pairing.variant, row.pairing.baseline)]
    means = " and ".join(f"{statistics.paired_t(values).mean:.4g}" for values in both)
    if metric.chance is not None:
        above = [statistics.paired_t([sign * (x - metric.chance) for x in side]) for side in both]
        if all(side.low <= 0 for side in above):
            return "at chance", [
                f"no interval lies above chance, {metric.chance:g}: {row.arm} and "
                f"{study.baseline} have {means}"
            ]
    if metric.ceiling is not None:
        below = [statistics.paired_t([sign * (metric.ceiling - x) for x in side]) for side in both]
        if all(side.mean < metric.margin for side in below):
            return "at the ceiling", [
                f"both are within the margin of the ceiling, {metric.ceiling:g}: {row.arm} and "
                f"{study.baseline} have {means}"
            ]
    return None


def _blocks(study: Study, results: StudyResults, row: Comparison) -> list[str]:
    reasons = []
    for line in results.gate_failures:
        about = line.partition(":")[0].strip()
        if about not in study.arms or about in (row.arm, study.baseline):
            reasons.append(f"conformance gate failed: {line}")
    name = f"test/{study.metric.name}"
    failed = [
        cell
        for cell in results.cells
        if cell.arm in (row.arm, study.baseline)
        and level_name(cell.levels) == row.level
        and (
            cell.status == "failed"
            or (cell.stage == "confirm" and cell.status == "done" and name not in cell.metrics)
        )
    ]
    if failed:
        count = {arm: sum(cell.arm == arm for cell in failed) for arm in (row.arm, study.baseline)}
        listed = ", ".join(f"{n} of {arm}" for arm, n in count.items() if n)
        reasons.append(f"failed cells: {listed}")
    return reasons


def _weigh(study: Study, row: Comparison) -> tuple[Word, list[str]]:
    assert row.t is not None and row.sign_flip is not None and row.equivalence is not None
    reasons = []
    for usage in (row.usage, row.baseline_usage):
        if usage.state == "unused":
            reasons.append(f"{usage.arm} does not use its attention")
        elif usage.state == "not judged":
            reasons.append(f"whether {usage.arm} uses its attention was not judged")
    if row.pairing.diverged:
        count = len(row.pairing.diverged)
        reasons.append(f"pairs with a diverged run, counted as the worst result: {count}")
    if row.sign_flip.smallest > ALPHA:
        reasons.append(
            f"with {row.t.n} pairs the sign-flip test cannot reach p < .05 (at least "
            f"{row.sign_flip.smallest:.4g}), so the t-test decides"
        )
    equal = row.equivalence_holm < ALPHA
    different = row.holm < ALPHA and row.sign_flip.p <= max(ALPHA, row.sign_flip.smallest)
    if equal and not row.pairing.diverged:
        if different:
            reasons.append("a difference is detectable, and smaller than the margin")
        return "equivalent", reasons
    if different:
        more = (row.t.mean > 0) == (study.metric.mode == "max")
        return ("better" if more else "worse"), reasons
    if row.t.p < ALPHA:
        reasons.append(
            "the interval excludes 0, but Holm over the arms or the sign-flip test does not agree"
        )
    return "inconclusive", reasons
