"""Reading a study folder back: every cell of the study, and what stands beside them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from isoattn.ablate.cells import Cell, read_record
from isoattn.ablate.domain import study_app
from isoattn.ablate.folder import read_part, registration
from isoattn.ablate.plan import Plan
from isoattn.ablate.records import ArmCost, CellResult, StudyResults
from isoattn.ablate.study import Study


def load_results(study: Study, folder: Path, plan: Plan | None = None) -> StudyResults:
    """Read a study folder: every cell that belongs to the study, in the order of the plan.

    Raises:
        StudyError: a file of the study is damaged; a damaged cell counts as not finished.
    """
    registered = registration(folder) or {}
    rates = read_part(folder / "rates.json", as_rates) or tuple(study.search.values)
    plan = plan or Plan(study, study_app(study.app))
    found, unfinished = _records(folder, plan.search_cells(rates))
    if unfinished == 0:
        confirm, missing = _records(folder, plan.confirm_cells(found, rates))
        found, unfinished = found + confirm, unfinished + missing
    else:
        unfinished += plan.count()[1]
    return StudyResults(
        cells=found,
        costs=read_part(folder / "costs.json", as_costs) or [],
        baselines=read_part(folder / "baselines.json", as_scores) or {},
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
    )


def as_rates(data: Any) -> tuple[float, ...]:
    """``rates.json``."""
    if not isinstance(data, list) or not data:
        raise TypeError("not a list of rates")
    return tuple(float(rate) for rate in data)


def as_costs(data: Any) -> list[ArmCost]:
    """``costs.json``."""
    return [ArmCost(**cost) for cost in data]


def as_scores(data: Any) -> dict[str, float]:
    """``baselines.json``."""
    return {name: float(score) for name, score in data.items()}


def as_lines(data: Any) -> list[str]:
    """``gate.json``."""
    if not isinstance(data, list) or not all(isinstance(line, str) for line in data):
        raise TypeError("not a list of lines")
    return data


def _records(folder: Path, cells: Sequence[Cell]) -> tuple[list[CellResult], int]:
    records = [read_record(folder / "cells" / cell.id) for cell in cells]
    found = [record for record in records if record is not None]
    return found, len(records) - len(found)
