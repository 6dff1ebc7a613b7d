"""Reading a study folder back: every cell of the study, and what stands beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from isoattn.ablate.cells import Cell, read_record
from isoattn.ablate.domain import study_app
from isoattn.ablate.folder import read_part, registration
from isoattn.ablate.plan import Plan
from isoattn.ablate.records import TUNED, ArmCost, CellResult, StudyResults
from isoattn.ablate.study import Study


def load_results(study: Study, folder: Path, plan: Plan | None = None) -> StudyResults:
    """Read a study folder: every cell that belongs to the study, in the order of the plan.

    Raises:
        StudyError: a file of the study is damaged; a damaged cell counts as not finished.
    """
    registered = registration(folder) or {}
    rates = read_part(folder / "rates.json", as_rates) or tuple(study.search.values)
    plan = plan or Plan(study, study_app(study.app))
    found, unfinished = _cells(folder, plan, rates)
    reference_rates = read_part(folder / "reference_rates.json", as_reference_rates) or {}
    references = []
    for name in study.references:
        grid = reference_rates.setdefault(name, tuple(study.search.values))
        cells, missing = _cells(folder, plan, grid, name)
        references += cells
        unfinished += missing
    return StudyResults(
        cells=found,
        costs=read_part(folder / "costs.json", as_costs) or [],
        baselines=read_part(folder / "baselines.json", as_baselines) or {},
        environment={
            **registered.get("environment", {}),
            "registered": registered.get("registered"),
        },
        deviations=[
            f"{amendment['registered']}: {change}"
            for amendment in registered.get("amendments", [])
            for change in amendment["changes"]
        ],
        rates_tried=rates,
        unfinished=unfinished,
        gate_failures=read_part(folder / "gate.json", as_lines) or [],
        references=references,
        reference_rates={name: reference_rates[name] for name in study.references},
    )


def as_rates(data: Any) -> tuple[float, ...]:
    """``rates.json``."""
    if not isinstance(data, list) or not data:
        raise TypeError("not a list of rates")
    return tuple(float(rate) for rate in data)


def as_reference_rates(data: Any) -> dict[str, tuple[float, ...]]:
    """``reference_rates.json``."""
    return {name: as_rates(rates) for name, rates in data.items()}


def as_costs(data: Any) -> list[ArmCost]:
    """``costs.json``."""
    return [ArmCost(**cost) for cost in data]


def as_baselines(data: Any) -> dict[str, dict[str, float]]:
    """``baselines.json``."""
    return {
        level: {name: float(score) for name, score in scores.items()}
        for level, scores in data.items()
    }


def as_lines(data: Any) -> list[str]:
    """``gate.json``."""
    if not isinstance(data, list) or not all(isinstance(line, str) for line in data):
        raise TypeError("not a list of lines")
    return data


def _cells(
    folder: Path, plan: Plan, rates: tuple[float, ...], reference: str | None = None
) -> tuple[list[CellResult], int]:
    """The cells there are of all arms, or of a reference, and how many are still to come."""
    found, unfinished = _records(folder, plan.search_cells(rates, reference))
    if unfinished:
        return found, unfinished + plan.count(reference)[1]
    confirm, missing = _records(folder, plan.confirm_cells(found, rates, reference))
    return found + confirm, missing


def _records(folder: Path, cells: Sequence[Cell]) -> tuple[list[CellResult], int]:
    records = [(cell, read_record(folder / "cells" / cell.id)) for cell in cells]
    found = [_of_today(record, cell) for cell, record in records if record is not None]
    return found, len(records) - len(found)


def _of_today(record: CellResult, cell: Cell) -> CellResult:
    """Without the scores of swaps that the study has defined otherwise since."""
    if record.tuned and record.tuned != cell.fine_tune:
        metrics = {k: v for k, v in record.metrics.items() if not k.endswith(TUNED)}
        record = replace(record, metrics=metrics, tuned={})
    kept = {arm: spec for arm, spec in record.swapped.items() if cell.swaps.get(arm) == spec}
    if kept == record.swapped:
        return record
    redefined = record.swapped.keys() - kept.keys()
    gone = tuple(f"@{arm}{tuned}" for arm in redefined for tuned in ("", TUNED))
    metrics = {name: value for name, value in record.metrics.items() if not name.endswith(gone)}
    return replace(record, metrics=metrics, swapped=kept)
