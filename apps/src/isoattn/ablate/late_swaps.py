"""Swaps that a study names after its cells have ended (P10): scored from the kept checkpoints.

Nothing is trained again. A cell is scored with what its record lacks, and its record is written
anew, whole or not at all, so that a kill loses at most the cell that was being scored.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isoattn.ablate.cells import Cell, best_checkpoint, read_config, read_record, write_record
from isoattn.ablate.domain import study_app
from isoattn.ablate.pool import warm_context
from isoattn.ablate.records import CellResult
from isoattn.ablate.worker import claim, end_with_parent
from isoattn.core.training.checkpoint import is_valid

_SAME = 1e-6
"""How far a test score made anew may lie from the recorded one: the same weights and data."""

_GONE = "its best checkpoint was not kept (delete the cell's folder to run it anew)"


@dataclass(frozen=True)
class Late:
    """A finished cell with swaps that its record lacks.

    Args:
        folder: of the cell.
        swaps: arm -> ``{class_path, init_args}`` to score.
    """

    folder: Path
    swaps: dict[str, dict[str, Any]]


def late_swaps(cells: Sequence[Cell], folder_of: Callable[[Cell], Path]) -> Iterator[Late]:
    """The cells that ended before the study named some of their swaps, or named them otherwise."""
    for cell in cells:
        record = read_record(folder_of(cell))
        if record is not None and record.status == "done":  # others have no weights to swap into
            lacking = {a: s for a, s in cell.swaps.items() if record.swapped.get(a) != s}
            if lacking:
                yield Late(folder_of(cell), lacking)


def score_late(
    late: Sequence[Late],
    app_name: str,
    modules: Sequence[str],
    workers: int,
    threads: int,
    say: Callable[[str], None],
) -> None:
    """Score cells, some at a time, and say how it went.

    Args:
        late: what is lacking.
        app_name: the app that trained the cells.
        modules: of the user's, to be imported.
        workers: cells at a time.
        threads: of each.
        say: takes a line.
    """
    failed: dict[str, list[str]] = {}
    kept = [one for one in late if best_checkpoint(one.folder).is_file()]
    if len(kept) < len(late):
        failed[_GONE] = [one.folder.name for one in late if one not in kept]
    if kept:
        _score(kept, app_name, modules, workers, threads, failed)
    missed = sum(map(len, failed.values()))
    if late:
        say(f"swaps named since: {len(late) - missed} of {len(late)} finished cells scored anew")
    for reason, names in failed.items():
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        say(f"  not scored, {reason}: {', '.join(names[:3])}{more}")


def _score(
    late: Sequence[Late],
    app_name: str,
    modules: Sequence[str],
    workers: int,
    threads: int,
    failed: dict[str, list[str]],
) -> None:
    """Score in processes; ``failed`` takes the names of cells by reason."""
    with ProcessPoolExecutor(
        workers,
        mp_context=warm_context(threads),
        initializer=_start,
        initargs=(tuple(modules), threads),
    ) as pool:
        futures = {pool.submit(add_swaps, one.folder, app_name, one.swaps): one for one in late}
        try:
            for future in as_completed(futures):
                name = futures[future].folder.name
                try:
                    reason = future.result()
                except BrokenProcessPool:
                    raise
                except Exception as error:  # of an attention or a network, whatever it raises
                    reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
                if reason is not None:
                    failed.setdefault(reason, []).append(name)
        except BrokenProcessPool:  # its cells, and those not begun, are scored by the next run
            reason = "a process was lost (run the study again)"
            left = [one.folder.name for future, one in futures.items() if not _ended(future)]
            failed.setdefault(reason, []).extend(left)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _ended(future: Future[str | None]) -> bool:
    return future.done() and not isinstance(future.exception(), BrokenProcessPool)


def add_swaps(folder: Path, app_name: str, swaps: dict[str, dict[str, Any]]) -> str | None:
    """Score a finished cell with swaps and add them to its record; why it was not done, or None."""
    with claim(folder) as mine:
        record = read_record(folder)
        if not mine or record is None:
            return "another process has the cell"
        if not best_checkpoint(folder).is_file():
            return _GONE
        if not is_valid(best_checkpoint(folder)):
            return "its best checkpoint is damaged (delete the cell's folder to run it anew)"
        config = read_config(folder)
        found = study_app(app_name).swapped_scores(config, folder, swaps)
        other = _differing(record, found)
        if other is not None:
            return f"its checkpoint or its data are not those of its record ({other})"
        write_record(_with_swaps(record, found, swaps), folder)
    return None


def _differing(record: CellResult, found: dict[str, float]) -> str | None:
    """The first test metric as trained that is not what it was."""
    for name, value in found.items():
        before = record.metrics.get(name)
        if "@" not in name and before is not None and not abs(value - before) <= _SAME:
            return f"{name} {value:.4f}, recorded {before:.4f}"
    return None


def _with_swaps(
    record: CellResult, found: dict[str, float], swaps: dict[str, dict[str, Any]]
) -> CellResult:
    marks = tuple(f"@{arm}" for arm in swaps)
    kept = {name: value for name, value in record.metrics.items() if not name.endswith(marks)}
    new = {n: v for n, v in found.items() if n.endswith(marks) and math.isfinite(v)}
    return dataclasses.replace(record, metrics={**kept, **new}, swapped={**record.swapped, **swaps})


def _start(modules: tuple[str, ...], threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the study decides
    end_with_parent()
    os.environ["OMP_NUM_THREADS"] = str(threads)
    import torch

    torch.set_num_threads(threads)
    for module in modules:
        importlib.import_module(module)
