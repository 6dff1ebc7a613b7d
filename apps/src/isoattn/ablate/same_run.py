"""Cells that are the same run: trained once, scored in the place of each.

A factor may set nothing that touches an arm: with softmax in all other layers, a matcher with
softmax in its self layers is the one with softmax in its cross layers. Two studies of one base have
cells in common too. Such cells of one arm take over the weights and the curve of the first that has
ended. Arms are never shared: that an arm under another name gives the same is what the A/A control
checks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from isoattn.ablate.cells import best_checkpoint, read_config, read_record
from isoattn.ablate.domain import StudyApp
from isoattn.ablate.errors import StudyError
from isoattn.ablate.folder import registration
from isoattn.apps.base.files import read_json, write_atomic
from isoattn.apps.base.run_folder import environment
from isoattn.core.training.checkpoint import is_valid

_SAME = ("arm", "stage", "learning_rate", "seed")


def check_reuse(folder: Path) -> None:
    """Whether cells of another study can stand for ones that would be trained here and now.

    Args:
        folder: of the other study.

    Raises:
        StudyError: there is no study, or its cells were trained with other software.
    """
    found = registration(folder)
    if found is None:
        raise StudyError(
            f"--reuse {folder}: no study folder, isoattn ablate run has made none here"
        )
    theirs, ours = found.get("environment", {}), environment()
    for what in ("python", "packages", "device"):
        if theirs.get(what) != ours[what]:
            raise StudyError(
                f"--reuse {folder}: its cells were trained with other software or on another "
                f"device ({what}: {theirs.get(what)}, here {ours[what]}), so they are no pairs of "
                "cells that are trained here. Leave --reuse away."
            )


def ended_twin(
    app: StudyApp, plan: dict[str, Any], folder: Path, reuse: Sequence[Path] = ()
) -> Path | None:
    """The folder of a cell of the same arm that has ended and whose training is this cell's.

    Args:
        app: of the study; says what of a config decides the training.
        plan: of the cell.
        folder: of the cell, among those of the others.
        reuse: folders of other studies, looked through after this one.
    """
    wanted = _training(app, folder)
    for other in _others(folder, reuse):
        theirs = read_json(other / "plan.json") or {}
        if any(theirs.get(key) != plan[key] for key in _SAME):
            continue
        record = read_record(other)
        if record is None or record.status != "done" or not is_valid(best_checkpoint(other)):
            continue
        if _training(app, other) == wanted:
            return other
    return None


def twin_name(twin: Path, folder: Path) -> str:
    """How the record of a cell names the one it took over; of another study, with its folder."""
    same_study = twin.parent.resolve() == folder.parent.resolve()
    return twin.name if same_study else f"{twin.parent.parent.resolve().name}/{twin.name}"


def take_over(twin: Path, folder: Path) -> None:
    """Take over the curve, the outcome and, last, the selected weights of a cell that has ended."""
    for file in (twin / "metrics.csv", twin / "result.json", best_checkpoint(twin)):
        if file.is_file():
            write_atomic(folder / file.relative_to(twin), file.read_bytes())


def _others(folder: Path, reuse: Sequence[Path]) -> Iterator[Path]:
    for cells in (folder.parent, *(study / "cells" for study in reuse)):
        for other in sorted(cells.iterdir()) if cells.is_dir() else []:
            if other != folder and (other / "plan.json").is_file():
                yield other


def _training(app: StudyApp, folder: Path) -> str:
    return json.dumps(app.training(read_config(folder)), sort_keys=True, default=str)
