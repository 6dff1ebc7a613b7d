"""The supervision of a batch of pairs, from whatever ground truth it carries."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from isoattn.matching.data.batch import PairBatch
from isoattn.matching.models.cells import cell_mask
from isoattn.matching.supervision.cells import Supervision
from isoattn.matching.supervision.depth import DepthView, Fidelity, gt_from_depth
from isoattn.matching.supervision.given import gt_from_matches
from isoattn.matching.supervision.homography import gt_from_homography
from isoattn.matching.supervision.maps import gt_from_maps


class _Frame(NamedTuple):
    """Sizes of the two images, and which of their cells are no padding."""

    size0: tuple[int, int]
    size1: tuple[int, int]
    keep0_BL: Tensor | None
    keep1_BS: Tensor | None


def supervise(batch: PairBatch, *, fidelity: Fidelity = "exact") -> Supervision:
    """Ground truth between the cells of a batch.

    Where a pair has several kinds, depth goes before maps, homographies and given matches. Of a
    batch that has poses alone, or nothing at all, nothing is known of its cells.

    Args:
        batch: as a loader gives it.
        fidelity: of the rule for depth, see :func:`gt_from_depth`.
    """
    image0, image1 = batch["image0"], batch["image1"]
    frame = _Frame(
        (image0.shape[2], image0.shape[3]),
        (image1.shape[2], image1.shape[3]),
        cell_mask(batch.get("mask0"), image0, "mask0"),
        cell_mask(batch.get("mask1"), image1, "mask1"),
    )
    found = [rule(batch, frame, fidelity) for key, rule in _RULES.items() if key in batch]
    if not found:
        nothing_B33 = image0.new_full((len(image0), 3, 3), torch.nan)
        return gt_from_homography(nothing_B33, frame.size0, frame.size1)
    whole = found[0]
    for other in found[1:]:
        whole = _fill(whole, other)
    return whole


def _by_depth(batch: PairBatch, frame: _Frame, fidelity: Fidelity) -> Supervision:
    view0 = DepthView(batch["depth0"], batch["intrinsics0"], frame.size0, frame.keep0_BL)
    view1 = DepthView(batch["depth1"], batch["intrinsics1"], frame.size1, frame.keep1_BS)
    return gt_from_depth(view0, view1, batch["pose"], fidelity=fidelity)


def _by_maps(batch: PairBatch, frame: _Frame, fidelity: Fidelity) -> Supervision:
    keeps = {"keep0_BL": frame.keep0_BL, "keep1_BS": frame.keep1_BS}
    return gt_from_maps(batch["map0"], batch["map1"], **keeps)


def _by_homography(batch: PairBatch, frame: _Frame, fidelity: Fidelity) -> Supervision:
    keeps = {"keep0_BL": frame.keep0_BL, "keep1_BS": frame.keep1_BS}
    return gt_from_homography(batch["homography"], frame.size0, frame.size1, **keeps)


def _by_points(batch: PairBatch, frame: _Frame, fidelity: Fidelity) -> Supervision:
    return gt_from_matches(
        batch["points0"],
        batch["points1"],
        batch["points_index"],
        batch["points_known"],
        frame.size0,
        frame.size1,
        keep0_BL=frame.keep0_BL,
        keep1_BS=frame.keep1_BS,
    )


_RULES: dict[str, Callable[[PairBatch, _Frame, Fidelity], Supervision]] = {
    "depth0": _by_depth,
    "map0": _by_maps,
    "homography": _by_homography,
    "points0": _by_points,
}


def _fill(first: Supervision, second: Supervision) -> Supervision:
    """Pairs that the first does not know are taken from the second."""
    from1, from2 = first.known_B[first.b], ~first.known_B[second.b]
    b, i, j = (
        torch.cat([one[from1], two[from2]])
        for one, two in ((first.b, second.b), (first.i, second.i), (first.j, second.j))
    )
    order = b.argsort(stable=True)
    warped0_BL2 = torch.where(first.known_B[:, None, None], first.warped0_BL2, second.warped0_BL2)
    known_B = first.known_B | second.known_B
    return Supervision(b[order], i[order], j[order], warped0_BL2, known_B, first.grid0, first.grid1)
