"""What `test` and `predict` leave behind: tables, predictions, a confusion matrix to look at."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from torch import Tensor

from isoattn.apps.base.files import write_atomic, write_json


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
    matrix = torch.zeros(len(classes), len(classes), dtype=torch.int64)
    matrix.index_put_((label, predicted), torch.ones_like(label), accumulate=True)
    rows = [
        [i, classes[t], classes[p], f"{q:.6f}", int(t == p)]
        for i, t, p, q in zip(
            index, label.tolist(), predicted.tolist(), probability.amax(1).tolist(), strict=True
        )
    ]
    _write_csv(
        folder / "predictions.csv", ["index", "label", "predicted", "probability", "correct"], rows
    )
    counts = matrix.sum(1).tolist()
    hits = matrix.diagonal().tolist()
    per_class = [
        [name, n, h, f"{h / n:.6f}" if n else ""]
        for name, n, h in zip(classes, counts, hits, strict=True)
    ]
    _write_csv(folder / "per_class.csv", ["class", "items", "correct", "accuracy"], per_class)
    named = [[name, *row] for name, row in zip(classes, matrix.tolist(), strict=True)]
    _write_csv(folder / "confusion.csv", ["true \\ predicted", *classes], named)
    write_atomic(folder / "confusion.png", confusion_picture(matrix.numpy(), classes))
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
    _write_csv(file, header, rows)
    return len(rows)


def confusion_picture(matrix: np.ndarray, classes: list[str]) -> bytes:
    """A PNG of the confusion matrix, rows normalised, counts written in up to 30 classes."""
    from matplotlib.figure import Figure

    share = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    side = min(3.0 + 0.42 * len(classes), 14.0)
    figure = Figure(figsize=(side + 0.6, side), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(share, cmap=mpl.colormaps["Blues"], vmin=0, vmax=1)
    correct = float(np.trace(matrix)) / max(float(matrix.sum()), 1.0)
    axes.set(
        xlabel="predicted", ylabel="true", title=f"{100 * correct:.1f} % of {matrix.sum()} right"
    )
    if len(classes) <= 60:
        ticks = range(len(classes))
        axes.set_xticks(ticks, classes, rotation=90 if max(map(len, classes)) > 3 else 0)
        axes.set_yticks(ticks, classes)
    if len(classes) <= 30:
        for (row, column), count in np.ndenumerate(matrix):
            if count:
                shade = "white" if share[row, column] > 0.5 else "black"
                axes.text(
                    column, row, str(count), ha="center", va="center", color=shade, fontsize=7
                )
    figure.colorbar(image, label="share of the true class", shrink=0.8)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()


def _write_csv(file: Path, header: list[str], rows: list[list[Any]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    write_atomic(file, text.getvalue())
