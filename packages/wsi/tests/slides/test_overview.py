"""The slide in small, in blocks, with holes where it is damaged."""

from pathlib import Path

import numpy as np
import pytest

from isoattn.wsi.slides import Slide
from isoattn.wsi.slides import overview as module
from isoattn.wsi.slides.overview import read_overview


def test_blocks_make_the_same_picture(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slide = Slide(made / "good.tif")
    whole = read_overview(slide, 4.0).pixels_HW3
    monkeypatch.setattr(module, "BLOCK", 100)
    assert np.array_equal(read_overview(slide, 4.0).pixels_HW3, whole)


def test_a_size_that_is_no_multiple(made: Path) -> None:
    slide = Slide(made / "good.tif")
    overview = read_overview(slide, 7.3)
    assert overview.pixels_HW3.shape == (141, 141, 3)
    assert overview.damaged == 0


def test_only_the_damaged_part_is_lost(made: Path, pixels: np.ndarray) -> None:
    overview = read_overview(Slide(made / "corrupt.tif"), 1.0)
    assert overview.damaged == 1 / 16 and overview.damaged_HW[256:512, 256:512].all()
    assert (overview.pixels_HW3[256:512, 256:512] == 255).all()
    rest = ~overview.damaged_HW
    assert np.abs(overview.pixels_HW3[rest].astype(int) - pixels[rest]).mean() < 6
