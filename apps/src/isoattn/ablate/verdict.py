"""From finished cells to verdicts: pairs, the attention-used gate, the rules (P3, P6, P7).

``docs/protocol.md`` states every rule in words; the functions here are those words.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from isoattn.ablate import statistics
from isoattn.ablate.records import CellResult, StudyResults
from isoattn.ablate.selection import (
    ArmLevel,
    Choice,
    Pairing,
    Runs,
    Score,
    confirmed,
    pair_up,
    scorer,
)
from isoattn.ablate.statistics import Equivalence, PairedT, SignFlip
from isoattn.ablate.study import Study, level_name

ALPHA = 0.05
MINIMUM_PAIRS = 5
NO_MIXING = ("Zero", "Identity")
"""Attentions that let no token see another: what the gauge subtracts."""

Role = Literal["arm", "control", "a/a"]
Word = Literal[
    "better",
    "worse",
    "equivalent",
    "inconclusive",
    "exploratory",
    "no claim",
    "attention unused",
    "unfinished",
    "blocked",
    "a/a passed",
    "a/a alarm",
]


@dataclass(frozen=True)
class Usage:
    """Whether the attention of a trained arm is used at all (P7).

    Args:
        state: ``used``, ``unused``, ``not judged``, or ``control`` where the question does not
            arise.
        reason: one line that says why.
        replaced_by: the attention put in its place, same weights.
        own: seed -> test metric as trained.
        replaced: seed -> test metric with the attention replaced.
        drop: what the replacement costs (positive = worse without the attention).
        spread: SD of ``own`` over the seeds.
    """

    arm: str
    level: str
    state: Literal["used", "unused", "not judged", "control"]
    reason: str
    replaced_by: str | None
    own: dict[int, float]
    replaced: dict[int, float]
    drop: PairedT | None
    spread: float


@dataclass(frozen=True)
class Comparison:
    """One arm against the baseline at one level set.

    Args:
        role: ``a/a`` for an arm that is the baseline under another name.
        pairing: what was compared.
        t: mean difference (arm minus baseline) and interval; None without a pair.
        sign_flip: exact test beside it.
        holm: Holm-adjusted p of ``t`` over the arms of the level set.
        equivalence: the two one-sided tests against the margin.
        equivalence_holm: their Holm-adjusted p.
        effect: standardised difference.
        fresh_seed: probability that the arm beats the baseline on one more seed.
        word: the verdict.
        reasons: what stands behind it or against it, one line each.
        usage: of the arm.
        baseline_usage: of the baseline.
    """

    arm: str
    level: str
    role: Role
    pairing: Pairing
    usage: Usage
    baseline_usage: Usage
    t: PairedT | None = None
    sign_flip: SignFlip | None = None
    equivalence: Equivalence | None = None
    effect: float = math.nan
    fresh_seed: float = math.nan
    holm: float = math.nan
    equivalence_holm: float = math.nan
    word: Word = "blocked"
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class SelfCheck:
    """The baseline against itself (A/A): the machinery must not find a difference.

    Args:
        kind: ``twin`` where an arm repeats the baseline, ``split`` where its runs were halved.
        t: of the differences, None with too few runs.
        largest: largest absolute difference; a twin of a deterministic run has 0.
        p: of the mean difference, Holm-adjusted over the level sets; nan where not judged.
    """

    level: str
    kind: Literal["twin", "split"]
    arm: str
    t: PairedT | None
    largest: float
    p: float

    @property
    def rejects(self) -> bool | None:
        """Whether a difference was found; None where it could not be judged."""
        return None if math.isnan(self.p) else self.p < ALPHA


@dataclass(frozen=True)
class Gauge:
    """What an arm scores above an arm that mixes nothing; positive = better."""

    arm: str
    level: str
    without: str
    t: PairedT


@dataclass(frozen=True)
class Interaction:
    """How the difference to the baseline changes from one level of a factor to another.

    ``t`` is over seeds, of (arm - baseline at ``to``) - (arm - baseline at ``start``), averaged
    over the levels of all other factors.
    """

    arm: str
    factor: str
    start: str
    to: str
    t: PairedT


@dataclass(frozen=True)
class Verdicts:
    """All that is judged in a study."""

    comparisons: tuple[Comparison, ...]
    usages: tuple[Usage, ...]
    self_checks: tuple[SelfCheck, ...]
    gauges: tuple[Gauge, ...]
    interactions: tuple[Interaction, ...]


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
        tuple(gauge for level in levels for gauge in _gauges(study, runs, score, level)),
        tuple(interactions(study, pairings)),
    )


def attention_used(study: Study, arm: str, level: str, runs: Mapping[int, CellResult]) -> Usage:
    """Judge whether replacing the attention at test time costs more than the seeds' spread.

    Used: the 95 % t interval of the drop lies above 0 *and* the mean drop exceeds the SD over seeds
    of the arm's own metric. One seed gives a number and no judgement.
    """
    name = f"test/{study.metric.name}"
    sign = 1.0 if study.metric.mode == "max" else -1.0
    done = {seed: cell for seed, cell in runs.items() if cell.status == "done"}
    both = {
        seed: (cell.metrics[name], cell.metrics[f"{name}_replaced"])
        for seed, cell in done.items()
        if math.isfinite(cell.metrics.get(name, math.nan))
        and math.isfinite(cell.metrics.get(f"{name}_replaced", math.nan))
    }
    own = {seed: pair[0] for seed, pair in both.items()}
    replaced = {seed: pair[1] for seed, pair in both.items()}
    names = sorted({cell.replaced_by for cell in done.values() if cell.replaced_by})
    usage = Usage(
        arm, level, "not judged", "", "/".join(names) or None, own, replaced, None, math.nan
    )
    if arm in study.controls:
        return replace(usage, state="control", reason="mixes nothing by construction, or a mean")
    if not both:
        return replace(usage, reason="no run was scored with its attention replaced")
    drop = statistics.paired_t([sign * (a - b) for a, b in both.values()])
    if drop.n == 1:
        return replace(usage, drop=drop, reason="one seed has no spread to compare with")
    spread = statistics.paired_t(list(own.values())).sd
    used = drop.low > 0 and drop.mean > spread
    reason = (
        "the drop is above 0 and beyond the seeds' spread"
        if used
        else "the drop is not beyond the seeds' spread"
        if drop.low > 0
        else "the interval of the drop includes 0"
    )
    state: Literal["used", "unused"] = "used" if used else "unused"
    return replace(usage, state=state, reason=reason, drop=drop, spread=spread)


def a_versus_a(study: Study, runs: Runs, score: Score, level: str) -> SelfCheck:
    """The A/A control: the arm that repeats the baseline if there is one, else a split of its runs.

    The split pairs the first half of the baseline's seeds with the second; its differences hold the
    full spread over seeds, so it can only show gross faults.
    """
    twin = next((arm for arm in study.arms if is_twin(study, arm)), None)
    if twin is not None:
        values = list(pair_up(study, runs, score, twin, level).differences.values())
    else:
        mine = runs.get((study.baseline, level), {})
        scores = [
            s
            for seed in study.confirm_seeds
            if seed in mine and (s := score(mine[seed])) is not None
        ]
        half = len(scores) // 2
        values = [a - b for a, b in zip(scores[:half], scores[half : 2 * half], strict=True)]
    t = statistics.paired_t(values) if len(values) > 1 else None
    return SelfCheck(
        level,
        "split" if twin is None else "twin",
        twin or study.baseline,
        t,
        max((abs(value) for value in values), default=math.nan),
        math.nan if t is None else t.p,
    )


def is_twin(study: Study, arm: str) -> bool:
    """Whether an arm is the baseline's attention under another name."""
    return arm != study.baseline and study.arms[arm] == study.arms[study.baseline]


