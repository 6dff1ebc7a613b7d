"""Which runs count: each arm's own learning rate (P5), and the pairs that are judged (P3, P6)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from isoattn.ablate.records import CellResult
from isoattn.ablate.study import Metric, Study, level_name

Side = Literal["low", "high"]
ArmLevel = tuple[str, str]
"""(arm, level name); the level name is ``all`` where a study has no factor."""
Runs = Mapping[ArmLevel, Mapping[int, CellResult]]
"""(arm, level name) -> seed -> confirmation run."""
Score = Callable[[CellResult], float | None]
"""The test metric a run counts with, None where it has none."""


@dataclass(frozen=True)
class RatePoint:
    """The search runs of one arm and level set at one rate.

    Args:
        rate: the learning rate.
        mean: mean validation metric over the seeds, diverged runs counted as the worst result.
        values: seed -> validation metric as it was counted.
        diverged: seeds whose run diverged.
        failed: seeds whose run crashed: no value, not part of the mean.
    """

    rate: float
    mean: float
    values: dict[int, float]
    diverged: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()


@dataclass(frozen=True)
class Choice:
    """The learning rate of one arm and level set, and how it was found.

    Args:
        arm: name of the arm.
        level: level name.
        rate: the chosen rate.
        score: mean validation metric there; None where a single rate skipped the search.
        curve: every rate tried, ascending.
        edge: the side of the grid at which the best rate lies, else None.
        flat: all rates are within the margin of each other: the rate does not matter here.
        window: smallest and largest rate of the unbroken run of rates around the chosen one whose
            mean is within the margin of the best.
        shared_rate: the rate that is best on average over the arms of this level set.
        shared_score: this arm's mean validation metric at the shared rate.
    """

    arm: str
    level: str
    rate: float
    score: float | None
    curve: tuple[RatePoint, ...]
    edge: Side | None
    flat: bool
    window: tuple[float, float]
    shared_rate: float
    shared_score: float | None

    @property
    def window_decades(self) -> float:
        """Width of the window in decades of the learning rate; 0 = only the chosen rate."""
        return math.log10(self.window[1] / self.window[0])


@dataclass(frozen=True)
class Pairing:
    """The runs of an arm and of the baseline, matched by seed.

    Args:
        variant: seed -> counted test metric of the arm.
        baseline: seed -> that of the baseline.
        void: seed -> why the two runs are no pair (P3).
        missing: planned seeds that have no run on one side yet.
        diverged: seeds at which one of the two diverged and counts as the worst result.
        both_diverged: of them, seeds at which both did: no difference, and no information.
    """

    variant: dict[int, float]
    baseline: dict[int, float]
    void: dict[int, str]
    missing: tuple[int, ...]
    diverged: tuple[int, ...]
    both_diverged: tuple[int, ...] = ()

    @property
    def differences(self) -> dict[int, float]:
        """Seed -> variant minus baseline, in the units of the metric."""
        return {seed: self.variant[seed] - self.baseline[seed] for seed in self.variant}


def chosen_rates(
    study: Study, cells: Iterable[CellResult], rates: Sequence[float]
) -> dict[ArmLevel, Choice]:
    """The learning rate of every (arm, level name), from the search cells.

    The best mean validation metric over the search seeds wins, ties go to the smaller rate. Rates
    that lack a seed (crashed or not yet run) are passed over as long as a complete one exists.
    A study with one rate has nothing to search: every arm gets that rate.

    Args:
        study: the study.
        cells: any cells; those of stage ``search`` at one of ``rates`` count.
        rates: the grid as run, extensions included.

    Returns:
        A choice per arm and level set. An arm without a single usable search run gets the shared
        rate and no score, so that the study can go on; its failed cells block its verdict.
    """
    grid = sorted(set(rates)) or sorted(set(study.search.values))
    curves = _curves(study, cells, grid)
    if len(grid) == 1:
        return {key: _only(key, grid[0], curve) for key, curve in curves.items()}
    chosen: dict[ArmLevel, Choice] = {}
    for level in map(level_name, study.level_sets):
        usable = {arm: c for arm in study.arms if _candidates(c := curves[arm, level])}
        shared = _shared_rate(study, usable, grid)
        for key in ((arm, level) for arm in study.arms):
            if key[0] in usable:
                chosen[key] = _choose(study.metric, key, curves[key], shared)
            else:
                chosen[key] = _only(key, shared, curves[key])
    return chosen


def edges(study: Study, cells: Iterable[CellResult], rates: Sequence[float]) -> set[Side]:
    """The sides on which the grid must grow, for all arms, because some arm's best lies there.

    An arm whose curve is flat within the margin asks for nothing: no rate is better than another.
    The caller bounds the number of extensions (``study.search.extend``).
    """
    choices = chosen_rates(study, cells, rates).values()
    return {choice.edge for choice in choices if choice.edge is not None}


def next_rates(rates: Sequence[float], side: Side | Collection[Side]) -> tuple[float, ...]:
    """The rates to add, one per side, ascending; the log spacing of the grid goes on.

    The pattern of two steps is repeated, so that 1, 3, 10 continues with 30 (and 0.3) as people
    write it, and an evenly spaced grid stays even. Rounded to three significant digits.

    Raises:
        ValueError: fewer than two different rates have no spacing.
    """
    grid = sorted(set(rates))
    if len(grid) < 2:
        raise ValueError(f"A grid of {list(rates)} has no spacing to continue; give two rates")
    sides = {side} if isinstance(side, str) else set(side)
    low_step, high_step = (
        (grid[1] / grid[0], grid[-1] / grid[-2])
        if len(grid) == 2
        else (grid[2] / grid[1], grid[-2] / grid[-3])
    )
    added = []
    if "low" in sides:
        added.append(grid[0] / low_step)
    if "high" in sides:
        added.append(grid[-1] * high_step)
    return tuple(float(f"{rate:.3g}") for rate in added)


def confirmed(
    study: Study, cells: Iterable[CellResult], choices: Mapping[ArmLevel, Choice]
) -> dict[ArmLevel, dict[int, CellResult]]:
    """(arm, level) -> seed -> confirmation run at the arm's chosen rate, on a planned seed."""
    runs: dict[ArmLevel, dict[int, CellResult]] = {}
    for cell in sorted(cells, key=lambda c: (c.seed, c.cell)):
        key = cell.arm, level_name(cell.levels)
        choice = choices.get(key)
        if cell.stage != "confirm" or cell.seed not in study.confirm_seeds:
            continue
        if choice is None or cell.learning_rate == choice.rate:
            runs.setdefault(key, {})[cell.seed] = cell
    return runs


