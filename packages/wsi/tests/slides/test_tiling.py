"""The grid: which tiles, in which order, and none outside."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isoattn.wsi.slides import NoTissue, Slide, TilingOptions, find_tissue, tile_slide
from isoattn.wsi.slides.tiling import grid


@pytest.mark.parametrize(("size", "half", "some"), [(256, 34, 48), (128, 139, 168), (64, 565, 610)])
def test_counts_of_the_ground_truth(real: Path, size: int, half: int, some: int) -> None:
    slide = Slide(real / "t2048.tif")
    tissue = find_tissue(slide)
    assert len(tile_slide(slide, tissue, TilingOptions(size=size))) == half
    assert len(tile_slide(slide, tissue, TilingOptions(size=size, min_tissue=0.0))) == some


def test_an_exact_pixel_size(made: Path) -> None:
    slide = Slide(made / "steps.tif")  # 0.25 mpp
    tiles = tile_slide(slide, find_tissue(slide), TilingOptions(mpp=0.6, size=100, min_tissue=0.01))
    assert tiles.side == pytest.approx(240)
    steps = np.unique(tiles.coords_N2[:, 0])
    assert set(steps.tolist()) <= {0, 240, 480, 720, 960}


def test_rows_come_one_after_the_other_and_always_the_same(made: Path) -> None:
    slide = Slide(made / "good.tif")
    tissue = find_tissue(slide)
    options = TilingOptions(size=64, stride=48)
    first, again = (tile_slide(slide, tissue, options) for _ in range(2))
    assert np.array_equal(first.coords_N2, again.coords_N2)
    order = first.coords_N2[:, 1] * 10_000 + first.coords_N2[:, 0]
    assert (np.diff(order) > 0).all() and first.coords_N2.dtype == np.int64
    assert (first.tissue_N >= 0.5).all()


def test_min_coverage(made: Path) -> None:
    slide = Slide(made / "good.tif")
    tissue = find_tissue(slide)
    for least in (0.0, 0.9, 1.0):
        tiles = tile_slide(slide, tissue, TilingOptions(size=240, min_tissue=0, min_coverage=least))
        assert (tiles.coverage_N >= least).all()
    assert (tiles.coords_N2 + 240 <= 1024).all()


@settings(deadline=None)
@given(width=st.integers(1, 3000), height=st.integers(1, 3000), step=st.floats(20.0, 700.0))
def test_the_grid_covers_the_slide_and_begins_on_it(width: int, height: int, step: float) -> None:
    coords = grid(width, height, step)
    assert coords[0].tolist() == [0, 0] and (coords <= [width, height]).all()
    assert (coords.max(0) + step >= [width - 1, height - 1]).all()
    assert len(np.unique(coords, axis=0)) == len(coords)


def test_no_tile_left(made: Path) -> None:
    slide = Slide(made / "good.tif")
    tissue = find_tissue(slide)
    with pytest.raises(NoTissue, match=r"No tile of .*good.tif .* min_tissue is 1.0.* overlay"):
        tile_slide(slide, tissue, TilingOptions(size=1024, min_tissue=1.0))


def test_a_slide_smaller_than_a_tile(made: Path) -> None:
    slide = Slide(made / "good.tif")
    with pytest.raises(NoTissue, match=r"tile of 4096 pixels .* the whole slide is 1024 x 1024"):
        tile_slide(slide, find_tissue(slide), TilingOptions(size=4096))


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match="positive; got mpp=0.5, size=0, stride=None"):
        TilingOptions(size=0)
    with pytest.raises(ValueError, match=r"lie in 0..1; got min_tissue=1.5"):
        TilingOptions(min_tissue=1.5)