def interactions(study: Study, pairings: Mapping[ArmLevel, Pairing]) -> list[Interaction]:
    """Differences of differences between the first level of each factor and each other one."""
    found = []
    for factor, arm in itertools.product(study.factors, study.arms):
        if arm == study.baseline:
            continue
        start, *others = study.factors[factor]
        for other in others:
            values = _contrast(study, pairings, arm, factor, start, other)
            if values:
                t = statistics.paired_t(values)
                found.append(Interaction(arm, factor, start, other, t))
    return found


def _contrast(
    study: Study,
    pairings: Mapping[ArmLevel, Pairing],
    arm: str,
    factor: str,
    start: str,
    to: str,
) -> list[float]:
    at = {
        level: [
            pairings[arm, level_name(levels)].differences
            for levels in study.level_sets
            if levels[factor] == level
        ]
        for level in (start, to)
    }
    everywhere = set(study.confirm_seeds).intersection(*at[start], *at[to])
    return [
        math.fsum(d[seed] for d in at[to]) / len(at[to])
        - math.fsum(d[seed] for d in at[start]) / len(at[start])
        for seed in study.confirm_seeds
        if seed in everywhere
    ]


def _gauges(study: Study, runs: Runs, score: Score, level: str) -> list[Gauge]:
    sign = 1.0 if study.metric.mode == "max" else -1.0
    leaf = {arm: str(spec["class_path"]).rsplit(".", 1)[-1] for arm, spec in study.arms.items()}
    without = [arm for arm in study.arms if leaf[arm] in NO_MIXING]
    found = []
    for none, arm in itertools.product(without, study.arms):
        if arm in without:
            continue
        pairing = pair_up(replace(study, baseline=none), runs, score, arm, level)
        if pairing.variant:
            values = [sign * d for d in pairing.differences.values()]
            found.append(Gauge(arm, level, none, statistics.paired_t(values)))
    return found


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


def _decide(
    study: Study, results: StudyResults, row: Comparison, check: SelfCheck
) -> tuple[Word, list[str]]:
    """The first rule that applies, in the order of ``docs/protocol.md``."""
    if blocks := _blocks(study, results, row):
        return "blocked", blocks
    if row.pairing.missing:
        seeds = ", ".join(map(str, row.pairing.missing))
        return "unfinished", [f"seeds not there yet: {seeds}"]
    if row.t is None:
        return "blocked", ["every pair is void"]
    if len(row.pairing.both_diverged) == row.t.n:
        return "blocked", ["every run of both arms diverged"]
    if not study.claim:
        return "no claim", [f"{study.preset}: no claim"]
    if row.t.n < MINIMUM_PAIRS:
        return "exploratory", [f"{row.t.n} pairs; a verdict needs {MINIMUM_PAIRS}"]
    if row.role == "a/a":
        return ("a/a alarm" if check.rejects else "a/a passed"), []
    if row.usage.state == row.baseline_usage.state == "unused":
        return "attention unused", ["neither arm uses its attention: no verdict on its kind"]
    return _weigh(study, row)


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
