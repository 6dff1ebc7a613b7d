"""Running one cell in its own process: claim, resume or start, train, score, record."""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from isoattn.ablate.cells import attempts, crashes, note, read_config, read_record, write_record
from isoattn.ablate.domain import Scores, study_app
from isoattn.ablate.fine_tune import fine_tuned
from isoattn.ablate.records import CellResult, Strata
from isoattn.ablate.same_run import ended_twin, take_over, twin_name
from isoattn.apps.base.checkpoints import last_good
from isoattn.apps.base.files import read_json
from isoattn.apps.base.metrics_log import read_metrics

BUSY, DONE, CRASHED = 75, 0, 1
"""Exit statuses of a worker: another process runs the cell; it is over; it crashed."""


@contextlib.contextmanager
def claim(folder: Path) -> Iterator[bool]:
    """Hold a cell while the process lives; yields False where another process holds it.

    The claim is a lock of the operating system on ``.lock``, so it ends with the process, however
    that ends: a killed worker leaves no claim behind, a living one cannot be overtaken.
    """
    with (folder / ".lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True


def held(folder: Path) -> bool:
    """Whether a living process runs the cell."""
    with claim(folder) as mine:
        return not mine


def end_with_parent(grace: float = 10.0) -> None:
    """End this process soon after the study that started it, however that ended.

    The trainer answers SIGTERM by saving between two steps; what does not answer is ended.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace)
        os._exit(CRASHED)

    threading.Thread(target=watch, daemon=True, name="parent-watch").start()


def run_cell(
    folder: Path,
    app_name: str,
    controls: tuple[str, ...],
    options: list[str],
    reuse: Sequence[Path] = (),
) -> None:
    """Run a planned cell to its record; ends the process with BUSY, DONE or CRASHED.

    Args:
        folder: the cell's folder, with ``plan.json`` and ``cell.yaml``.
        app_name: the app that trains it.
        controls: arms of which it is not asked whether their attention is used.
        options: arguments for this run (tracker and its id, group, tags).
        reuse: folders of other studies, whose ended cells may be this very run.
    """
    # Ctrl-C reaches every process of a terminal; the study decides, and ends its cells itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    with claim(folder) as mine:
        if not mine:
            sys.exit(BUSY)
        if read_record(folder) is not None:
            sys.exit(DONE)
        with (folder / "log.txt").open("a", buffering=1, encoding="utf-8") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            note(folder, "attempts.log", str(os.getpid()))
            try:
                _train_and_record(folder, app_name, controls, options, reuse)
            except BaseException:
                traceback.print_exc(file=log)
                sys.exit(CRASHED)
    sys.exit(DONE)


def _train_and_record(
    folder: Path,
    app_name: str,
    controls: tuple[str, ...],
    options: list[str],
    reuse: Sequence[Path],
) -> None:
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    modules = [option for option in options if option.startswith("--import=")]
    for module in modules:
        importlib.import_module(module.removeprefix("--import="))
    app = study_app(app_name)
    plan = read_json(folder / "plan.json")
    good = last_good(folder / "checkpoints")
    argv = ["fit", "--config", str(folder / "cell.yaml"), "--run.dir", str(folder), *options]
    argv.append("--trainer.enable_progress_bar=false")
    if good is not None:
        argv += ["--ckpt_path", str(good)]
    _outcome(folder)
    twin = ended_twin(app, plan, folder, reuse) if good is None else None
    if twin is None:
        status, built = app.train(argv)
    else:
        take_over(twin, folder)
        status, built = 0, app.built(read_config(folder))
    outcome = _outcome(folder)
    if good is not None:
        outcome["seconds"] = 0.0  # of the last part only: the time of the whole is not known
    if status == 0:
        scores = app.score(
            built,
            folder,
            test=plan["stage"] == "confirm",
            control=plan["arm"] in controls,
            swaps=plan.get("swaps", {}),
        )
        record = _record(plan, outcome, folder, "done", scores)
        record = replace(record, same_run=twin_name(twin, folder) if twin else "")
        if plan.get("fine_tune") and plan["stage"] == "confirm" and record.status == "done":
            tuned = fine_tuned(app, plan, folder, modules)
            metrics = {**record.metrics, **tuned}
            record = replace(record, metrics=metrics, tuned=plan["fine_tune"])
        write_record(record, folder)
    elif outcome.get("status") == "diverged":
        write_record(_record(plan, outcome, folder, "diverged", None), folder)
    else:
        raise RuntimeError(f"fit ended with status {status}: {outcome.get('error', '')}")


def _outcome(folder: Path) -> dict[str, Any]:
    """The run's ``result.json``; one that cannot be read is removed, the run writes it anew."""
    try:
        outcome = read_json(folder / "result.json") or {}
    except ValueError:
        outcome = None
    if not isinstance(outcome, dict):
        (folder / "result.json").unlink()
        return {}
    return outcome


def _record(
    plan: dict[str, Any],
    outcome: dict[str, Any],
    folder: Path,
    status: Literal["done", "diverged"],
    scores: Scores | None,
) -> CellResult:
    metrics = scores.metrics if scores else {}
    swapped = plan.get("swaps", {}) if scores and plan["stage"] == "confirm" else {}
    marks = tuple(f"@{arm}" for arm in swapped)
    finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
    # With an attention it was not trained with a network may score anything: no fault of the run.
    lost = sorted(n for n in metrics.keys() - finite.keys() if not n.endswith(marks))
    if lost:  # A run can end with finite weights and a metric that is not.
        outcome = {**outcome, "error": f"not finite: {', '.join(lost)}"}
    return CellResult(
        cell=plan["cell"],
        arm=plan["arm"],
        levels=plan["levels"],
        learning_rate=plan["learning_rate"],
        seed=plan["seed"],
        stage=plan["stage"],
        status="diverged" if lost else status,
        metrics=finite,
        replaced_by=scores.replaced_by if scores else None,
        curve=learning_curve(folder),
        batch_hashes=outcome.get("batch_hashes", []),
        init_hash=outcome.get("init_hash", ""),
        parameters=outcome.get("parameters", 0),
        attention_parameters=outcome.get("attention_parameters", 0),
        seconds=outcome.get("seconds", 0.0),
        attempts=attempts(folder),
        predictions=scores.predictions if scores else None,
        error=outcome.get("error", ""),
        folder=folder,
        swapped=swapped,
        strata=_finite(scores.strata) if scores else {},
    )


def _finite(strata: Strata) -> Strata:
    """Without scores that are no number: a group may have no match to judge."""
    return {
        stratum: {
            group: {name: value for name, value in found.items() if math.isfinite(value)}
            for group, found in groups.items()
        }
        for stratum, groups in strata.items()
    }


def failed_record(folder: Path) -> CellResult:
    """The record of a cell that crashed on every attempt."""
    plan = read_json(folder / "plan.json")
    log = folder / "log.txt"
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return CellResult(
        **{k: plan[k] for k in ("cell", "arm", "levels", "learning_rate", "seed", "stage")},
        status="failed",
        attempts=attempts(folder),
        error=f"{crashes(folder)[-1]}: {last}"[:500],
        folder=folder,
    )


def learning_curve(folder: Path) -> list[dict[str, float]]:
    """One row an epoch from ``metrics.csv``, epochs merged; what is not finite is left out."""
    file = folder / "metrics.csv"
    if not file.is_file():
        return []
    epochs: dict[int, dict[str, float]] = {}
    for row in read_metrics(file):
        values = {
            k: float(v)
            for k, v in row.items()
            if k not in ("step", "epoch", "train/loss_step") and not k.startswith("lr")
        }
        if "epoch" in row and values:
            finite = {k: v for k, v in values.items() if math.isfinite(v)}
            epochs.setdefault(int(float(row["epoch"])), {}).update(finite)
    return [{"epoch": float(epoch), **values} for epoch, values in sorted(epochs.items())]
