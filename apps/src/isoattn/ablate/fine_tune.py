"""Swaps that are given time to settle (P10): trained a little further with another attention.

Each finished run is taken up with the attention of every swap in its place, and once more with its
own, so that what further training brings by itself is told apart from what the swap costs.
"""

from __future__ import annotations

import copy
import math
import re
from pathlib import Path
from typing import Any

import yaml

from isoattn.ablate.cells import read_config, set_dotted
from isoattn.ablate.domain import StudyApp
from isoattn.ablate.records import TUNED
from isoattn.apps.base.checkpoints import last_good
from isoattn.apps.base.files import read_json, write_atomic, write_json

_SCORES = "scores.json"


def fine_tuned(
    app: StudyApp, plan: dict[str, Any], folder: Path, modules: list[str]
) -> dict[str, float]:
    """Train a finished run further with each swap and with its own attention; score each on test.

    Args:
        app: of the study.
        plan: of the cell, with ``swaps`` and ``fine_tune``.
        folder: of the cell; each goes into ``tuned/ARM``, where it is taken up after a kill.
        modules: options that import the user's modules.

    Returns:
        ``test/METRIC@ARM+tuned``; nothing of one that diverged.

    Raises:
        RuntimeError: one failed otherwise.
    """
    config = read_config(folder)
    found: dict[str, float] = {}
    for arm, spec in {plan["arm"]: config["model"]["attention"], **plan["swaps"]}.items():
        place = folder / "tuned" / re.sub(r"[^A-Za-z0-9.+-]+", "_", arm)
        scores = read_json(place / _SCORES)
        if scores is None:
            scores = _train(app, _config(config, plan, spec), folder, place, modules)
            write_json(place / _SCORES, scores)
        found |= {f"{name}@{arm}{TUNED}": value for name, value in scores.items()}
    return found


def _config(config: dict[str, Any], plan: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    """That of the cell, with another attention, at a smaller rate, for as long as is said."""
    tuned = copy.deepcopy(config)
    how = plan["fine_tune"]
    for key, value in how["overrides"].items():
        set_dotted(tuned, key, value)
    set_dotted(tuned, how["key"], plan["learning_rate"] * how["rate"])
    tuned["model"]["attention"] = spec
    return tuned


def _train(
    app: StudyApp, config: dict[str, Any], source: Path, place: Path, modules: list[str]
) -> dict[str, float]:
    place.mkdir(parents=True, exist_ok=True)
    write_atomic(place / "cell.yaml", yaml.safe_dump(config, sort_keys=False))
    good = last_good(place / "checkpoints")
    start = (
        ["--init_from", str(source / "checkpoints" / "best.ckpt")]
        if good is None
        else ["--ckpt_path", str(good)]
    )
    status, built = app.train(
        ["fit", "--config", str(place / "cell.yaml"), "--run.dir", str(place), *modules]
        + ["--tracker=none", "--trainer.enable_progress_bar=false", *start]
    )
    outcome = read_json(place / "result.json") or {}
    if status != 0 and outcome.get("status") == "diverged":
        return {}
    if status != 0:
        raise RuntimeError(
            f"fine-tuning in {place.name} ended with status {status}: {outcome.get('error', '')}"
        )
    scores = app.score(built, place, test=True, control=True, swaps={})
    tested = {k: v for k, v in scores.metrics.items() if k.startswith("test/")}
    return {name: value for name, value in tested.items() if math.isfinite(value)}
