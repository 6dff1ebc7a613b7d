"""Tissue against ground truth, and what must not be taken for it."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from isoattn.wsi.slides import Slide, TissueOptions, area_share, find_tissue
from isoattn.wsi.slides.tissue import segment
from isoattn.wsi.synthetic.layout import CELL

OPTIONS = TissueOptions()
PIXEL = 64.0
"""Square micrometres of a pixel at 8 mpp."""


def test_against_ground_truth(real: Path) -> None:
    truth = np.load(real / "t2048_gt.npz")["tis"]
    for name in ("t2048.tif", "t2048.svs", "dcm/0.dcm"):
        tissue = find_tissue(Slide(real / name))
        assert tissue.mask_HW.shape == truth.shape
        assert (tissue.mask_HW != truth).mean() < 0.001
        assert tissue.artefacts == 0 and tissue.damaged == 0


def test_against_the_cells_of_a_made_slide(made: Path, cells: np.ndarray) -> None:
    tissue = find_tissue(Slide(made / "good.tif"), TissueOptions(mpp=CELL * 0.5))
    assert tissue.mask_HW.shape == cells.shape
    assert (tissue.mask_HW != (cells > 0)).mean() < 0.02


def test_an_empty_slide_has_no_tissue() -> None:
    rng = np.random.default_rng(0)
    glass = rng.integers(238, 248, (80, 80, 3)).astype(np.uint8)
    mask, artefact, threshold = segment(glass, OPTIONS, pixel_area=PIXEL)
    assert not mask.any() and not artefact.any() and threshold == OPTIONS.floor
    white = np.full((80, 80, 3), 255, dtype=np.uint8)
    assert not segment(white, OPTIONS, pixel_area=PIXEL)[0].any()


def test_a_slide_without_glass_is_all_tissue() -> None:
    rows = np.linspace(0.35, 1.0, 80)[:, None, None]
    pink = (255 - rows * np.array([60, 180, 60]) * np.ones((80, 80, 1))).astype(np.uint8)
    mask, _, threshold = segment(pink, OPTIONS, pixel_area=PIXEL)
    assert mask.mean() > 0.95 and threshold == OPTIONS.ceiling


def marked(colour: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Tissue with a stroke of a pen across, and the stroke."""
    picture = Image.new("RGB", (100, 100), (244, 244, 244))
    stroke = Image.new("L", (100, 100))
    ImageDraw.Draw(picture).ellipse((20, 20, 80, 80), (200, 120, 190))
    for image, fill in ((picture, colour), (stroke, 255)):
        ImageDraw.Draw(image).line((5, 50, 95, 60), fill, 6)
    return np.asarray(picture), np.asarray(stroke) > 0


@pytest.mark.parametrize("colour", [(20, 140, 60), (30, 90, 200), (20, 20, 25), (0, 160, 170)])
def test_pen_and_black_ink_are_no_tissue(colour: tuple[int, int, int]) -> None:
    pixels, stroke = marked(colour)
    mask, artefact, _ = segment(pixels, OPTIONS, pixel_area=PIXEL)
    assert artefact[stroke].all() and not mask[stroke].any()
    assert mask[30:40, 45:55].all() and not mask[:15].any()


def test_the_rules_can_be_switched_off() -> None:
    pixels, stroke = marked((30, 90, 200))
    off = TissueOptions(pen_saturation=1.0, dark=0.0)
    mask, artefact, _ = segment(pixels, off, pixel_area=PIXEL)
    assert not artefact.any() and mask[stroke].mean() > 0.9


def test_stains_are_not_taken_for_pen() -> None:
    for colour in ((90, 60, 150), (230, 120, 180), (140, 90, 50)):  # haematoxylin, eosin, DAB
        pixels = np.full((60, 60, 3), 245, dtype=np.uint8)
        pixels[10:50, 10:50] = colour
        mask, artefact, _ = segment(pixels, OPTIONS, pixel_area=PIXEL)
        assert not artefact.any() and mask[15:45, 15:45].all()


def test_crumbs_are_dropped_and_pinholes_filled() -> None:
    pixels = np.full((100, 100, 3), 245, dtype=np.uint8)
    pixels[30:80, 30:80] = (200, 120, 190)
    pixels[50:54, 50:54] = 245  # 16 pixels of 64 square micrometres
    pixels[5:9, 5:9] = (200, 120, 190)
    mask, _, _ = segment(pixels, OPTIONS, pixel_area=PIXEL)
    assert mask[50:54, 50:54].all() and not mask[:20, :20].any()
    exact = TissueOptions(min_object=0, max_hole=0)
    mask, _, _ = segment(pixels, exact, pixel_area=PIXEL)
    assert not mask[51:53, 51:53].any() and mask[6:8, 6:8].all()


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match=r"floor below ceiling; got floor=0.5, ceiling=0.15"):
        TissueOptions(floor=0.5)
    with pytest.raises(ValueError, match=r"mpp is positive, .* got mpp=0"):
        TissueOptions(mpp=0)


@settings(deadline=None)
@given(
    seed=st.integers(0, 1000),
    downsample=st.sampled_from([1.0, 2.0, 3.5]),
    side=st.integers(1, 40),
    x=st.integers(-20, 60),
    y=st.integers(-20, 60),
)
def test_shares_are_exact(seed: int, downsample: float, side: int, x: int, y: int) -> None:
    mask = np.random.default_rng(seed).random((9, 13)) < 0.5
    fine = mask.repeat(7, 0).repeat(7, 1)  # 7 samples a mask pixel are whole for 3.5
    unit = downsample / 7
    centres = (np.arange(0, side, unit) + unit / 2)[:, None]
    if abs(round(side / unit) - side / unit) > 1e-9:
        return  # the brute force would have to cut a sample
    rows = np.floor((y + centres) / unit).astype(int)
    columns = np.floor((x + centres.T) / unit).astype(int)
    inside = (rows >= 0) & (rows < fine.shape[0]) & (columns >= 0) & (columns < fine.shape[1])
    held = np.zeros(inside.shape, dtype=bool)
    r, c = np.broadcast_arrays(rows, columns)
    held[inside] = fine[r[inside], c[inside]]
    got = area_share(mask, downsample, np.array([[x, y]]), side)
    # Samples are aligned with the mask only where the corner is a whole number of samples.
    aligned = abs(round(x / unit) - x / unit) < 1e-9 and abs(round(y / unit) - y / unit) < 1e-9
    if aligned:
        assert got[0] == pytest.approx(held.mean(), abs=1e-6)
    assert got.dtype == np.float32 and 0 <= got[0] <= 1
