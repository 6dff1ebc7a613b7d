"""Scores laid out as a map."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isoattn.wsi.heatmap import TileScores, score_map


def make(coords: list[tuple[int, int]], values: list[float], side: float = 8.0) -> TileScores:
    places = np.array(coords, dtype=np.int64).reshape(-1, 2)
    return TileScores("a", places, np.array(values, dtype=np.float32), side)


@settings(deadline=None)
@given(
    tiles=st.lists(
        st.tuples(st.integers(0, 40), st.integers(0, 40), st.floats(-5, 5, width=32)),
        min_size=1,
        max_size=12,
    ),
    downsample=st.sampled_from([1.0, 2.0, 3.0]),
)
def test_each_pixel_is_the_mean_of_its_tiles(
    tiles: list[tuple[int, int, float]], downsample: float
) -> None:
    scores = make([(x, y) for x, y, _ in tiles], [v for *_, v in tiles])
    got = score_map(scores, (15, 17), downsample)
    total, count = np.zeros((15, 17)), np.zeros((15, 17))
    for x, y, value in tiles:
        left, top = round(x / downsample), round(y / downsample)
        right = max(left + 1, round((x + 8) / downsample))
        bottom = max(top + 1, round((y + 8) / downsample))
        total[top:bottom, left:right] += value
        count[top:bottom, left:right] += 1
    assert np.array_equal(np.isnan(got), count == 0)
    np.testing.assert_allclose(got[count > 0], (total / np.maximum(count, 1))[count > 0], atol=1e-5)


def test_a_tile_smaller_than_a_pixel_shows() -> None:
    got = score_map(make([(100, 50)], [3.0]), (10, 20), 16.0)
    assert (~np.isnan(got)).sum() == 1 and got[3, 6] == 3


def test_signed() -> None:
    assert make([(0, 0), (8, 0)], [0.1, -0.1]).signed and not make([(0, 0)], [0.1]).signed


def test_messages() -> None:
    with pytest.raises(
        ValueError, match=r"one score and one \(x, y\) each, at least one tile; got"
    ):
        make([(0, 0)], [1.0, 2.0])
    with pytest.raises(ValueError, match=r"got scores \(0,\) and coordinates \(0, 2\)"):
        make([], [])
    with pytest.raises(ValueError, match=r"scores of a are not finite, .* tiles \[1\]"):
        make([(0, 0), (8, 0)], [1.0, float("nan")])
    with pytest.raises(ValueError, match="side of a tile is positive, got 0"):
        make([(0, 0)], [1.0], side=0.0)
