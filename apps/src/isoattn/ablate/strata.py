"""Scores of single groups of test items, such as pairs of small and of large rotation."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from isoattn.ablate.records import CellResult
from isoattn.ablate.selection import Runs, void_reason
from isoattn.ablate.statistics import PairedT, paired_t
from isoattn.ablate.study import Study, level_name


@dataclass(frozen=True)
class Group:
    """The test items of one group of a stratum, under one arm.

    Args:
        stratum: what the items are told apart by.
        group: which of them.
        arm, level: name of the arm, level name.
        items: in the group; the mean over seeds, which may differ in their items.
        values: seed -> test metric over the group.
        t: of the differences to the baseline over the seeds that both have; None for the baseline
            and without a pair.
    """

    stratum: str
    group: str
    arm: str
    level: str
    items: float
    values: dict[int, float]
    t: PairedT | None


def by_stratum(study: Study, runs: Runs) -> list[Group]:
    """Every group of every stratum, per level set and arm, as the domain orders them.

    Diverged runs have no strata and are left out here: what they count as is said of the whole.
    """
    found = []
    for level in map(level_name, study.level_sets):
        mine = {arm: runs.get((arm, level), {}) for arm in study.arms}
        for stratum, group in _groups(cell for cells in mine.values() for cell in cells.values()):
            values = {
                arm: _values(cells.values(), study.metric.name, stratum, group)
                for arm, cells in mine.items()
            }
            for arm, (scores, items) in values.items():
                if not scores:
                    continue
                base, own = mine[study.baseline], mine[arm]
                differences = [
                    scores[seed] - values[study.baseline][0][seed]
                    for seed in study.confirm_seeds
                    if arm != study.baseline
                    and seed in scores
                    and seed in values[study.baseline][0]
                    and void_reason(own[seed], base[seed]) is None
                ]
                t = paired_t(differences) if differences else None
                mean = math.fsum(items) / len(items)
                found.append(Group(stratum, group, arm, level, mean, scores, t))
    return found


def _groups(cells: Iterable[CellResult]) -> list[tuple[str, str]]:
    """(stratum, group), each once, strata together."""
    groups: dict[str, dict[str, None]] = {}
    for cell in cells:
        for stratum, names in cell.strata.items():
            groups.setdefault(stratum, {}).update(dict.fromkeys(names))
    return [(stratum, group) for stratum, names in groups.items() for group in names]


def _values(
    cells: Iterable[CellResult], metric: str, stratum: str, group: str
) -> tuple[dict[int, float], list[float]]:
    """Seed -> score, and the numbers of items."""
    scores, items = {}, []
    for cell in cells:
        known = cell.strata.get(stratum, {}).get(group, {})
        if cell.status == "done" and metric in known:
            scores[cell.seed] = known[metric]
            items.append(known.get("items", math.nan))
    return scores, items
