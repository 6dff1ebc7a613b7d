"""Scores over pairs: by hand, batch by batch as at once, with empty and unknown pairs."""

import math

import pytest
import torch

from isoattn.matching.data import Pair, PairBatch, collate
from isoattn.matching.matches import Matches
from isoattn.matching.metrics import STRATUM_EDGES, MatchScore, RobustOptions, summarise
from isoattn.matching.models.cells import cell_points
from isoattn.matching.supervision import Supervision, supervise

SIZE = (32, 40)  # 4 x 5 cells
QUICK = RobustOptions(3.0, 0.99, repeats=2)


def pair(index: int, shift: float | None = 0.0, **strata: float) -> Pair:
    matrix = torch.tensor([[1.0, 0, shift or 0], [0, 1, 0], [0, 0, 1]])
    known = None if shift is None else matrix
    return Pair(torch.zeros(SIZE), torch.zeros(SIZE), index, homography=known, strata=strata)


def predicted(pairs: int, *found: tuple[int, int, int, float]) -> Matches:
    """From (pair, cell 0, cell 1, confidence)."""
    rows = torch.tensor(found, dtype=torch.float64).reshape(-1, 4)
    b, i, j = rows[:, :3].long().unbind(1)
    points = [cell_points(cell, (4, 5)) for cell in (i, j)]
    return Matches(*points, rows[:, 3].float(), b, pairs, i, j)


def exact(truth: Supervision) -> Matches:
    found = zip(truth.b.tolist(), truth.i.tolist(), truth.j.tolist(), strict=True)
    return predicted(len(truth.known_B), *((b, i, j, 0.9) for b, i, j in found))


def scored(batch: PairBatch, matches: Matches, **options: RobustOptions) -> MatchScore:
    score = MatchScore(**options)
    score.update(batch, supervise(batch), matches, matches)
    return score


def test_scores_by_hand():
    batch = collate([pair(0, 8.0), pair(1)])
    # Cell 0 of pair 0 goes to cell 1. In pair 1 all stays where it is.
    matches = predicted(2, (0, 0, 1, 0.9), (0, 1, 1, 0.8), (0, 2, 19, 0.7), (1, 3, 3, 0.6))
    scores = scored(batch, matches).compute()
    assert scores["matches"] == 2 and scores["truth"] == (16 + 20) / 2
    assert scores["precision"] == 2 / 4 and scores["precision_1cell"] == 3 / 4
    assert scores["recall"] == 2 / 36 and scores["recall_1cell"] == 3 / 36
    assert scores["average_precision"] == pytest.approx((1 / 16 + 1 / 20) / 2)
    assert scores["average_precision_1cell"] == pytest.approx((2 / 16 + 1 / 20) / 2)
    assert scores["mma_1"] == pytest.approx((1 / 3 + 1) / 2)
    assert scores["mma_10"] == pytest.approx((2 / 3 + 1) / 2)
    assert "homography_auc_3" not in scores and "pose_auc_5" not in scores


def test_perfect_matches_score_one():
    batch = collate([pair(0, 8.0), pair(1, -8.0)])
    scores = scored(batch, exact(supervise(batch)), homography=QUICK).compute()
    rates = {name: value for name, value in scores.items() if name not in ("matches", "truth")}
    assert all(value == pytest.approx(1.0, abs=1e-4) for value in rates.values()), rates
    assert {f"homography_auc_{t}" for t in (1, 3, 5, 10)} < set(rates)


def test_no_match_anywhere():
    # M8: a threshold of 0.2 may leave nothing; the average precision still shows progress.
    batch = collate([pair(0, 8.0), pair(1)])
    score = MatchScore(homography=QUICK)
    candidates = predicted(2, (0, 0, 1, 0.1), (1, 3, 3, 0.05))
    score.update(batch, supervise(batch), predicted(2), candidates)
    scores = score.compute()
    for name in ("matches", "precision", "recall", "mma_10", "homography_auc_10"):
        assert scores[name] == 0.0
    assert scores["average_precision"] == pytest.approx((1 / 16 + 1 / 20) / 2)


