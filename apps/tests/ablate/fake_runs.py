"""Cells without training, for the tests of what happens around them: made-up runs in no time."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from isoattn.ablate.cells import attempts, note, read_record, write_record
from isoattn.ablate.engine import Engine, RunSettings
from isoattn.ablate.pool import Job
from isoattn.ablate.records import ArmCost, CellResult
from isoattn.ablate.study import study_from_dict

BEST = {"ViT": 1e-4}
"""Rate at which a network is best; all others beyond the grid of the tests, on its other side."""


class Stopped(Exception):
    """The study was stopped in the middle."""


def made_up(plan: dict[str, Any], controls: Sequence[str]) -> CellResult:
    """The record of a cell, from its plan alone."""
    arm, seed, rate = plan["arm"], plan["seed"], plan["learning_rate"]
    score = 0.9 - 0.1 * abs(math.log10(rate / BEST.get(arm, 0.1))) - 0.001 * seed % 7
    metrics = {"val/accuracy": score}
    swaps = plan.get("swaps", {})
    if plan["stage"] == "confirm":
        metrics |= {"test/accuracy": score - 0.01}
        metrics |= {f"test/accuracy@{other}": score - 0.2 for other in swaps}
        if arm not in controls:
            metrics["test/accuracy_replaced"] = score - 0.3
    return CellResult(
        **{k: plan[k] for k in ("cell", "arm", "levels", "learning_rate", "seed", "stage")},
        status="done",
        metrics=metrics,
        batch_hashes=[f"batches-{seed}"],
        init_hash=f"weights-{seed}-{'other' if arm in BEST else 'same'}",
        parameters=100,
        seconds=1.0,
        swapped=swaps,
    )


def fake_run_jobs(
    make: Callable[[dict[str, Any], Sequence[str]], CellResult] = made_up, stop_after: int = 10**6
) -> Callable[..., None]:
    """Stands for ``run_jobs``; stopped when so many cells have ended."""
    left = stop_after

    def run(
        jobs: Sequence[Job], workers: int, threads: int, on_result: Callable[[CellResult], None]
    ) -> None:
        nonlocal left
        for job in jobs:
            if read_record(job.folder) is None:
                if left == 0:
                    raise Stopped
                left -= 1
                note(job.folder, "attempts.log", "1")
                plan = json.loads((job.folder / "plan.json").read_text())
                write_record(make(plan, job.controls), job.folder)
            record = read_record(job.folder)
            assert record is not None and attempts(job.folder) == 1
            on_result(record)

    return run


@contextmanager
def fake_engine(
    raw: dict[str, Any], folder: Path, run: Callable[..., None] | None = None, **settings: Any
) -> Iterator[Engine]:
    """An engine that trains, checks and measures nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("isoattn.ablate.engine.run_jobs", run or fake_run_jobs())
        patch.setattr("isoattn.ablate.engine.gate_failures", lambda *_: [])
        engine = Engine(
            study_from_dict(raw, where="test"), folder, RunSettings(tracker="none", **settings)
        )
        patch.setattr(engine.app, "baselines", lambda config: {})
        patch.setattr(engine.app, "costs", fake_costs)
        yield engine


def fake_costs(cases: Sequence[tuple[str, dict[str, str], Any]]) -> list[ArmCost]:
    """Stands for the measurement."""
    return [ArmCost(arm, levels, 10, 1, 2.0, 0.1, 1.0, 3.0, 4) for arm, levels, _ in cases]
