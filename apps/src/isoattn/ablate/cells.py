"""Cells: one training run each, identified by the hash of its resolved config."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import inspect
import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from isoattn.ablate.records import CellResult
from isoattn.ablate.study import Study, level_name
from isoattn.apps.base.files import write_atomic, write_json
from isoattn.core import attention_factory, find_attention
from isoattn.core.factories import class_path

RECORD = "cell.json"
"""Written when a cell is over; its presence is what makes a cell done."""


@dataclass(frozen=True)
class Cell:
    """One training run of a study.

    Args:
        arm: name of the arm.
        levels: factor -> level.
        learning_rate: peak rate.
        seed: of the run.
        stage: ``search`` or ``confirm``.
        config: the complete config of the run.
        swaps: arm -> ``{class_path, init_args}`` of the attentions that are put in its place at
            test time. No part of what is trained, and so none of the id.
        fine_tune: how the finished run is trained further with each of them; likewise.
    """

    arm: str
    levels: dict[str, str]
    learning_rate: float
    seed: int
    stage: Literal["search", "confirm"]
    config: dict[str, Any]
    swaps: dict[str, dict[str, Any]] = field(default_factory=dict)
    fine_tune: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """Readable prefix and hash of what the run is; never of where or when it runs."""
        text = json.dumps([self.stage, self.config], sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:10]
        words = [self.arm, *self.levels.values(), f"lr{self.learning_rate:g}", f"s{self.seed}"]
        stem = re.sub(r"[^A-Za-z0-9.+-]+", "_", "-".join(words))
        return f"{stem}-{digest}"


def resolved_arm(spec: dict[str, Any]) -> dict[str, Any]:
    """An arm's ``{class_path, init_args}`` with every option filled in.

    Options that are left out must not be inherited from the base config's attention.
    """
    attention_factory(spec)  # refuses unknown names and options
    cls = find_attention(spec["class_path"])
    defaults = {
        name: p.default
        for name, p in list(inspect.signature(cls).parameters.items())[2:]
        if p.default is not inspect.Parameter.empty
    }
    return {"class_path": class_path(cls), "init_args": {**defaults, **spec["init_args"]}}


def make_cell(
    study: Study,
    base: dict[str, Any],
    arm: str,
    levels: dict[str, str],
    learning_rate: float,
    seed: int,
    stage: Literal["search", "confirm"],
    swaps: dict[str, dict[str, Any]] | None = None,
) -> Cell:
    """A cell from the resolved config of its arm and levels."""
    config = copy.deepcopy(base)
    set_dotted(config, study.search.key, learning_rate)
    for key in ("seed_everything", *study.with_seed):
        set_dotted(config, key, seed)
    how: dict[str, Any] = {}
    if swaps and study.fine_tune is not None:
        how = {**dataclasses.asdict(study.fine_tune), "key": study.search.key}
    return Cell(arm, levels, learning_rate, seed, stage, config, swaps or {}, how)


def has_dotted(config: dict[str, Any], key: str) -> bool:
    """Whether nested dicts have ``a.b.c``; class options are found under ``init_args`` too."""
    place: Any = config
    for part in key.split("."):
        if isinstance(place, dict) and part not in place and part != "init_args":
            place = place.get("init_args")
        if not isinstance(place, dict) or part not in place:
            return False
        place = place[part]
    return True


def set_dotted(config: dict[str, Any], key: str, value: Any) -> None:
    """Set ``a.b.c`` in nested dicts; class options are found under ``init_args`` too."""
    *parts, last = key.split(".")
    place = _options_at(config, parts[0] if parts else last)
    for number, part in enumerate(parts):
        following = parts[number + 1] if number + 1 < len(parts) else last
        place = _options_at(place.setdefault(part, {}), following)
    place[last] = value


def _options_at(place: dict[str, Any], part: str) -> dict[str, Any]:
    """Where ``part`` is: here, or among the options of the class that is named here."""
    options = place.get("init_args")
    return options if part not in (*place, "init_args") and isinstance(options, dict) else place


def write_cell(cell: Cell, folder: Path) -> None:
    """Write what a worker needs to run the cell; mends files that were damaged since."""
    plan = {
        "cell": cell.id,
        "arm": cell.arm,
        "levels": cell.levels,
        "learning_rate": cell.learning_rate,
        "seed": cell.seed,
        "stage": cell.stage,
        **({"swaps": cell.swaps} if cell.swaps else {}),
        **({"fine_tune": cell.fine_tune} if cell.fine_tune else {}),
    }
    for name, text in (
        ("cell.yaml", yaml.safe_dump(cell.config, sort_keys=False)),
        ("plan.json", json.dumps(plan, indent=2) + "\n"),
    ):
        file = folder / name
        if not file.is_file() or file.read_bytes() != text.encode():
            write_atomic(file, text)


def read_config(folder: Path) -> dict[str, Any]:
    """The complete config of a cell."""
    config: dict[str, Any] = yaml.safe_load((folder / "cell.yaml").read_text(encoding="utf-8"))
    return config


def best_checkpoint(folder: Path) -> Path:
    """Where the selected weights of a cell are."""
    return folder / "checkpoints" / "best.ckpt"


def write_record(result: CellResult, folder: Path) -> None:
    """The record of a cell that is over, atomically."""
    data = dataclasses.asdict(result)
    data["predictions"] = result.predictions.name if result.predictions else None
    data["folder"] = None
    write_json(folder / RECORD, data)


def read_record(folder: Path) -> CellResult | None:
    """The record of a cell; None while it is not over, and where the record is damaged.

    A cell whose record cannot be read is run again: a wrong number is worse than a lost one.
    """
    try:
        data = json.loads((folder / RECORD).read_bytes())
        predictions = folder / data["predictions"] if data["predictions"] else None
        result = CellResult(**{**data, "predictions": predictions, "folder": folder})
        numbers = [*result.metrics.values(), result.seconds, result.learning_rate]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    whole = (
        result.cell == folder.name
        and result.status in ("done", "diverged", "failed")
        and all(isinstance(number, int | float) for number in numbers)
        and isinstance(result.swapped, dict)
    )
    return result if whole else None


def attempts(folder: Path) -> int:
    """How often the cell was started."""
    return len(_lines(folder / "attempts.log"))


def crashes(folder: Path) -> list[str]:
    """How the attempts ended that crashed, as the study that had started them saw it.

    An attempt that was lost with the whole study (Ctrl-C, kill, power) is none of them.
    """
    return _lines(folder / "crashes.log")


def note(folder: Path, log: Literal["attempts.log", "crashes.log"], text: str) -> None:
    """Append a line, on disk before anything else happens."""
    with (folder / log).open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")
        file.flush()
        os.fsync(file.fileno())


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines() if file.is_file() else []


def describe_cell(cell: Cell) -> str:
    """A line for the terminal."""
    return f"{cell.arm} {level_name(cell.levels)} lr={cell.learning_rate:g} seed={cell.seed}"
