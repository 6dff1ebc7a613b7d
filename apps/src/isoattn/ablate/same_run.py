"""Cells that are the same run: trained once, scored at the levels of each.

A factor may set nothing that touches an arm: with softmax in all other layers, a matcher with
softmax in its self layers is the one with softmax in its cross layers. Such cells of one arm take
over the weights and the curve of the first that has ended. Arms are never shared: that an arm under
another name gives the same is what the A/A control checks.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from isoattn.ablate.cells import best_checkpoint, read_config, read_record
from isoattn.ablate.domain import StudyApp
from isoattn.apps.base.files import read_json, write_atomic
from isoattn.core.training.checkpoint import is_valid

_SAME = ("arm", "stage", "learning_rate", "seed")


def ended_twin(app: StudyApp, plan: dict[str, Any], folder: Path) -> Path | None:
    """The folder of a cell of the same arm that has ended and whose training is this cell's.

    Args:
        app: of the study; says what of a config decides the training.
        plan: of the cell.
        folder: of the cell, among those of the others.
    """
    wanted = _training(app, folder)
    for other in sorted(folder.parent.iterdir()):
        if other == folder or not (other / "plan.json").is_file():
            continue
        theirs = read_json(other / "plan.json") or {}
        if any(theirs.get(key) != plan[key] for key in _SAME):
            continue
        record = read_record(other)
        if record is None or record.status != "done" or not is_valid(best_checkpoint(other)):
            continue
        if _training(app, other) == wanted:
            return other
    return None


def take_over(twin: Path, folder: Path) -> None:
    """Take over the curve, the outcome and, last, the selected weights of a cell that has ended."""
    for file in (twin / "metrics.csv", twin / "result.json", best_checkpoint(twin)):
        if file.is_file():
            write_atomic(folder / file.relative_to(twin), file.read_bytes())


def _training(app: StudyApp, folder: Path) -> str:
    return json.dumps(app.training(read_config(folder)), sort_keys=True, default=str)
