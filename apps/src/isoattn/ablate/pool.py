"""Running cells N at a time, each in a process of its own, forked from one that is warm.

A fork server imports the app once; a cell then starts in well under a second, yet a crash, an
out-of-memory or a kill costs that cell one attempt and nothing else.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from isoattn.ablate.cells import RECORD, attempts, read_record, write_record
from isoattn.ablate.records import CellResult
from isoattn.ablate.worker import BUSY, claim, failed_record, run_cell

MAX_ATTEMPTS = 3


@dataclass(frozen=True)
class Job:
    """A cell to run: its folder, its app, and what every run gets."""

    folder: Path
    app: str
    controls: tuple[str, ...]
    options: tuple[str, ...]


def run_jobs(
    jobs: Sequence[Job], workers: int, threads: int, on_result: Callable[[CellResult], None]
) -> None:
    """Run all jobs that have no record yet; returns when each has one.

    Args:
        jobs: the cells.
        workers: how many run at a time.
        threads: threads of each; the same for all, since sums depend on it.
        on_result: called with each record as it appears, those that were there first.
    """
    waiting = []
    for job in jobs:
        record = read_record(job.folder)
        if record is not None:
            on_result(record)
        else:
            waiting.append(job)
    if not waiting:
        return
    context = _context(threads)
    running: dict[Path, tuple[Job, BaseProcess]] = {}
    not_before: dict[Path, float] = {}
    try:
        while waiting or running:
            now = time.monotonic()
            ready = [j for j in waiting if not_before.get(j.folder, 0.0) <= now]
            for job in ready[: workers - len(running)]:
                waiting.remove(job)
                running[job.folder] = (job, _start(context, job))
            for folder, (job, process) in list(running.items()):
                process.join(timeout=0)
                if process.exitcode is None:
                    continue
                del running[folder]
                record = _outcome(job, process.exitcode)
                process.close()
                if record is None:
                    not_before[folder] = time.monotonic() + 1.0
                    waiting.append(job)
                else:
                    on_result(record)
            time.sleep(0.02)
    finally:
        for _, process in running.values():
            process.terminate()


def _outcome(job: Job, exitcode: int) -> CellResult | None:
    """The record of a cell whose process ended, or None if it has to run (again)."""
    record = read_record(job.folder)
    if record is not None or exitcode == BUSY:
        return record
    if attempts(job.folder) < MAX_ATTEMPTS:
        return None
    with claim(job.folder) as mine:
        if not mine or (job.folder / RECORD).is_file():
            return read_record(job.folder)
        reason = f"signal {-exitcode}" if exitcode < 0 else f"exit status {exitcode}"
        write_record(failed_record(job.folder, reason), job.folder)
    return read_record(job.folder)


def _start(context: multiprocessing.context.BaseContext, job: Job) -> BaseProcess:
    arguments = (job.folder, job.app, job.controls, list(job.options))
    process: BaseProcess = context.Process(target=run_cell, args=arguments)  # type: ignore[attr-defined]
    process.start()
    return process


def _context(threads: int) -> multiprocessing.context.ForkServerContext:
    # Read by the thread pools when the fork server imports torch; every cell inherits them.
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(threads)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["isoattn.apps.warm"])
    return context
