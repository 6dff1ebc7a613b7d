"""Scores against a mask."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from isoattn.wsi.heatmap import TileScores, compare_with_truth, score_map
from isoattn.wsi.heatmap.truth import iou


def grid_scores(values: np.ndarray, side: int = 4) -> TileScores:
    rows, columns = values.shape
    x, y = np.meshgrid(np.arange(columns) * side, np.arange(rows) * side)
    coords = np.stack([x, y], -1).reshape(-1, 2).astype(np.int64)
    return TileScores("a", coords, values.ravel().astype(np.float32), side)


def mask(shape: tuple[int, int] = (24, 24)) -> np.ndarray:
    made = np.zeros(shape, dtype=bool)
    made[8:16, 8:20] = True
    return made


def test_perfect_scores() -> None:
    truth = mask()
    share = truth.reshape(6, 4, 6, 4).mean((1, 3))
    found = compare_with_truth(grid_scores(share), truth, 1.0, threshold=0.5)
    assert (found.auc, found.iou, found.best_iou) == (1, 1, 1)
    assert (found.true_tiles, found.tiles, found.best_threshold) == (6, 36, 1)


def test_what_no_tile_covers_is_not_found() -> None:
    truth = mask()
    scores = TileScores("a", np.array([[8, 8]]), np.array([1.0], np.float32), 8.0)
    found = compare_with_truth(scores, truth, 1.0, threshold=0.5)
    assert found.iou == found.best_iou == pytest.approx(64 / 96)
    assert found.auc is None  # the only tile is true


@settings(deadline=None)
@given(
    seed=st.integers(0, 10_000), levels=st.integers(1, 6), downsample=st.sampled_from([1.0, 2.0])
)
def test_against_brute_force(seed: int, levels: int, downsample: float) -> None:
    rng = np.random.default_rng(seed)
    values = rng.integers(0, levels, (6, 6)).astype(np.float32)  # with ties
    truth = rng.random((24, 24)) < 0.4
    scores = grid_scores(values, side=round(4 * downsample))
    found = compare_with_truth(scores, truth, downsample, threshold=1.0)
    drawn = score_map(scores, truth.shape, downsample)
    every = {t: iou(drawn >= t, truth) for t in np.unique(values)}
    assert found.best_iou == pytest.approx(max(every.values()))
    assert every[found.best_threshold] == pytest.approx(found.best_iou)
    assert found.iou == pytest.approx(iou(drawn >= 1.0, truth))
    true = truth.reshape(6, 4, 6, 4).mean((1, 3)).ravel() >= 0.5
    if true.any() and not true.all():
        assert found.auc == pytest.approx(roc_auc_score(true, values.ravel()))


def test_without_a_declared_threshold_there_is_no_iou() -> None:
    found = compare_with_truth(grid_scores(np.eye(6)), mask(), 1.0)
    assert found.iou is None and found.threshold is None and found.best_iou > 0


def test_an_empty_mask_has_nothing_to_find() -> None:
    with pytest.raises(ValueError, match="mask of a is empty, .* positive slides only"):
        compare_with_truth(grid_scores(np.eye(6)), np.zeros((24, 24), bool), 1.0)
