"""What went wrong for users of other packages, each on a file of the kind they had."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import openslide
import pytest
from PIL import Image

from isoattn.wsi.features import TileDataset, tile_loader
from isoattn.wsi.slides import (
    DamagedRegion,
    MissingMpp,
    Slide,
    TileGrid,
    TilingOptions,
    UnreadableSlide,
    find_tissue,
    tile_slide,
)

Find = Callable[[str], Path]


def difference(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a.astype(float) - b.astype(float)).mean())


@pytest.mark.parametrize(
    ("mpp", "level", "ratio"), [(0.25, 0, 1), (0.5, 0, 2), (1.0, 1, 1), (2.0, 1, 2), (4.0, 2, 1)]
)
def test_levels_1_4_16_and_a_target_between_them(
    made: Path, pixels: np.ndarray, mpp: float, level: int, ratio: float
) -> None:
    # mahmoodlab/CLAM#163, #147: levels of 0.25, 1 and 4 mpp; 0.5 is asked for
    slide = Slide(made / "steps.tif")
    assert slide.facts.downsamples == (1, 4, 16)
    plan = slide.plan(mpp / slide.mpp)
    assert (plan.level, plan.ratio) == (level, ratio)
    size = round(256 * 0.25 / mpp)
    part = slide.read(256, 512, size, mpp)
    truth = Image.fromarray(pixels[512:768, 256:512]).resize((size, size), Image.Resampling.BOX)
    assert part.coverage == 1 and part.pixels_HW3.shape == (size, size, 3)
    # JPEG alone makes about 3 grey levels; a shift by one pixel makes 20.
    assert difference(part.pixels_HW3, np.asarray(truth)) < 6


def test_a_slide_without_mpp(slide_file: Find) -> None:
    # mahmoodlab/TRIDENT#14
    path = slide_file("nompp")
    with pytest.raises(MissingMpp, match=rf"{path.name} does not say .* Give .* mpp_override"):
        Slide(path).read(0, 0, 64, 0.5)
    slide = Slide(path, mpp_override=0.5)
    assert slide.read(0, 0, 64, 0.5).pixels_HW3.shape == (64, 64, 3)
    assert slide.resolution.source == "override" and slide.mpp == 0.5
    # The picture needs no pixel size.
    assert max(Slide(path).thumbnail(100).size) == 100


def test_what_was_not_scanned_is_white_and_no_tissue(made: Path, pixels: np.ndarray) -> None:
    # openslide/openslide#443: two tiles of byte count 0
    raw = openslide.OpenSlide(str(made / "sparse.tif")).read_region((256, 256), 0, (256, 256))
    assert np.asarray(raw)[..., 3].max() == 0
    assert np.asarray(raw.convert("RGB")).max() == 0  # black, had alpha been dropped
    slide = Slide(made / "sparse.tif")
    empty = slide.read(256, 256, 256, 0.5)
    assert empty.coverage == 0 and empty.pixels_HW3.min() == 255
    half = slide.read(128, 256, 256, 0.5)
    assert half.coverage == 0.5 and half.pixels_HW3[:, 128:].min() == 255
    assert difference(half.pixels_HW3[:, :120], pixels[256:512, 128:248]) < 6
    tissue = find_tissue(slide)
    side = round(256 / tissue.downsample)
    hole = tissue.mask_HW[side : 2 * side, side : 2 * side]
    there = find_tissue(Slide(made / "good.tif")).mask_HW[side : 2 * side, side : 2 * side]
    assert hole[1:-1, 1:-1].sum() == 0 and there.all() and tissue.share > 0.2
    grid = tile_slide(slide, tissue, TilingOptions(size=256))
    assert [256, 256] not in grid.coords_N2.tolist() and len(grid) > 3


def test_border_tiles(slide_file: Find) -> None:
    # TissueImageAnalytics/tiatoolbox#710
    slide = Slide(slide_file("tiff"))
    width, height = slide.dimensions
    corner = slide.read(width - 64, height - 64, 256, 0.5)
    assert corner.coverage == 0.0625
    assert corner.pixels_HW3[64:].min() == 255 and corner.pixels_HW3[:, 64:].min() == 255
    outside = slide.read(5000, 5000, 256, 0.5)
    assert outside.coverage == 0 and outside.pixels_HW3.min() == 255
    grid = tile_slide(slide, find_tissue(slide), TilingOptions(size=256, stride=96, min_tissue=0.0))
    assert (grid.coords_N2 < [width, height]).all() and (grid.coverage_N > 0).all()
    over = (grid.coords_N2 + 256 > [width, height]).any(1)
    assert over.any() and (grid.coverage_N[over] < 1).all() and (grid.coverage_N[~over] == 1).all()
    for place in np.flatnonzero(over)[:3]:
        x, y = grid.coords_N2[place].tolist()
        assert slide.read(x, y, 256, 0.5).coverage == pytest.approx(grid.coverage_N[place])


def test_one_corrupt_tile_costs_one_tile(slide_file: Find) -> None:
    # mahmoodlab/TRIDENT#92: an error sticks to OpenSlide's handle
    path = slide_file("corrupt")
    slide = Slide(path)
    width, height = slide.dimensions
    places = [(x, y) for y in range(0, height, 256) for x in range(0, width, 256)]
    handle = openslide.OpenSlide(str(path))
    naive, ours = 0, []
    for x, y in places:
        try:
            handle.read_region((x, y), 0, (256, 256))
        except openslide.OpenSlideError:
            naive += 1
        try:
            slide.read(x, y, 256, 0.5)
        except DamagedRegion as error:
            ours.append((x, y))
            assert path.name in str(error) and f"({x}, {y})" in str(error)
    bad = (768, 768) if width == 2048 else (256, 256)
    assert ours == [bad]
    assert naive == len(places) - places.index(bad) == {2048: 37, 1024: 11}[width]


def test_a_truncated_slide(slide_file: Find) -> None:
    path = slide_file("trunc")
    with pytest.raises(UnreadableSlide, match=r"does not recognise .*trunc.svs.*cut short") as info:
        Slide(path).read(0, 0, 64, 0.5)
    assert f"{path.stat().st_size:,} bytes" in str(info.value)


def test_spawned_workers_open_their_own_handle(slide_file: Find) -> None:
    # mahmoodlab/TRIDENT pull request 29: the handle cannot be pickled
    slide = Slide(slide_file("tiff"))
    options = TilingOptions(size=128)
    grid = tile_slide(slide, find_tissue(slide), options)
    few = TileGrid(grid.coords_N2[:6], grid.tissue_N[:6], grid.coverage_N[:6], grid.side, options)
    assert slide._handle is not None
    for batch in tile_loader(TileDataset(slide, few), 6, readers=1):
        assert batch.position.tolist() == list(range(6))
        for i, (x, y) in enumerate(few.coords_N2.tolist()):
            here = slide.read(x, y, 128, 0.5).pixels_HW3
            assert np.array_equal(batch.pixels_HW3[i].numpy(), here)
