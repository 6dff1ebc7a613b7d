"""The scores of a set of image pairs, kept pair by pair, so that they can be grouped and paired.

Frames: MMA and corner errors are in pixels of the images that the matcher saw (resized, without
padding); the threshold of the pose estimation is in pixels of the original images; pose errors are
in degrees; epipolar errors are of normalised points, without unit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from isoattn.matching.data.batch import PairBatch
from isoattn.matching.matches import Matches
from isoattn.matching.metrics.auc import error_auc
from isoattn.matching.metrics.coarse import (
    accuracy_at,
    average_precision,
    coarse_counts,
    judge,
)
from isoattn.matching.metrics.homography import corner_error, estimate_homography
from isoattn.matching.metrics.pose import epipolar_errors, estimate_pose, pose_error
from isoattn.matching.metrics.robust import RobustOptions
from isoattn.matching.supervision.cells import Supervision

MMA_PIXELS = (1, 3, 5, 10)
CORNER_PIXELS = (1, 3, 5, 10)
POSE_DEGREES = (5, 10, 20)
EPIPOLAR = (1e-4, 5e-4)
STRATUM_EDGES = {
    "rotation": (10.0, 20.0),
    "scale": (1.2, 1.4),
    "overlap": (0.4, 0.6),
    "texture": (0.5,),
}
"""Where the strata of drawn pairs are cut, see :meth:`MatchScore.by_stratum`."""


@dataclass
class PairScore:
    """What is known of one pair.

    Args:
        index, name0, name1: of the pair.
        known: whether the places of its cells are known; of others only the pose is scored.
        counts: matches, judged, exact, near, truth, found, found_near (see
            :class:`~isoattn.matching.metrics.coarse.CoarseCounts`).
        shares: numbers whose mean over the pairs is a score; NaN where a pair has none.
        corner_errors, pose_errors: one a repeat of the estimation, failures as inf; empty where it
            was not asked for.
        strata: of the pair.
    """

    index: int
    name0: str
    name1: str
    known: bool
    counts: dict[str, int]
    shares: dict[str, float]
    corner_errors: list[float] = field(default_factory=list)
    pose_errors: list[float] = field(default_factory=list)
    strata: dict[str, float] = field(default_factory=dict)


class MatchScore:
    """Collects the scores of pairs over any number of batches.

    Pairs of which nothing is known are left out. Scores that need what a set lacks (a homography, a
    pose, candidates) are absent.

    Args:
        homography: how to estimate homographies; ``None``: not at all, it takes time.
        pose: how to estimate poses; ``None``: not at all.

    Attributes:
        rows: one a pair, in the order in which they came.
    """

    def __init__(
        self, *, homography: RobustOptions | None = None, pose: RobustOptions | None = None
    ) -> None:
        self.homography = homography
        self.pose = pose
        self.rows: list[PairScore] = []

    def reset(self) -> None:
        """Forget all pairs."""
        self.rows = []

    def update(
        self,
        batch: PairBatch,
        truth: Supervision,
        matches: Matches,
        candidates: Matches | None = None,
    ) -> None:
        """Add a batch; any pair may be without matches.

        Args:
            batch: the pairs.
            truth: their ground truth.
            matches: predicted, above whatever threshold.
            candidates: all mutual nearest neighbours, without threshold and border, for the
                average precision; ``None``: it is left out.

        Raises:
            ValueError: matches that do not say which cells they are of.
        """
        if matches.cell0 is None or matches.cell1 is None:
            raise ValueError(
                "Matches without cell0 and cell1 cannot be compared with cells: take them from the "
                "matcher, or give both"
            )
        rows = self._rows(batch, truth, matches)
        if candidates is not None:
            _add_precision(rows, truth, candidates)
        for number, one in enumerate(matches.split()):
            if "homography" in batch and self.homography is not None:
                rows[number].corner_errors = _corner_errors(batch, number, one, self.homography)
            if "pose" in batch and "intrinsics0" in batch:
                self._add_pose(rows[number], batch, number, one)
        self.rows += [row for row in rows if row.known or row.shares]

    def _rows(self, batch: PairBatch, truth: Supervision, matches: Matches) -> list[PairScore]:
        assert matches.cell0 is not None and matches.cell1 is not None
        pairs = len(truth.known_B)
        counts = coarse_counts(truth, matches.batch_index, matches.cell0, matches.cell1)
        place_K2 = truth.warped0_BL2[matches.batch_index, matches.cell0]
        error_K = (place_K2 - matches.keypoints1).norm(dim=-1)
        shares = accuracy_at(error_K, matches.batch_index, pairs, MMA_PIXELS)
        known = truth.known_B.tolist()
        tables = {name: value.tolist() for name, value in vars(counts).items()}
        nameless = [""] * pairs
        names = batch.get("name0", nameless), batch.get("name1", nameless)
        strata = {key: value.tolist() for key, value in batch.get("strata", {}).items()}
        return [
            PairScore(
                int(batch["index"][pair]),
                names[0][pair],
                names[1][pair],
                known[pair],
                {name: values[pair] for name, values in tables.items()},
                {f"mma_{t:g}": float(shares[t][pair]) for t in MMA_PIXELS} if known[pair] else {},
                strata={key: values[pair] for key, values in strata.items()},
            )
            for pair in range(pairs)
        ]

    def _add_pose(self, row: PairScore, batch: PairBatch, pair: int, one: Matches) -> None:
        pose_44 = batch["pose"][pair]
        if not bool(pose_44.isfinite().all() & batch["intrinsics0"][pair].isfinite().all()):
            return
        error = epipolar_errors(
            one.keypoints0,
            one.keypoints1,
            one.batch_index,
            batch["intrinsics0"][pair : pair + 1],
            batch["intrinsics1"][pair : pair + 1],
            pose_44[None],
        )
        for t in EPIPOLAR:
            share = float((error < t).double().mean()) if len(one) else 0.0
            row.shares[f"epipolar_precision_{t:.0e}"] = share
        if self.pose is not None:
            row.pose_errors = _pose_errors(batch, pair, one, self.pose)

    def compute(self) -> dict[str, float]:
        """All scores over all pairs, see :func:`summarise`."""
        return summarise(self.rows)

    def by_stratum(self, name: str, edges: Sequence[float]) -> dict[str, dict[str, float]]:
        """The scores of the pairs of each interval of a stratum.

        Args:
            name: such as ``rotation``.
            edges: rising; pairs below the first and from the last on have groups of their own.

        Returns:
            Scores by interval, "< e", "[e, f)", "≥ f", with ``pairs`` among them; empty ones and
            pairs without the stratum are left out.
        """
        return {
            label: {"pairs": float(len(rows)), **summarise(rows)}
            for label, low, high in _intervals(edges)
            if (rows := [r for r in self.rows if low <= r.strata.get(name, math.nan) < high])
        }


def summarise(rows: Sequence[PairScore]) -> dict[str, float]:
    """Scores over pairs; from 0 to 1 but for the first two.

    ``matches`` and ``truth`` are means over the pairs. ``precision`` and ``recall`` (exact, and
    ``_1cell``: within one cell) are of all matches and all of the truth together; no match at all
    has precision 0. ``average_precision`` and ``mma_*`` are means over pairs. ``homography_auc_*``
    and ``pose_auc_*`` are means over the repeats of the estimation.
    """
    if not rows:
        return {}
    scores = {"matches": sum(row.counts["matches"] for row in rows) / len(rows)}
    known = [row for row in rows if row.known]
    total = {name: sum(row.counts[name] for row in known) for name in rows[0].counts}
    if known:
        scores["truth"] = total["truth"] / len(known)
        scores["precision"] = total["exact"] / max(total["judged"], 1)
        scores["precision_1cell"] = total["near"] / max(total["judged"], 1)
    if total["truth"]:
        scores["recall"] = total["found"] / total["truth"]
        scores["recall_1cell"] = total["found_near"] / total["truth"]
    for name in dict.fromkeys(name for row in rows for name in row.shares):
        values = [row.shares[name] for row in rows if name in row.shares]
        values = [value for value in values if not math.isnan(value)]
        if values:
            scores[name] = sum(values) / len(values)
    corners = [row.corner_errors for row in rows if row.corner_errors]
    poses = [row.pose_errors for row in rows if row.pose_errors]
    scores |= _aucs("homography_auc", corners, CORNER_PIXELS)
    return scores | _aucs("pose_auc", poses, POSE_DEGREES)


def _aucs(name: str, errors: list[list[float]], thresholds: Sequence[int]) -> dict[str, float]:
    if not errors:
        return {}
    by_repeat = torch.tensor(errors, dtype=torch.float64).unbind(1)
    areas = torch.tensor([error_auc(each, thresholds) for each in by_repeat]).mean(0)
    return {f"{name}_{t}": float(area) for t, area in zip(thresholds, areas, strict=True)}


def _add_precision(rows: list[PairScore], truth: Supervision, candidates: Matches) -> None:
    """Average precision; a candidate near its place that the truth does not list is left out."""
    if candidates.cell0 is None or candidates.cell1 is None:
        raise ValueError("Candidates need cell0 and cell1, as the matcher gives them")
    b = candidates.batch_index
    verdict = judge(truth, b, candidates.cell0, candidates.cell1)
    near = verdict.near & verdict.has_truth
    for name, positive, kept in (
        ("average_precision", verdict.exact, verdict.judged),
        ("average_precision_1cell", near, verdict.judged & (near | ~verdict.near)),
    ):
        areas = average_precision(
            candidates.confidence[kept], positive[kept], b[kept], truth.counts()
        )
        for row, area in zip(rows, areas.tolist(), strict=True):
            if row.known:
                row.shares[name] = area


def _corner_errors(
    batch: PairBatch, pair: int, one: Matches, options: RobustOptions
) -> list[float]:
    true_33 = batch["homography"][pair]
    if not bool(true_33.isfinite().all()):
        return []
    height, width = batch["size0"][pair].tolist()
    found = estimate_homography(one.keypoints0, one.keypoints1, options)
    return [corner_error(matrix, true_33, (height, width)) for matrix in found]


def _pose_errors(batch: PairBatch, pair: int, one: Matches, options: RobustOptions) -> list[float]:
    scale = float(torch.stack([batch["scale0"][pair], batch["scale1"][pair]]).mean())
    found = estimate_pose(
        one.keypoints0,
        one.keypoints1,
        batch["intrinsics0"][pair],
        batch["intrinsics1"][pair],
        replace(options, threshold=options.threshold / scale),
    )
    pose_44 = batch["pose"][pair].cpu()
    return [math.inf if pose is None else max(pose_error(*pose, pose_44)) for pose in found]


def _intervals(edges: Sequence[float]) -> list[tuple[str, float, float]]:
    bounds = [-math.inf, *edges, math.inf]
    labels = [f"< {edges[0]:g}"]
    labels += [f"[{low:g}, {high:g})" for low, high in zip(edges, edges[1:], strict=False)]
    labels.append(f"≥ {edges[-1]:g}")
    return list(zip(labels, bounds, bounds[1:], strict=False))
