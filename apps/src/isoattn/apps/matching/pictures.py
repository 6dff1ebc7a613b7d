"""The matches of some pairs of a data set, drawn on their images."""

from __future__ import annotations

import re
from collections.abc import Sized
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isoattn.apps.matching.two_views import plural
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
    folder: Path, model: MatcherModule, loader: Any, count: int, *, judge: bool = True
) -> list[str]:
    """Draw pairs that are spread evenly over a data set, as ``FOLDER/NUMBER-NAMES.png``.

    Each is matched in the batch in which the loader gives it, so that a picture has the very
    matches of the tables: a match at the threshold may come and go with the rest of a batch.

    Args:
        folder: where to.
        model: in evaluation mode afterwards.
        loader: of :class:`~isoattn.matching.data.Pair`, in order.
        count: how many at most.
        judge: colour by right and wrong where the places are known; else by confidence.

    Returns:
        The names of the files, relative to the folder's parent.
    """
    pairs = loader.dataset
    total = len(pairs) if isinstance(pairs, Sized) else 0
    chosen = min(count, total)
    written = []
    model.eval()
    for number in range(chosen):
        first, row = divmod(number * total // chosen, loader.batch_size)
        start = first * loader.batch_size
        members = [pairs[i] for i in range(start, min(start + loader.batch_size, total))]
        pair, batch = members[row], collate(members)
        device = next(model.parameters()).device
        matches = model(_on(batch, device)).to("cpu").split()[row]
        correct = right(batch, matches, row) if judge else None
        title = f"{pair.name0} | {pair.name1}: {len(matches)} match{plural(len(matches))}"
        if correct is not None:
            title += f", {int(correct.sum())} within {RIGHT:g} px"
        name = re.sub(r"[^A-Za-z0-9._+-]+", "-", f"{pair.index}-{pair.name0}-{pair.name1}")
        file = folder / f"{name[:120]}.png"
        save_matches(file, pair.image0, pair.image1, matches, correct=correct, title=title)
        written.append(f"{folder.name}/{file.name}")
    return written


def right(batch: PairBatch, matches: Matches, row: int = 0) -> Tensor | None:
    """Which matches of a pair of a batch lie within a cell of their place; None: not known.

    Matches whose place is not known count as wrong.
    """
    truth = supervise(batch)
    if not bool(truth.known_B[row]) or matches.cell0 is None:
        return None
    place_K2 = truth.warped0_BL2[row, matches.cell0]
    near: Tensor = (place_K2 - matches.keypoints1).norm(dim=-1) <= RIGHT
    return near


def _on(batch: PairBatch, device: torch.device) -> PairBatch:
    moved: Any = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in batch.items()}
    result: PairBatch = moved
    return result
