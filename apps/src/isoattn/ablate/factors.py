"""Factors: how a difference to the baseline changes from one level of a switch to another."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

from isoattn.ablate import statistics
from isoattn.ablate.judged import Interaction
from isoattn.ablate.selection import ArmLevel, Pairing
from isoattn.ablate.study import Study, level_name


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
