"""A study from plan to report; every step finds what earlier runs left and goes on from there."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from isoattn.ablate.cells import Cell, read_record, write_cell
from isoattn.ablate.domain import StudyApp, study_app
from isoattn.ablate.gate import gate_failures
from isoattn.ablate.plan import Plan, config_differences, difference_text
from isoattn.ablate.pool import Job, run_jobs
from isoattn.ablate.records import ArmCost, CellResult, StudyResults
from isoattn.ablate.selection import edges, next_rates
from isoattn.ablate.study import Study, StudyError, level_name
from isoattn.apps.base.files import read_json, write_atomic, write_json
from isoattn.apps.base.run_folder import environment


@dataclass(frozen=True)
class RunSettings:
    """How a study is run; nothing here changes a result.

    Args:
        jobs: cells at a time.
        threads: of each cell.
        tracker: for every cell.
        project: W&B project.
        amend: accept that the study file was changed after the first cell; listed in the report.
    """

    jobs: int = 2
    threads: int = 1
    tracker: str = "auto"
    project: str = "isoattn"
    amend: bool = False


class Engine:
    """One study in one folder.

    Args:
        study: the study.
        folder: where its cells and its report live.
        settings: how it is run.
    """

    def __init__(self, study: Study, folder: Path, settings: RunSettings) -> None:
        self.study = study
        self.folder = folder
        self.settings = settings
        self.app: StudyApp = study_app(study.app)
        self.console = Console(stderr=True)
        self.plan = Plan(study, self.app)

    def run(self) -> StudyResults:
        """Register, check, search, confirm, measure; whatever exists already is kept.

        Raises:
            StudyError: arms differ in more than the attention, or the study was changed.
        """
        self.register()
        differences = self.plan.differences()
        self.plan.check(differences)
        write_atomic(
            self.folder / "differences.txt", difference_text(self.study, differences) + "\n"
        )
        self._gate()
        rates, search = self._search()
        cells = self.plan.confirm_cells(search, rates)
        self._run(cells, "confirm")
        self._baselines()
        self._costs()
        return self.results()

    def register(self) -> None:
        """Write the resolved study beside the results before the first cell (P0).

        Raises:
            StudyError: another study is registered here.
        """
        file = self.folder / "registered.json"
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        entry = {"study": self.study.as_dict(), "hash": self.study.hash, "registered": now}
        registered = read_json(file)
        if registered is None:
            write_json(file, {**entry, "environment": environment(), "amendments": []})
            return
        # A study amended back and forth is compared with what was accepted last.
        current = (
            registered["amendments"][-1]["study"]
            if registered["amendments"]
            else registered["study"]
        )
        changed = config_differences(current, self.study.as_dict())
        if not changed:
            return
        lines = [f"{key}: {old} -> {new}" for key, old, new in changed]
        if not self.settings.amend:
            raise StudyError(
                f"{self.folder} holds the study {registered['hash']}, and this one differs:\n  "
                + "\n  ".join(lines[:6])
                + "\nUse another --out, or --amend to go on; the report will list the changes."
            )
        registered["amendments"].append({**entry, "changes": lines})
        write_json(file, registered)

    def _gate(self) -> None:
        file = self.folder / "gate.json"
        if read_json(file) is None:
            failures = gate_failures(self.study, self.plan, self.app)
            write_json(file, failures)
        failures = read_json(file)
        if failures:
            self.console.print(f"[red]{len(failures)} laws fail; no verdict will be given[/red]")

    def _search(self) -> tuple[tuple[float, ...], list[CellResult]]:
        rates = tuple(self.study.search.values)
        search = self._run(self.plan.search_cells(rates), "search")
        if not search:
            return rates, []
        for _ in range(self.study.search.extend):
            sides = edges(self.study, search, rates)
            if not sides:
                break
            added = next_rates(rates, sides)
            self._say(f"best rate at the edge of the grid: adding {', '.join(map(str, added))}")
            rates = tuple(sorted({*rates, *added}))
            search = self._run(self.plan.search_cells(rates), "search, extended")
        write_json(self.folder / "rates.json", list(rates))
        return rates, search

    def _run(self, cells: Sequence[Cell], phase: str) -> list[CellResult]:
        if not cells:
            return []
        jobs = []
        for cell in cells:
            folder = self.cell_folder(cell)
            write_cell(cell, folder)
            jobs.append(Job(folder, self.study.app, self.study.controls, tuple(self._options())))
        results: list[CellResult] = []
        with self._progress(phase, len(cells)) as advance:

            def on_result(result: CellResult) -> None:
                results.append(result)
                advance(result)

            run_jobs(jobs, self.settings.jobs, self.settings.threads, on_result)
        return results

    def cell_folder(self, cell: Cell) -> Path:
        """Where a cell lives."""
        return self.folder / "cells" / cell.id

    def _options(self) -> list[str]:
        group = f"{self.study.name}-{self.study.preset}-{self.study.hash}"
        return [
            "--tracker",
            self.settings.tracker if self.settings.tracker != "auto" else _auto_tracker(),
            f"--wandb.project={self.settings.project}",
            f"--wandb.group={group}",
            "--wandb.job_type=train",
        ]

    def _baselines(self) -> None:
        file = self.folder / "baselines.json"
        if read_json(file) is None:
            base = self.plan.base(self.study.baseline, self.study.level_sets[0])
            write_json(file, self.app.baselines(base))

    def _costs(self) -> None:
        file = self.folder / "costs.json"
        if read_json(file) is None:
            self._say("measuring cost, arms interleaved")
            cases = [
                (arm, levels, self.plan.base(arm, levels))
                for levels in self.study.level_sets
                for arm in self.study.arms
            ]
            write_json(file, [asdict(cost) for cost in self.app.costs(cases)])

    def results(self) -> StudyResults:
        """What the folder holds now."""
        return load_results(self.study, self.folder, self.plan)

    def _say(self, text: str) -> None:
        self.console.print(text, highlight=False)

    @contextmanager
    def _progress(self, phase: str, total: int) -> Iterator[Any]:
        if not sys.stderr.isatty():
            done = 0

            def line(result: CellResult) -> None:
                nonlocal done
                done += 1
                self._say(f"{phase} {done}/{total}  {_cell_line(result)}")

            yield line
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self.console) as progress:
            task = progress.add_task(phase, total=total)

            def step(result: CellResult) -> None:
                progress.console.print(_cell_line(result), highlight=False)
                progress.advance(task)

            yield step


def load_results(study: Study, folder: Path, plan: Plan | None = None) -> StudyResults:
    """Read a study folder: every cell that belongs to the study, in the order of the plan."""
    registered = read_json(folder / "registered.json") or {}
    rates = tuple(read_json(folder / "rates.json") or study.search.values)
    plan = plan or Plan(study, study_app(study.app))
    planned = plan.search_cells(rates)
    found, unfinished = _records(folder, planned)
    if unfinished == 0:
        confirm, missing = _records(folder, plan.confirm_cells(found, rates))
        found, unfinished = found + confirm, unfinished + missing
    else:
        unfinished += plan.count()[1]
    return StudyResults(
        cells=found,
        costs=[ArmCost(**cost) for cost in read_json(folder / "costs.json") or []],
        baselines=read_json(folder / "baselines.json") or {},
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
        gate_failures=read_json(folder / "gate.json") or [],
    )


def _records(folder: Path, cells: Sequence[Cell]) -> tuple[list[CellResult], int]:
    records = [read_record(folder / "cells" / cell.id) for cell in cells]
    found = [record for record in records if record is not None]
    return found, len(records) - len(found)


def _cell_line(result: CellResult) -> str:
    metrics = "  ".join(
        f"{name} {value:.4f}"
        for name, value in result.metrics.items()
        if name.count("/") == 1 and "balanced" not in name and "loss" not in name
    )
    status = metrics if result.status == "done" else f"{result.status}: {result.error[:80]}"
    return (
        f"{result.arm} {level_name(result.levels)} lr={result.learning_rate:g} "
        f"seed={result.seed}  {status}  ({result.seconds:.0f} s)"
    )


def _auto_tracker() -> str:
    from isoattn.apps.base.trackers import has_wandb_key

    return "wandb" if has_wandb_key() else "none"


def study_json(study: Study) -> str:
    """The resolved study as JSON text."""
    return json.dumps(study.as_dict(), indent=2)
