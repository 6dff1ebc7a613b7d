"""Files that appear whole or not at all, so that a reader never sees half a report."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from isoattn.ablate.records import CellResult
from isoattn.ablate.study import Study
from isoattn.apps.base import files


def write_atomic(path: Path, text: str) -> Path:
    """Write UTF-8 text beside ``path`` and rename it into place; returns ``path``."""
    files.write_atomic(path, text)
    return path


def cells_csv(study: Study, cells: Iterable[CellResult]) -> str:
    """Every cell, whatever its status, one line each; metrics at full precision.

    ``role`` tells the arms, which are judged, from references, which stand beside them.
    """
    ordered = in_study_order(study, cells)
    factors = list(study.factors)
    metrics = sorted({name for cell in ordered for name in cell.metrics})
    head = ["cell", "stage", "status", "arm", "role", *factors, "learning_rate", "seed", *metrics]
    tail = ["replaced_by", "parameters", "attention_parameters", "epochs", "init_hash"]
    timing = ["seconds", "attempts", "error"]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*head, *tail, *timing])
    for cell in ordered:
        writer.writerow(
            [
                *(cell.cell, cell.stage, cell.status, cell.arm),
                "reference" if cell.arm in study.references else "arm",
                *(cell.levels.get(factor, "") for factor in factors),
                *(repr(cell.learning_rate), cell.seed),
                *(repr(cell.metrics[m]) if m in cell.metrics else "" for m in metrics),
                *(cell.replaced_by or "", cell.parameters, cell.attention_parameters),
                *(len(cell.curve), cell.init_hash),
                *(f"{cell.seconds:.3f}", cell.attempts, cell.error),
            ]
        )
    return out.getvalue()


def in_study_order(study: Study, cells: Iterable[CellResult]) -> list[CellResult]:
    """Cells by stage, level set, arm, rate and seed: the order in which they came plays no part."""
    arms = {arm: i for i, arm in enumerate([*study.arms, *study.references])}
    ranks = {f: {lv: i for i, lv in enumerate(levels)} for f, levels in study.factors.items()}

    def rank(cell: CellResult) -> Sequence[object]:
        levels = tuple(ranks[f].get(cell.levels.get(f, ""), len(ranks[f])) for f in ranks)
        arm = arms.get(cell.arm, len(arms))
        return cell.stage == "confirm", levels, arm, cell.learning_rate, cell.seed, cell.cell

    return sorted(cells, key=rank)  # type: ignore[arg-type]
