"""Tables of what a classifier said: CSV files, counts per class, a confusion matrix to look at."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from torch import Tensor

from isoattn.apps.base.files import write_atomic


def write_csv(file: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a table whole or not at all."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    write_atomic(file, text.getvalue())


def write_class_tables(
    folder: Path, label: Tensor, predicted: Tensor, classes: Sequence[str]
) -> None:
    """Write ``per_class.csv``, ``confusion.csv`` and ``confusion.png``.

    Args:
        folder: where to.
        label: int64 (items,), class numbers.
        predicted: int64 (items,).
        classes: names by number.
    """
    matrix = torch.zeros(len(classes), len(classes), dtype=torch.int64)
    matrix.index_put_((label, predicted), torch.ones_like(label), accumulate=True)
    counts = matrix.sum(1).tolist()
    hits = matrix.diagonal().tolist()
    per_class = [
        [name, n, h, f"{h / n:.6f}" if n else ""]
        for name, n, h in zip(classes, counts, hits, strict=True)
    ]
    write_csv(folder / "per_class.csv", ["class", "items", "correct", "accuracy"], per_class)
    named = [[name, *row] for name, row in zip(classes, matrix.tolist(), strict=True)]
    write_csv(folder / "confusion.csv", ["true \\ predicted", *classes], named)
    write_atomic(folder / "confusion.png", confusion_picture(matrix.numpy(), classes))


def confusion_picture(matrix: np.ndarray, classes: Sequence[str]) -> bytes:
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
