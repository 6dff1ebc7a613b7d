"""What was measured of a study's arms over a growing size: ``cost/cost.json`` and ``cost.csv``."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from isoattn.ablate.folder import read_part
from isoattn.ablate.records import ArmCost
from isoattn.apps.base.files import write_atomic, write_json

FOLDER = "cost"
"""Of a study folder."""


@dataclass(frozen=True)
class SizedCost:
    """One arm at one size.

    Args:
        arm: its name.
        size: the size.
        config: hash of the resolved config that was measured.
        status: ``measured``; ``failed``: the arm could not take a step; ``left out``: not tried.
        reason: why it was not measured.
        cost: times and memory, None where it was not measured.
        warmup: rounds before those that count.
        repeats: rounds that count.
        alone: measured by itself, since another arm had failed; else the arms were interleaved.
    """

    arm: str
    size: int
    config: str
    status: Literal["measured", "failed", "left out"]
    reason: str = ""
    cost: ArmCost | None = None
    warmup: int = 0
    repeats: int = 0
    alone: bool = False


@dataclass(frozen=True)
class CostTable:
    """All that is known, complete in itself.

    Args:
        title: of the study.
        arms: all arms of the study, in its order, measured or not.
        baseline: the arm the others are compared with.
        controls: arms that mix nothing.
        section: the ``cost`` section of the study file.
        environment: versions, device, commit, command.
        own_tokens: of the study itself, None where the app cannot tell.
        tokens: size -> tokens of the attention, None where the app cannot tell.
        rows: every arm at every size, by size.
    """

    title: str
    arms: tuple[str, ...]
    baseline: str
    controls: tuple[str, ...]
    section: dict[str, Any]
    environment: dict[str, Any]
    own_tokens: int | None = None
    tokens: dict[int, int | None] = field(default_factory=dict)
    rows: tuple[SizedCost, ...] = ()

    @property
    def label(self) -> str:
        """What a size counts."""
        return str(self.section["label"])

    @property
    def sizes(self) -> list[int]:
        """Rising; those where at least one arm was asked for."""
        return sorted({row.size for row in self.rows})

    @property
    def shown(self) -> list[str]:
        """Arms with a row, in the order of the study."""
        there = {row.arm for row in self.rows}
        return [arm for arm in self.arms if arm in there]

    def of(self, arm: str) -> list[SizedCost]:
        """The rows of an arm, by rising size."""
        return sorted((row for row in self.rows if row.arm == arm), key=lambda row: row.size)

    def at(self, size: int) -> list[SizedCost]:
        """The rows of a size, in the order of the study."""
        order = {arm: number for number, arm in enumerate(self.arms)}
        return sorted((r for r in self.rows if r.size == size), key=lambda row: order[row.arm])

    def with_size(self, size: int, rows: list[SizedCost], tokens: int | None) -> CostTable:
        """The table with all rows of a size replaced."""
        kept = [row for row in self.rows if row.size != size]
        ordered = sorted([*kept, *rows], key=lambda row: row.size)
        known = dict(sorted({**self.tokens, size: tokens}.items()))
        return replace(self, rows=tuple(ordered), tokens=known)


def config_hash(config: dict[str, Any]) -> str:
    """What tells one resolved config from another."""
    text = json.dumps(config, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def write_costs(table: CostTable, folder: Path) -> None:
    """Write ``cost.json`` into the folder of a study, whole or not at all."""
    write_json(folder / FOLDER / "cost.json", asdict(table))


def read_costs(folder: Path) -> CostTable | None:
    """What the folder of a study holds, None where nothing was measured.

    Raises:
        StudyError: the file is damaged; says what to do.
    """
    file = folder / FOLDER / "cost.json"
    return read_part(file, _parse, "Delete it; isoattn ablate cost measures anew.")


def _parse(data: Any) -> CostTable:
    rows = [
        SizedCost(**{**row, "cost": ArmCost(**row["cost"]) if row["cost"] else None})
        for row in data["rows"]
    ]
    if any((row.status == "measured") != (row.cost is not None) for row in rows):
        raise ValueError("a row without its numbers")
    tokens = {int(size): count for size, count in data["tokens"].items()}
    names = {name: tuple(data[name]) for name in ("arms", "controls")}
    table = CostTable(**{**data, **names, "tokens": tokens, "rows": tuple(rows)})
    if not {row.arm for row in rows} <= set(table.arms) or not table.label:
        raise ValueError("rows of unknown arms")
    return table


def write_csv(table: CostTable, folder: Path) -> None:
    """Write ``cost.csv``: a line for each arm and size, at full precision."""
    numbers = ["step_ms", "step_ms_iqr", "forward_ms", "peak_mib", "forward_flops"]
    numbers += ["attention_flops", "batch", "note"]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ["arm", "size", "tokens", "status", *numbers, "warmup", "repeats", "alone", "reason"]
    )
    for size in table.sizes:
        for row in table.at(size):
            found = ["" if row.cost is None else getattr(row.cost, name) for name in numbers]
            tokens = table.tokens.get(size)
            start = [row.arm, size, "" if tokens is None else tokens, row.status]
            writer.writerow([*start, *found, row.warmup, row.repeats, row.alone, row.reason])
    write_atomic(folder / FOLDER / "cost.csv", out.getvalue())
