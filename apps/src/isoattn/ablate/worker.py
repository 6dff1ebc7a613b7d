"""Running one cell in its own process: claim, resume or start, train, score, record."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import yaml

from isoattn.ablate.cells import RECORD, attempts, write_record
from isoattn.ablate.domain import Scores, study_app
from isoattn.ablate.records import CellResult
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


def run_cell(folder: Path, app_name: str, controls: tuple[str, ...], options: list[str]) -> None:
    """Run a planned cell to its record; ends the process with BUSY, DONE or CRASHED.

    Args:
        folder: the cell's folder, with ``plan.json`` and ``cell.yaml``.
        app_name: the app that trains it.
        controls: arms of which it is not asked whether their attention is used.
        options: arguments for every run (tracker and its group, tags).
    """
    with claim(folder) as mine:
        if not mine:
            sys.exit(BUSY)
        if (folder / RECORD).is_file():
            sys.exit(DONE)
        with (folder / "log.txt").open("a", buffering=1, encoding="utf-8") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            _note_attempt(folder)
            try:
                _train_and_record(folder, app_name, controls, options)
            except BaseException:
                traceback.print_exc(file=log)
                sys.exit(CRASHED)
    sys.exit(DONE)


def _train_and_record(
    folder: Path, app_name: str, controls: tuple[str, ...], options: list[str]
) -> None:
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    app = study_app(app_name)
    plan = read_json(folder / "plan.json")
    good = last_good(folder / "checkpoints")
    argv = ["fit", "--config", str(folder / "cell.yaml"), "--run.dir", str(folder), *options]
    argv += [
        "--trainer.enable_progress_bar=false",
        f"--wandb.id={hashlib.sha256(plan['cell'].encode()).hexdigest()[:12]}",
        f"--wandb.tags={yaml.safe_dump([plan['arm'], plan['stage']], default_flow_style=True)}",
    ]
    if good is not None:
        argv += ["--ckpt_path", str(good)]
    status, built = app.train(argv)
    outcome = read_json(folder / "result.json") or {}
    if status == 0:
        scores = app.score(
            built, folder, test=plan["stage"] == "confirm", control=plan["arm"] in controls
        )
        write_record(_record(plan, outcome, folder, "done", scores), folder)
    elif outcome.get("status") == "diverged":
        write_record(_record(plan, outcome, folder, "diverged", None), folder)
    else:
        raise RuntimeError(f"fit ended with status {status}: {outcome.get('error', '')}")


def _record(
    plan: dict[str, Any],
    outcome: dict[str, Any],
    folder: Path,
    status: Literal["done", "diverged"],
    scores: Scores | None,
) -> CellResult:
    return CellResult(
        cell=plan["cell"],
        arm=plan["arm"],
        levels=plan["levels"],
        learning_rate=plan["learning_rate"],
        seed=plan["seed"],
        stage=plan["stage"],
        status=status,
        metrics=scores.metrics if scores else {},
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
    )


def failed_record(folder: Path, reason: str) -> CellResult:
    """The record of a cell that crashed on every attempt."""
    plan = read_json(folder / "plan.json")
    log = folder / "log.txt"
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return CellResult(
        **{k: plan[k] for k in ("cell", "arm", "levels", "learning_rate", "seed", "stage")},
        status="failed",
        attempts=attempts(folder),
        error=f"{reason}: {last}"[:500],
        folder=folder,
    )


def learning_curve(folder: Path) -> list[dict[str, float]]:
    """One row an epoch from ``metrics.csv``, epochs merged."""
    file = folder / "metrics.csv"
    if not file.is_file():
        return []
    epochs: dict[int, dict[str, float]] = {}
    for row in read_metrics(file):
        values = {
            k: float(v) for k, v in row.items() if k not in ("step", "epoch", "train/loss_step")
        }
        if values and "epoch" in row:
            epochs.setdefault(int(float(row["epoch"])), {}).update(values)
    return [
        {"epoch": float(epoch), **{k: v for k, v in values.items() if not k.startswith("lr")}}
        for epoch, values in sorted(epochs.items())
    ]


def _note_attempt(folder: Path) -> None:
    with (folder / "attempts.log").open("a", encoding="utf-8") as file:
        file.write(f"{os.getpid()}\n")
        file.flush()
        os.fsync(file.fileno())
