"""Cells that are the same run: trained once, scored at the levels of each.

A factor may set nothing that touches an arm: with softmax in all other layers, a matcher with
softmax in its self layers is the one with softmax in its cross layers. Such cells of one arm take
over the weights and the curve of the first that has ended. Arms are never shared: that an arm under
another name gives the same is what the A/A control checks.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import yaml

from isoattn.ablate.cells import read_record
from isoattn.ablate.domain import StudyApp
from isoattn.apps.base.files import read_json
from isoattn.core.training.checkpoint import is_valid

_SAME = ("arm", "stage", "learning_rate", "seed")
BEST = Path("checkpoints") / "best.ckpt"


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
        if record is None or record.status != "done" or not is_valid(other / BEST):
            continue
        if _training(app, other) == wanted:
            return other
    return None


def take_over(twin: Path, folder: Path) -> None:
    """Take over the curve, the outcome and, last, the selected weights of a cell that has ended."""
    for name in ("metrics.csv", "result.json"):
        if (twin / name).is_file():
            _copy(twin / name, folder / name)
    (folder / BEST).parent.mkdir(exist_ok=True)
    _copy(twin / BEST, folder / BEST)


def read_config(folder: Path) -> dict[str, Any]:
    """The complete config of a cell."""
    config: dict[str, Any] = yaml.safe_load((folder / "cell.yaml").read_text(encoding="utf-8"))
    return config


def _training(app: StudyApp, folder: Path) -> str:
    return json.dumps(app.training(read_config(folder)), sort_keys=True, default=str)


def _copy(source: Path, target: Path) -> None:
    """A copy that is there as a whole or not at all."""
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    shutil.copyfile(source, partial)
    partial.replace(target)
