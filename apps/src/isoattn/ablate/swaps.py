"""Test-time swaps (P10): weights trained with one attention, evaluated with another."""

from __future__ import annotations

import math
from dataclasses import dataclass

from isoattn.ablate.records import CellResult
from isoattn.ablate.selection import Runs
from isoattn.ablate.statistics import PairedT, paired_t
from isoattn.ablate.study import Study, level_name


@dataclass(frozen=True)
class Swap:
    """The trained runs of one arm with the attention of another in place.

    Args:
        trained: the arm that was trained.
        evaluated: the arm whose attention took its place, weights kept.
        level: level name.
        own: seed -> test metric as trained.
        swapped: seed -> test metric with the other attention.
        unscored: seeds of finished runs without a finite score.
        t: of swapped minus own over the seeds that have both, None without one.
        tuned: the same, both trained on for as long: own is with its own attention. None where the
            study does not train on, or no run has both scores.
    """

    trained: str
    evaluated: str
    level: str
    own: dict[int, float]
    swapped: dict[int, float]
    unscored: tuple[int, ...]
    t: PairedT | None
    tuned: Swap | None = None


def swaps(study: Study, runs: Runs) -> list[Swap]:
    """Every trained arm with every swapped attention but its own, per level set."""
    return [
        _swap(study, runs, trained, evaluated, level)
        for level in map(level_name, study.level_sets)
        for trained in study.arms
        for evaluated in study.swaps
        if evaluated != trained
    ]


def _swap(study: Study, runs: Runs, trained: str, evaluated: str, level: str) -> Swap:
    own, swapped, unscored = {}, {}, []
    for seed, cell in runs.get((trained, level), {}).items():
        if cell.status != "done":
            continue  # a diverged run has no weights to put an attention into
        pair = _scores(cell, study.metric.name, evaluated)
        if pair is None:
            unscored.append(seed)
        else:
            own[seed], swapped[seed] = pair
    differences = [swapped[seed] - own[seed] for seed in own]
    t = paired_t(differences) if differences else None
    tuned = _tuned(study, runs, trained, evaluated, level) if study.fine_tune else None
    return Swap(trained, evaluated, level, own, swapped, tuple(unscored), t, tuned)


def _tuned(study: Study, runs: Runs, trained: str, evaluated: str, level: str) -> Swap | None:
    own, swapped, unscored = {}, {}, []
    for seed, cell in runs.get((trained, level), {}).items():
        if cell.status != "done":
            continue
        pair = (cell.tuned_with(study.metric.name, arm) for arm in (trained, evaluated))
        before, after = pair
        if before is None or after is None or not math.isfinite(before + after):
            unscored.append(seed)
        else:
            own[seed], swapped[seed] = before, after
    if not own:
        return None
    t = paired_t([swapped[seed] - own[seed] for seed in own])
    return Swap(trained, evaluated, level, own, swapped, tuple(unscored), t)


def _scores(cell: CellResult, metric: str, evaluated: str) -> tuple[float, float] | None:
    own, other = cell.metrics.get(f"test/{metric}"), cell.scored_with(metric, evaluated)
    if own is None or other is None or not math.isfinite(own + other):
        return None
    return own, other
