"""A study from plan to report; every step finds what earlier runs left and goes on from there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from isoattn.ablate.cells import Cell, read_record, write_cell
from isoattn.ablate.differences import difference_text, reference_text
from isoattn.ablate.domain import StudyApp, study_app
from isoattn.ablate.folder import locked, read_part, register
from isoattn.ablate.gate import gate_failures
from isoattn.ablate.late_swaps import late_swaps, score_late
from isoattn.ablate.plan import Plan
from isoattn.ablate.pool import Job, run_jobs
from isoattn.ablate.progress import Speaker
from isoattn.ablate.records import CellResult, StudyResults
from isoattn.ablate.results import as_baselines, as_costs, as_lines, load_results
from isoattn.ablate.same_run import check_reuse
from isoattn.ablate.selection import edges, next_rates
from isoattn.ablate.study import ALL_LEVELS, Study, StudyError, level_name
from isoattn.apps.base.files import write_atomic, write_json
from isoattn.core.training.checkpoint import remove_partial_files

__all__ = ["Engine", "RunSettings", "load_results", "study_json"]

T = TypeVar("T")


@dataclass(frozen=True)
class RunSettings:
    """How a study is run; nothing here changes a result.

    Args:
        jobs: cells at a time.
        threads: of each cell.
        tracker: for every cell.
        project: W&B project.
        amend: accept that the study file was changed after the first cell; listed in the report.
        reuse: folders of other studies, whose ended cells are taken over where they are the same
            run of the same arm.
    """

    jobs: int = 2
    threads: int = 1
    tracker: str = "auto"
    project: str = "isoattn"
    amend: bool = False
    reuse: tuple[Path, ...] = ()


class Engine:
    """One study in one folder. Several may run the same folder at once.

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
        self.speaker = Speaker()
        self.plan = Plan(study, self.app)
        self.tracker = settings.tracker if settings.tracker != "auto" else _auto_tracker()

    @property
    def group(self) -> str:
        """The tracker group of all runs of the study."""
        return f"{self.study.name}-{self.study.preset}-{self.study.hash}"

    def run(self) -> StudyResults:
        """Register, check, search, confirm, measure; whatever exists already is kept.

        Raises:
            StudyError: arms differ in more than the attention, or the study was changed.
        """
        for other in self.settings.reuse:
            check_reuse(other)
        self.register()
        for leftovers in (self.folder, self.folder / "figures"):
            remove_partial_files(leftovers)
        differences = self.plan.differences()
        self.plan.check(differences)
        beside = reference_text(self.plan.reference_differences())
        text = "\n".join(filter(None, (difference_text(differences), beside)))
        write_atomic(self.folder / "differences.txt", text + "\n")
        self._gate()
        rates, search = self._search()
        write_json(self.folder / "rates.json", list(rates))
        confirm = self.plan.confirm_cells(search, rates)
        self._run(confirm, "confirm")
        self._late_swaps(confirm)
        self._references()
        self._baselines()
        self._costs()
        return self.results()

    def register(self) -> None:
        """Write the resolved study beside the results before the first cell (P0).

        Raises:
            StudyError: another study is registered here.
        """
        with locked(self.folder):
            register(self.study, self.plan, self.folder, amend=self.settings.amend)

    def results(self) -> StudyResults:
        """What the folder holds now."""
        return load_results(self.study, self.folder, self.plan)

    def cell_folder(self, cell: Cell) -> Path:
        """Where a cell lives."""
        return self.folder / "cells" / cell.id

    def _gate(self) -> None:
        failures = self._once(
            "gate.json", as_lines, lambda: gate_failures(self.study, self.plan, self.app)
        )
        if failures:
            self.speaker.say(
                f"{len(failures)} conformance laws fail; no verdict on the arms they name:", "red"
            )
        for line in failures:
            self.speaker.say(f"  {line}")

    def _search(self, reference: str | None = None) -> tuple[tuple[float, ...], list[CellResult]]:
        """The grid as it was run in the end, and its cells: of all arms, or of one reference."""
        study = self.study if reference is None else self.study.of_reference(reference)
        phase, whom = (
            ("search", "all arms") if reference is None else (f"{reference}, search", reference)
        )
        rates = tuple(study.search.values)
        search = self._run(self.plan.search_cells(rates, reference), phase)
        for _ in range(study.search.extend if search else 0):
            sides = edges(study, search, rates)
            if not sides:
                break
            added = next_rates(rates, sides)
            numbers = ", ".join(f"{rate:g}" for rate in added)
            self.speaker.say(f"best rate at the edge of the grid: adding {numbers} for {whom}")
            rates = tuple(sorted({*rates, *added}))
            search = self._run(self.plan.search_cells(rates, reference), f"{phase}, extended")
        return rates, search

    def _late_swaps(self, cells: Sequence[Cell]) -> None:
        """Cells that had ended before the study named a swap are scored with it."""
        late = list(late_swaps(cells, self.cell_folder))
        modules = self.plan.modules
        workers, threads = self.settings.jobs, self.settings.threads
        score_late(late, self.study.app, modules, workers, threads, self.speaker.say)

    def _references(self) -> None:
        """After the arms: each reference its own search, then all of their confirmation runs."""
        if not self.study.references:
            return
        found = {name: self._search(name) for name in self.study.references}
        grids = {name: list(rates) for name, (rates, _) in found.items()}
        write_json(self.folder / "reference_rates.json", grids)
        cells = [
            cell
            for name, (rates, search) in found.items()
            for cell in self.plan.confirm_cells(search, rates, name)
        ]
        self._run(cells, "references, confirm")

    def _run(self, cells: Sequence[Cell], phase: str) -> list[CellResult]:
        jobs = []
        for cell in cells:
            folder = self.cell_folder(cell)
            write_cell(cell, folder)
            options = (*self._options(), *self._identity(cell))
            jobs.append(Job(folder, self.study.app, self._unasked, options, self.settings.reuse))
        done = {job.folder for job in jobs if read_record(job.folder) is not None}
        results: list[CellResult] = []
        with self.speaker.progress(phase, len(cells), len(done)) as advance:

            def on_result(result: CellResult) -> None:
                results.append(result)
                if result.folder not in done:
                    advance(result)

            run_jobs(jobs, self.settings.jobs, self.settings.threads, on_result)
        return results

    @property
    def _unasked(self) -> tuple[str, ...]:
        """Arms and references of which it is not asked whether their attention is used."""
        return (*self.study.controls, *self.study.references)

    def _options(self) -> list[str]:
        return [
            *(f"--import={module}" for module in self.plan.modules),
            "--tracker",
            self.tracker,
            f"--wandb.project={self.settings.project}",
            f"--wandb.group={self.group}",
            "--wandb.job_type=train",
        ]

    def _identity(self, cell: Cell) -> list[str]:
        """Id and tags of a cell in the tracker; the id is the same after a restart."""
        beside = ["reference"] if cell.arm in self.study.references else []
        return [
            f"--wandb.id={tracker_id(self.group, cell.id)}",
            f"--wandb.tags={json.dumps([cell.arm, cell.stage, *beside])}",
        ]

    def _baselines(self) -> None:
        self._once("baselines.json", as_baselines, self._simple_scores)

    def _simple_scores(self) -> dict[str, dict[str, float]]:
        """Of each level set, where a factor changes the data; else once, for all."""
        bases = {
            level_name(levels): self.plan.base(self.study.baseline, levels)
            for levels in self.study.level_sets
        }
        first, *others = [base["data"] for base in bases.values()]
        if all(data == first for data in others):
            bases = {ALL_LEVELS: next(iter(bases.values()))}
        return {level: self.app.baselines(base) for level, base in bases.items()}

    def _costs(self) -> None:
        def measure() -> list[dict[str, Any]]:
            self.speaker.say("measuring cost, arms interleaved")
            try:
                found = self.app.costs([*self.plan.cases, *self.plan.reference_cases])
            except RuntimeError as error:
                if not self.study.references:
                    raise
                self.speaker.say(f"cost of references not measured: {error}", "yellow")
                found = self.app.costs(self.plan.cases)
            return [asdict(cost) for cost in found]

        try:
            self._once("costs.json", as_costs, measure)
        except RuntimeError as error:  # a study is worth more than its cost table
            self.speaker.say(f"cost not measured, the next run tries again: {error}", "yellow")

    def _once(self, name: str, parse: Callable[[Any], T], compute: Callable[[], Any]) -> T:
        """What is worked out once a study; anew where the file is missing or damaged."""
        file = self.folder / name
        with locked(self.folder):
            try:
                value = read_part(file, parse)
            except StudyError:
                value = None
            if value is None:
                write_json(file, compute())
                value = read_part(file, parse)
        assert value is not None
        return value


def tracker_id(group: str, name: str) -> str:
    """A tracker's id of one run of a study; with a letter first, since 12e345 is a number."""
    return "s" + hashlib.sha256(f"{group}/{name}".encode()).hexdigest()[:11]


def _auto_tracker() -> str:
    from isoattn.apps.base.trackers import has_wandb_key

    return "wandb" if has_wandb_key() else "none"


def study_json(study: Study) -> str:
    """The resolved study as JSON text."""
    return json.dumps(study.as_dict(), indent=2)
