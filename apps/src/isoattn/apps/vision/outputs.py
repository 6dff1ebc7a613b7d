"""What `test` and `predict` leave behind: tables, predictions, a confusion matrix to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isoattn.apps.base.class_tables import write_class_tables, write_csv
from isoattn.apps.base.files import write_json


def write_test_outputs(
    folder: Path, outputs: list[dict[str, Tensor]], classes: list[str], facts: dict[str, Any]
) -> None:
    """Write ``result.json``, ``predictions.csv``, ``per_class.csv``, ``confusion.{csv,png}``.

    Args:
        folder: where to.
        outputs: batches of ``index`` (B,), ``label`` (B,), ``probability`` (B, classes).
        classes: class names in the order of the columns.
        facts: goes into ``result.json``.
    """
    index = torch.cat([o["index"] for o in outputs]).tolist()
    label = torch.cat([o["label"] for o in outputs])
    probability = torch.cat([o["probability"] for o in outputs])
    predicted = probability.argmax(1)
    rows = [
        [i, classes[t], classes[p], f"{q:.6f}", int(t == p)]
        for i, t, p, q in zip(
            index, label.tolist(), predicted.tolist(), probability.amax(1).tolist(), strict=True
        )
    ]
    write_csv(
        folder / "predictions.csv", ["index", "label", "predicted", "probability", "correct"], rows
    )
    write_class_tables(folder, label, predicted, classes)
    write_json(folder / "result.json", {**facts, "items": len(index)})


def write_predictions(file: Path, outputs: list[dict[str, Any]], classes: list[str]) -> int:
    """Write one row an image: path (or index), class, probability, all probabilities."""
    rows: list[list[Any]] = []
    for batch in outputs:
        names = batch.get("path", batch.get("index"))
        names = names.tolist() if isinstance(names, Tensor) else list(names or [])
        for name, row in zip(names, batch["probability"].tolist(), strict=True):
            best = int(np.argmax(row))
            rows.append([name, classes[best], f"{row[best]:.6f}", *(f"{p:.6f}" for p in row)])
    header = ["image", "predicted", "probability", *(f"p({name})" for name in classes)]
    write_csv(file, header, rows)
    return len(rows)