def scorer(study: Study, cells: Iterable[CellResult]) -> Score:
    """The test metric a confirmation run counts with: the worst result where it diverged."""
    name = f"test/{study.metric.name}"
    finished = [
        cell.metrics[name]
        for cell in cells
        if cell.stage == "confirm" and cell.status == "done" and name in cell.metrics
    ]
    worst = worst_result(study.metric, finished)
    return lambda cell: counted(cell, name, worst)


def pair_up(study: Study, runs: Runs, score: Score, arm: str, level: str) -> Pairing:
    """Match an arm's runs with the baseline's by seed and void what is not a pair."""
    return match(
        study, runs.get((arm, level), {}), runs.get((study.baseline, level), {}), score, void_reason
    )


def match(
    study: Study,
    variants: Mapping[int, CellResult],
    baselines: Mapping[int, CellResult],
    score: Score,
    void: Callable[[CellResult, CellResult], str | None],
) -> Pairing:
    """Match two sets of runs by seed; ``void`` says why two runs are no pair."""
    name = f"test/{study.metric.name}"
    pairing = Pairing({}, {}, {}, (), ())
    missing, diverged, both = [], [], []
    for seed in study.confirm_seeds:
        if seed not in variants or seed not in baselines:
            missing.append(seed)
            continue
        pair = variants[seed], baselines[seed]
        variant, baseline = map(score, pair)
        if variant is None or baseline is None:
            continue  # Failed: listed elsewhere, blocks the verdict.
        if reason := void(*pair):
            pairing.void[seed] = reason
            continue
        pairing.variant[seed], pairing.baseline[seed] = variant, baseline
        if any(is_diverged(cell, name) for cell in pair):
            diverged.append(seed)
        if all(is_diverged(cell, name) for cell in pair):
            both.append(seed)
    return replace(
        pairing,
        missing=tuple(missing),
        diverged=tuple(diverged),
        both_diverged=tuple(both),
    )


def void_reason(variant: CellResult, baseline: CellResult) -> str | None:
    """Why two runs are no pair: other initial weights, other batches, or no record of them (P3).

    A diverged run is compared as far as it came: to void it would be a way to drop it.
    """
    cut_short = _cut_short(variant, baseline)
    if variant.init_hash != baseline.init_hash and not (
        cut_short and not (variant.init_hash and baseline.init_hash)
    ):
        return "initial weights differ"
    if not cut_short and not (variant.init_hash and variant.batch_hashes):
        return "no hashes of initial weights and batches were recorded"
    return other_batches(variant, baseline)


def other_batches(variant: CellResult, baseline: CellResult) -> str | None:
    """Why two runs did not see the same batches: all that two networks can have in common."""
    one, two = variant.batch_hashes, baseline.batch_hashes
    for epoch, (a, b) in enumerate(zip(one, two, strict=False)):
        if a != b:
            return f"batches differ from epoch {epoch} on"
    if _cut_short(variant, baseline):
        return None
    if not one:
        return "no hashes of batches were recorded"
    if len(one) != len(two):
        return f"{len(one)} and {len(two)} epochs of batches"
    return None


def _cut_short(variant: CellResult, baseline: CellResult) -> bool:
    return "diverged" in (variant.status, baseline.status)


