"""Running cells N at a time, each in a process of its own, forked from one that is warm.

A fork server imports the app once; a cell then starts in well under a second, yet a crash, an
out-of-memory or a kill costs that cell one attempt and nothing else.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from isoattn.ablate.cells import crashes, note, read_record, write_record
from isoattn.ablate.records import CellResult
from isoattn.ablate.worker import BUSY, claim, failed_record, held, run_cell

MAX_ATTEMPTS = 3
"""So many crashes of one cell make it ``failed``."""
_PAUSE = 1.0
"""Seconds before a cell is looked at again that crashed or that another process runs."""
_GRACE = 10.0
"""Seconds that a cell has to save and end when the study is stopped."""


@dataclass(frozen=True)
class Job:
    """A cell to run: its folder, its app, the options of its run, other studies to look in."""

    folder: Path
    app: str
    controls: tuple[str, ...]
    options: tuple[str, ...]
    reuse: tuple[Path, ...] = ()


def run_jobs(
    jobs: Sequence[Job], workers: int, threads: int, on_result: Callable[[CellResult], None]
) -> None:
    """Run all jobs that have no record yet; returns when each has one.

    Any number of processes may do so for the same folders at once: a cell is run by one of them,
    and the others wait for its record.

    Args:
        jobs: the cells.
        workers: how many run at a time.
        threads: threads of each; the same for all, since sums depend on it.
        on_result: called with each record as it appears, those that were there first.
    """
    pool = _Pool(jobs, workers, warm_context(threads), on_result)
    try:
        while pool.busy:
            pool.step()
    finally:
        _end(process for _, process in pool.running.values())


class _Pool:
    """What waits and what runs."""

    def __init__(
        self,
        jobs: Sequence[Job],
        workers: int,
        context: multiprocessing.context.ForkServerContext,
        on_result: Callable[[CellResult], None],
    ) -> None:
        self.waiting: list[Job] = []
        self.running: dict[Path, tuple[Job, BaseProcess]] = {}
        self._workers = workers
        self._context = context
        self._on_result = on_result
        self._not_before: dict[Path, float] = {}
        self._starts_lost = 0
        for job in jobs:
            self._settle(job)

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    def step(self) -> None:
        """Start what there is room for, wait a moment, take in what ended."""
        now = time.monotonic()
        for job in [j for j in self.waiting if self._not_before.get(j.folder, 0.0) <= now]:
            if len(self.running) >= self._workers:
                break
            self._start(job)
        sentinels = [process.sentinel for _, process in self.running.values()]
        if sentinels:
            multiprocessing.connection.wait(sentinels, timeout=0.2)
        elif self.waiting:
            time.sleep(0.05)
        for folder, (job, process) in list(self.running.items()):
            if process.exitcode is not None:
                del self.running[folder]
                note_end(job.folder, process.exitcode)
                process.close()
                self._settle(job, _PAUSE)

    def _settle(self, job: Job, pause: float = 0.0) -> None:
        """Report a cell that is over; let another one wait."""
        record = read_record(job.folder)
        if record is None:
            self.waiting.append(job)
            self._not_before[job.folder] = time.monotonic() + pause
        else:
            self._on_result(record)

    def _start(self, job: Job) -> None:
        self.waiting.remove(job)
        if read_record(job.folder) is not None or held(job.folder):
            self._settle(job, _PAUSE)
            return
        arguments = (job.folder, job.app, job.controls, list(job.options), job.reuse)
        process: BaseProcess = self._context.Process(target=run_cell, args=arguments)
        try:
            process.start()
        except (OSError, EOFError):
            # The fork server was killed this very moment; the next start makes a new one.
            self._starts_lost += 1
            if self._starts_lost >= MAX_ATTEMPTS:
                raise
            self._settle(job, _PAUSE)
            return
        self._starts_lost = 0
        self.running[job.folder] = (job, process)


def note_end(folder: Path, exitcode: int) -> None:
    """Take note of a process that ended; the last crash that a cell is allowed makes it failed."""
    with claim(folder) as mine:
        # Not mine: another study runs it; or the fork server died, and the cell is about to end.
        if not mine or exitcode == BUSY or read_record(folder) is not None:
            return
        note(
            folder,
            "crashes.log",
            f"signal {-exitcode}" if exitcode < 0 else f"exit status {exitcode}",
        )
        if len(crashes(folder)) >= MAX_ATTEMPTS:
            write_record(failed_record(folder), folder)


def _end(processes: Iterable[BaseProcess]) -> None:
    """End processes and see them gone: first asked, so that a run is saved, then made to."""
    ending = list(processes)
    for process in ending:
        process.terminate()
    deadline = time.monotonic() + _GRACE
    for process in ending:
        process.join(timeout=max(0.0, deadline - time.monotonic()))
        if process.exitcode is None:
            process.kill()


def warm_context(threads: int) -> multiprocessing.context.ForkServerContext:
    """Processes forked from one that has imported the app, with so many threads each."""
    # Read by the thread pools when the fork server imports torch; every cell inherits them.
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(threads)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["isoattn.apps.warm"])
    return context
