"""Maps of cells: exact areas, distances kept."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from isoattn.wsi.synthetic.layout import (
    GLASS,
    MIMIC,
    NORMAL,
    TUMOUR,
    Island,
    LayoutError,
    draw_tissue,
    grow,
    place_islands,
)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), share=st.floats(0.3, 0.8))
def test_tissue_has_its_share(seed: int, share: float) -> None:
    tissue = draw_tissue(96, 96, share, np.random.default_rng(seed))
    assert share - 0.15 < tissue.mean() < share + 0.15
    again = draw_tissue(96, 96, share, np.random.default_rng(seed))
    assert np.array_equal(tissue, again)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), cells=st.integers(1, 400))
def test_islands_have_exactly_their_area(seed: int, cells: int) -> None:
    rng = np.random.default_rng(seed)
    free = np.ones((60, 60), dtype=bool)
    free[:, :20] = False
    grown = grow((30, 35), cells, free, rng)
    assert grown.sum() == cells and not grown[:, :20].any()
    y, x = np.nonzero(grown)
    assert np.hypot(y - 30, x - 35).max() < 3 * np.sqrt(cells / np.pi) + 3  # compact


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_distances_are_kept(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tissue = np.ones((128, 128), dtype=bool)
    islands = [Island(TUMOUR, 60), Island(MIMIC, 60), Island(TUMOUR, 60), Island(MIMIC, 60)]
    cells = place_islands(tissue, islands, rng, gap=8, near={1: 0}, reach=12, apart=30)
    assert (cells == TUMOUR).sum() == (cells == MIMIC).sum() == 120
    away = ndimage.distance_transform_edt(cells != TUMOUR)[cells == MIMIC]
    assert 8 < away.min() <= 12 + Island(MIMIC, 60).radius
    pieces, count = ndimage.label(ndimage.binary_closing(cells == MIMIC, iterations=2))
    nearest = sorted(float(away[pieces[cells == MIMIC] == i].min()) for i in range(1, count + 1))
    assert nearest[-1] > 30 - 1


def test_cells_lie_in_the_tissue() -> None:
    tissue = draw_tissue(96, 96, 0.5, np.random.default_rng(1))
    cells = place_islands(tissue, [Island(TUMOUR, 40)], np.random.default_rng(2), gap=2)
    assert ((cells != GLASS) == tissue).all()
    assert (cells == TUMOUR).sum() == 40 and (cells == NORMAL).sum() == tissue.sum() - 40


def test_no_room() -> None:
    tissue = np.ones((40, 40), dtype=bool)
    with pytest.raises(LayoutError, match=r"No room for island 2 of 2, 900 cells .* larger slides"):
        place_islands(
            tissue, [Island(TUMOUR, 500), Island(MIMIC, 900)], np.random.default_rng(0), gap=4
        )
