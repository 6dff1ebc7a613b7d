"""The matches of some pairs of a data set, drawn on their images."""

from __future__ import annotations

import re
from collections.abc import Sized
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isoattn.matching.data import collate
from isoattn.matching.data.batch import PairBatch
from isoattn.matching.drawing import save_matches
from isoattn.matching.matcher_module import MatcherModule
from isoattn.matching.matches import Matches
from isoattn.matching.supervision import supervise

RIGHT = 8.0
"""Pixels by which a match may be off and still be drawn as right: one cell."""


@torch.no_grad()
def draw_pairs(
    folder: Path, model: MatcherModule, pairs: Any, count: int, *, judge: bool = True
) -> list[str]:
    """Draw pairs that are spread evenly over a data set, as ``FOLDER/NUMBER-NAMES.png``.

    Args:
        folder: where to.
        model: in evaluation mode afterwards.
        pairs: a data set of :class:`~isoattn.matching.data.Pair`.
        count: how many at most.
        judge: colour by right and wrong where the places are known; else by confidence.

    Returns:
        The names of the files, relative to the folder's parent.
    """
    total = len(pairs) if isinstance(pairs, Sized) else 0
    chosen = min(count, total)
    written = []
    model.eval()
    for number in range(chosen):
        pair = pairs[number * total // chosen]
        batch = collate([pair])
        device = next(model.parameters()).device
        matches = model(_on(batch, device)).to("cpu")
        correct = right(batch, matches) if judge else None
        title = f"{pair.name0} | {pair.name1}: {len(matches)} matches"
        if correct is not None:
            title += f", {int(correct.sum())} within {RIGHT:g} px"
        name = re.sub(r"[^A-Za-z0-9._+-]+", "-", f"{pair.index}-{pair.name0}-{pair.name1}")
        file = folder / f"{name[:120]}.png"
        save_matches(file, pair.image0, pair.image1, matches, correct=correct, title=title)
        written.append(f"{folder.name}/{file.name}")
    return written


def right(batch: PairBatch, matches: Matches) -> Tensor | None:
    """Which matches of a batch of one pair lie within a cell of their place; None: not known.

    Matches whose place is not known count as wrong.
    """
    truth = supervise(batch)
    if not bool(truth.known_B[0]) or matches.cell0 is None:
        return None
    place_K2 = truth.warped0_BL2[0, matches.cell0]
    near: Tensor = (place_K2 - matches.keypoints1).norm(dim=-1) <= RIGHT
    return near


def _on(batch: PairBatch, device: torch.device) -> PairBatch:
    moved: Any = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in batch.items()}
    result: PairBatch = moved
    return result