def worst_result(metric: Metric, finished: Iterable[float]) -> float:
    """What a diverged run counts as: ``metric.worst``, or a finished run that is worse still.

    The second half guards against a study file whose ``worst`` is too kind (a loss above it was
    seen): a divergence is never better than a run that finished.
    """
    candidates = [metric.worst, *(value for value in finished if math.isfinite(value))]
    return min(candidates) if metric.mode == "max" else max(candidates)


def is_diverged(cell: CellResult, name: str) -> bool:
    """Stopped by a non-finite value, or finished with one in the metric that counts."""
    value = cell.metrics.get(name, 0.0)
    return cell.status == "diverged" or (cell.status == "done" and not math.isfinite(value))


def counted(cell: CellResult, name: str, worst: float) -> float | None:
    """The value a cell counts with: ``worst`` where it diverged, None where there is no result."""
    if is_diverged(cell, name):
        return worst
    return cell.metrics.get(name) if cell.status == "done" else None


def _curves(
    study: Study, cells: Iterable[CellResult], grid: Sequence[float]
) -> dict[ArmLevel, tuple[RatePoint, ...]]:
    name = f"val/{study.metric.name}"
    groups: dict[tuple[str, str, float], list[CellResult]] = {}
    finished = []
    for cell in cells:
        if cell.stage == "search" and cell.learning_rate in grid:
            key = cell.arm, level_name(cell.levels), cell.learning_rate
            groups.setdefault(key, []).append(cell)
            if cell.status == "done" and name in cell.metrics:
                finished.append(cell.metrics[name])
    worst = worst_result(study.metric, finished)
    return {
        (arm, level): tuple(
            point
            for rate in grid
            if (point := _point(rate, groups.get((arm, level, rate), []), name, worst)) is not None
        )
        for level in map(level_name, study.level_sets)
        for arm in study.arms
    }


def _point(rate: float, cells: list[CellResult], name: str, worst: float) -> RatePoint | None:
    ordered = sorted(cells, key=lambda c: (c.seed, c.cell))
    counts = {cell.seed: counted(cell, name, worst) for cell in ordered}
    values = {seed: value for seed, value in counts.items() if value is not None}
    failed = tuple(seed for seed, value in counts.items() if value is None)
    diverged = tuple(cell.seed for cell in ordered if is_diverged(cell, name))
    if not values and not failed:
        return None
    mean = math.fsum(values.values()) / len(values) if values else math.nan
    return RatePoint(rate, mean, values, diverged, failed)


def _candidates(curve: Iterable[RatePoint]) -> list[RatePoint]:
    points = [point for point in curve if point.values]
    most = max((len(point.values) for point in points), default=0)
    return [point for point in points if len(point.values) == most]


def _best(metric: Metric, curve: Iterable[RatePoint]) -> RatePoint:
    sign = 1.0 if metric.mode == "max" else -1.0
    return max(_candidates(curve), key=lambda p: (sign * p.mean, -p.rate))


def _shared_rate(
    study: Study, curves: Mapping[str, Sequence[RatePoint]], grid: Sequence[float]
) -> float:
    """Best on average over the arms in question; controls only count if there is nothing else.

    The middle of the grid where no search run has finished yet.
    """
    judged = [arm for arm in curves if arm not in study.controls] or list(curves)
    means: dict[float, list[float]] = {}
    for arm in judged:
        for point in _candidates(curves[arm]):
            means.setdefault(point.rate, []).append(point.mean)
    if not means:
        return grid[(len(grid) - 1) // 2]
    everywhere = max(len(values) for values in means.values())
    average = {r: math.fsum(v) / len(v) for r, v in means.items() if len(v) == everywhere}
    sign = 1.0 if study.metric.mode == "max" else -1.0
    return max(average, key=lambda rate: (sign * average[rate], -rate))


def _choose(metric: Metric, key: ArmLevel, curve: tuple[RatePoint, ...], shared: float) -> Choice:
    points = _candidates(curve)
    best = _best(metric, points)
    close = [abs(point.mean - best.mean) <= metric.margin * (1 + 1e-9) for point in points]
    at = points.index(best)
    low = high = at
    while low > 0 and close[low - 1]:
        low -= 1
    while high < len(points) - 1 and close[high + 1]:
        high += 1
    flat = all(close)
    edge: Side | None = None
    if len(points) > 1 and not flat:
        edge = "low" if at == 0 else "high" if at == len(points) - 1 else None
        # A tie with a rate inside the grid is no sign that the optimum lies outside.
        if any(point.mean == best.mean for point in points[1:-1]):
            edge = None
    there = {point.rate: point.mean for point in curve if point.values}
    window = points[low].rate, points[high].rate
    return Choice(*key, best.rate, best.mean, curve, edge, flat, window, shared, there.get(shared))


def _only(key: ArmLevel, rate: float, curve: tuple[RatePoint, ...]) -> Choice:
    """The rate of an arm that has no curve to choose from."""
    score = curve[0].mean if len(curve) == 1 and curve[0].values else None
    return Choice(*key, rate, score, curve, None, False, (rate, rate), rate, score)
