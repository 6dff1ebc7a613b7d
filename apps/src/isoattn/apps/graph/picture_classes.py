"""What pictures of graphs share: colours of classes and parts, and matrices from class to class.

Shape suffixes: L pairs of nodes, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor

from isoattn.apps.core.picture import COLOURS

GREY = "#8a8f98"
PARTS = {"train": "#0072b2", "val": "#e69f00", "test": "#009e73", "in no part": "#c9ccd1"}
MOST_NAMED = 40
"""Most classes whose names are written beside an axis."""


def class_colours(y: Tensor) -> list[str]:
    """A colour a node; grey where it has no class. After 12 classes they begin anew."""
    return [COLOURS[c % len(COLOURS)] if c >= 0 else "#dddfe3" for c in y.tolist()]


def class_matrix(
    looking_L: Tensor, seen_L: Tensor, classes: int, weight_L: Tensor | None = None
) -> Tensor:
    """Weight that goes from each class to each, rows summing to 1; float64 (C, C).

    Args:
        looking_L: class of the node that looks; -1 = unlabelled, left out.
        seen_L: class of the node that is looked at; likewise.
        classes: C.
        weight_L: of each pair; 1 unless given.

    Returns:
        Rows of a class that looks at nothing are NaN.
    """
    known = (looking_L >= 0) & (seen_L >= 0)
    place = looking_L[known] * classes + seen_L[known]
    weight = None if weight_L is None else weight_L[known].double()
    summed = torch.bincount(place, weight, minlength=classes * classes).double()
    table = summed.reshape(classes, classes)
    return table / table.sum(1, keepdim=True)


def draw_class_matrix(
    axes: Axes, matrix_CC: Tensor, chance_C: Tensor, classes: Sequence[str]
) -> None:
    """Draw shares in percent; the colour says how many times more or less than by chance.

    Args:
        axes: where to; titles and labels are the caller's.
        matrix_CC: rows sum to 1, or are NaN.
        chance_C: what each row would be by chance.
        classes: names.
    """
    share = matrix_CC.numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        lift = np.log2(share / chance_C.numpy()[None])
    image = axes.imshow(lift.clip(-3, 3), cmap="RdBu_r", vmin=-3, vmax=3)
    names = [name if len(name) <= 16 else f"{name[:15]}…" for name in classes]
    if len(classes) <= MOST_NAMED:
        ticks = range(len(classes))
        axes.set_xticks(ticks, names, rotation=90 if max(map(len, names)) > 3 else 0, fontsize=8)
        axes.set_yticks(ticks, names, fontsize=8)
    if len(classes) <= 15:
        for (row, column), value in np.ndenumerate(share):
            if not np.isnan(value):
                shade = "white" if abs(lift[row, column]) > 1.8 else "black"
                words = f"{100 * value:.1f}" if value < 0.0995 else f"{100 * value:.0f}"
                axes.text(column, row, words, ha="center", va="center", color=shade, fontsize=7.5)
    figure = axes.figure
    bar = figure.colorbar(image, ax=axes, shrink=0.8, ticks=[-3, -2, -1, 0, 1, 2, 3])
    bar.ax.set_yticklabels(["≤ 1/8", "1/4", "1/2", "1", "2", "4", "≥ 8"], fontsize=8)
    bar.set_label("times chance (numbers: %)", fontsize=8)
