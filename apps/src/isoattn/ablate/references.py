"""References: other networks, shown beside the arms and never judged.

A reference has the budget of an arm (grid, seeds, extension, one test score a seed) and is paired
with the baseline by its batches. Nothing that is judged reads its cells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from isoattn.ablate.records import CellResult, StudyResults
from isoattn.ablate.selection import (
    Choice,
    Pairing,
    Runs,
    chosen_rates,
    confirmed,
    match,
    other_batches,
    scorer,
)
from isoattn.ablate.statistics import PairedT, paired_t
from isoattn.ablate.study import Study, level_name


@dataclass(frozen=True)
class Beside:
    """A reference beside the baseline at one level set.

    Args:
        name: of the reference.
        level: the level set of the arms that it stands beside.
        run_at: the level set in which it was run; another one where a factor means nothing to it.
        choice: its learning rate and how it was found.
        runs: seed -> its confirmation run.
        values: seed -> counted test metric.
        pairing: its runs and the baseline's.
        own: mean and SD of ``values``, None without one.
        difference: reference minus baseline, None without a pair.
    """

    name: str
    level: str
    run_at: str
    choice: Choice
    runs: Mapping[int, CellResult]
    values: dict[int, float]
    pairing: Pairing
    own: PairedT | None
    difference: PairedT | None


def references_beside(study: Study, results: StudyResults, runs: Runs) -> list[Beside]:
    """Every reference at every level set of the arms, in the order of the study.

    Args:
        study: the study.
        results: its cells.
        runs: the confirmation runs of the arms.
    """
    choices, confirmations = {}, {}
    for name in study.references:
        own, cells = study.of_reference(name), cells_of(results, name)
        rates = results.reference_rates.get(name, study.search.values)
        choices.update(found := chosen_rates(own, cells, rates))
        confirmations.update(confirmed(own, cells, found))
    return [
        _beside(study, results, runs, name, levels, choices, confirmations)
        for levels in study.level_sets
        for name in study.references
    ]


def cells_of(results: StudyResults, name: str) -> list[CellResult]:
    """The cells of one reference."""
    return [cell for cell in results.references if cell.arm == name]


def _beside(
    study: Study,
    results: StudyResults,
    runs: Runs,
    name: str,
    levels: dict[str, str],
    choices: Mapping[tuple[str, str], Choice],
    confirmations: Runs,
) -> Beside:
    level, run_at = level_name(levels), level_name(study.beside(name, levels))
    mine = confirmations.get((name, run_at), {})
    score = scorer(study, [*results.cells, *cells_of(results, name)])
    values = {seed: v for seed in sorted(mine) if (v := score(mine[seed])) is not None}
    pairing = match(study, mine, runs.get((study.baseline, level), {}), score, other_batches)
    differences = list(pairing.differences.values())
    return Beside(
        name,
        level,
        run_at,
        choices[name, run_at],
        mine,
        values,
        pairing,
        paired_t(list(values.values())) if values else None,
        paired_t(differences) if differences else None,
    )