def test_batches_of_any_size_give_the_same():
    # M10: batch of 3, one pair without matches.
    pairs = [pair(0, 8.0), pair(1), pair(2, -8.0)]
    matches = predicted(3, (0, 0, 1, 0.9), (0, 2, 1, 0.8), (2, 4, 3, 0.7), (2, 9, 8, 0.6))
    whole = scored(collate(pairs), matches, homography=QUICK)
    single = MatchScore(homography=QUICK)
    for one, own in zip(pairs, matches.split(), strict=True):
        batch = collate([one])
        single.update(batch, supervise(batch), own, own)
    assert whole.compute() == single.compute()
    assert [row.counts for row in whole.rows] == [row.counts for row in single.rows]
    assert whole.rows[1].counts["matches"] == 0
    assert all(math.isinf(error) for error in whole.rows[1].corner_errors)


def test_pairs_without_ground_truth_are_left_out():
    batch = collate([pair(0, None), pair(1)])
    score = scored(batch, predicted(2, (0, 0, 5, 0.9), (1, 3, 3, 0.6)), homography=QUICK)
    assert [row.index for row in score.rows] == [1] and score.compute()["precision"] == 1.0
    assert summarise([]) == {}
    score.reset()
    assert score.compute() == {}


def test_a_known_pair_that_does_not_overlap_counts():
    batch = collate([pair(0, 900.0), pair(1)])
    scores = scored(batch, predicted(2, (0, 0, 5, 0.9), (1, 3, 3, 0.6))).compute()
    assert scores["precision"] == 0.5 and scores["recall"] == 1 / 20


def test_pairs_with_a_pose_alone():
    one = pair(0, None)
    one.pose = torch.eye(4)
    one.pose[0, 3] = -1.0  # a stereo pair: rows correspond
    one.intrinsics0 = one.intrinsics1 = torch.tensor([[40.0, 0, 20], [0, 40, 16], [0, 0, 1]])
    unposed = pair(1, None)
    batch = collate([one, unposed])
    batch.pop("homography", None)
    found = [(0, i, i - 1, 0.9) for i in (1, 3, 6, 8, 12, 17)] + [(0, 4, 9, 0.9), (1, 0, 0, 0.9)]
    score = scored(batch, predicted(2, *found), pose=RobustOptions(0.5, 0.99, repeats=2))
    scores = score.compute()
    assert [row.index for row in score.rows] == [0]
    assert scores["epipolar_precision_5e-04"] == pytest.approx(6 / 7)
    assert "precision" not in scores and len(score.rows[0].pose_errors) == 2
    assert {f"pose_auc_{t}" for t in (5, 10, 20)} < set(scores)


def test_strata():
    batch = collate([pair(0, 8.0, rotation=5.0), pair(1, rotation=15.0), pair(2, rotation=40.0)])
    matches = predicted(3, (0, 0, 1, 0.9), (1, 0, 7, 0.9))
    groups = scored(batch, matches).by_stratum("rotation", [10, 20, 30])
    assert list(groups) == ["< 10", "[10, 20)", "≥ 30"]
    assert [groups[label]["pairs"] for label in groups] == [1, 1, 1]
    assert [groups[label]["precision"] for label in groups] == [1.0, 0.0, 0.0]
    assert scored(batch, matches).by_stratum("overlap", [0.5]) == {}
    for name, edges in STRATUM_EDGES.items():
        groups = scored(batch, matches).by_stratum(name, edges)
        assert sum(group["pairs"] for group in groups.values()) == (3 if name == "rotation" else 0)


def test_matches_must_say_their_cells():
    batch = collate([pair(0)])
    matches = predicted(1, (0, 0, 0, 0.5))
    bare = Matches(
        matches.keypoints0, matches.keypoints1, matches.confidence, torch.zeros(1).long(), 1
    )
    with pytest.raises(ValueError, match="Matches without cell0 and cell1 cannot be compared"):
        MatchScore().update(batch, supervise(batch), bare)
    with pytest.raises(ValueError, match="Candidates need cell0 and cell1"):
        MatchScore().update(batch, supervise(batch), matches, bare)
