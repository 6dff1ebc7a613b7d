"""Marked-row digits: a task that cannot be solved without looking from one token to another.

A canvas has ``rows`` rows. Each holds a real digit in its right column; one row, chosen at random,
has a bright square in its left column; the label is the digit of that row. Whoever ignores the
square guesses among the visible digits. It was picked because it separates attention from none; it
says nothing about which attention is better.

Shape suffixes: N canvases, R rows, S source images, H, W pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isoattn.core.training import derive_seed
from isoattn.vision.data.sources import LabelledImages

CELL = 14
MARK = 8


@dataclass(frozen=True)
class MarkedRows:
    """Composed canvases and how they were made.

    Args:
        data: images (N, 1, 14 R, 28 + distance), labels, ids.
        marked_N: the marked row.
        sources_NR: id of the source image in each row.
    """

    data: LabelledImages
    marked_N: Tensor
    sources_NR: Tensor


def halve(images_NCHW: Tensor) -> Tensor:
    """Mean of each 2x2 square, rounded to uint8: (N, C, H, W) -> (N, C, H/2, W/2)."""
    return torch.nn.functional.avg_pool2d(images_NCHW.float(), 2).round().to(torch.uint8)


def compose_marked_rows(
    source: LabelledImages,
    count: int,
    *,
    rows: int,
    distance: int,
    seed: int,
    stream: str,
    first_id: int,
) -> MarkedRows:
    """Compose canvases from a pool of 28x28 digits.

    Args:
        source: pool of images (S, 1, 28, 28); each canvas draws its digits with replacement.
        count: N, canvases to make.
        rows: R, rows of a canvas.
        distance: empty pixels between the square's column and the digits' column.
        seed: composition is a function of (seed, stream) and the pool.
        stream: name of the split.
        first_id: id of the first canvas.

    Returns:
        The canvases with their provenance.

    Raises:
        ValueError: fewer than two rows, a negative distance, or no canvas.
    """
    if rows < 2 or distance < 0 or count < 1:
        raise ValueError(
            f"Marked rows need rows >= 2, distance >= 0 and at least one canvas; "
            f"got rows={rows}, distance={distance}, count={count}"
        )
    generator = torch.Generator().manual_seed(derive_seed(seed, "marked-row", stream))
    chosen_NR = torch.randint(len(source), (count, rows), generator=generator)
    marked_N = torch.randint(rows, (count,), generator=generator)
    canvas_NRHW = torch.zeros(count, rows, CELL, 2 * CELL + distance, dtype=torch.uint8)
    canvas_NRHW[..., CELL + distance :] = halve(source.images_NCHW)[:, 0][chosen_NR]
    edge = (CELL - MARK) // 2
    canvas_NRHW[torch.arange(count), marked_N, edge : edge + MARK, edge : edge + MARK] = 255
    labels_NR = source.labels_N[chosen_NR]
    data = LabelledImages(
        canvas_NRHW.reshape(count, 1, rows * CELL, 2 * CELL + distance),
        labels_NR.gather(1, marked_N[:, None])[:, 0],
        torch.arange(first_id, first_id + count),
    )
    return MarkedRows(data, marked_N, source.ids_N[chosen_NR])
