"""Pyramids read back through OpenSlide."""

from pathlib import Path

import numpy as np
import openslide
import pydicom
import pytest

from isoattn.wsi.slides import Slide
from isoattn.wsi.synthetic import pyramid, write_slide


def test_a_pyramid_is_made_of_means() -> None:
    rng = np.random.default_rng(0)
    picture = rng.integers(0, 256, (64, 96, 3)).astype(np.uint8)
    levels = pyramid(picture, (1, 4, 16))
    assert [level.shape for level in levels] == [(64, 96, 3), (16, 24, 3), (4, 6, 3)]
    means = picture.reshape(16, 4, 24, 4, 3).mean((1, 3))
    assert np.abs(levels[1] - means).max() <= 0.51
    for steps in [(2, 4), (1, 4, 2), (1, 128), ()]:
        with pytest.raises(ValueError, match="ascend from 1 and stay within the picture of 96 x"):
            pyramid(picture, steps)


@pytest.mark.parametrize("container", ["tiff", "svs", "dicom"])
def test_a_picture_of_any_size_comes_back(container: str, tmp_path: Path) -> None:
    y, x = np.mgrid[0:500, 0:700]
    wave = 128 + 60 * np.sin((x + y) / 60)
    picture = np.stack([x * 255 / 700, y * 255 / 500, wave], -1).astype(np.uint8)
    path = write_slide(
        tmp_path / "a",
        pyramid(picture),
        container=container,
        mpp=0.25,
        patient="P7",  # type: ignore[arg-type]
    )
    slide = Slide(path)
    assert slide.dimensions == (700, 500) and slide.mpp == pytest.approx(0.25, rel=1e-4)
    assert slide.facts.downsamples == pytest.approx((1, 2, 4))
    got = slide.handle.read_region((0, 0), 0, (700, 500)).convert("RGB")
    error = np.abs(np.asarray(got).astype(int) - picture)
    assert error.mean() < 3 and error[-8:].mean() < 5  # the edge is as good as the rest
    power = slide.facts.properties.get(openslide.PROPERTY_NAME_OBJECTIVE_POWER)
    assert power == (None if container == "tiff" else "40")
    if container == "dicom":
        assert pydicom.dcmread(path).PatientID == "P7"


def test_mpp_can_be_left_out_of_a_tiff_alone(tmp_path: Path) -> None:
    picture = np.full((300, 300, 3), 200, dtype=np.uint8)
    path = write_slide(tmp_path / "a.tif", [picture], mpp=None)
    assert "openslide.mpp-x" not in Slide(path).facts.properties
    with pytest.raises(ValueError, match="without mpp can be written as tiff alone, not as svs"):
        write_slide(tmp_path / "a.svs", [picture], container="svs", mpp=None)


def test_the_same_slide_has_the_same_bytes(tmp_path: Path) -> None:
    picture = np.full((300, 300, 3), 200, dtype=np.uint8)
    for container in ("tiff", "svs", "dicom"):
        files = [
            write_slide(tmp_path / run / f"a {container}", [picture], container=container)  # type: ignore[arg-type]
            for run in ("first", "second")
        ]
        assert files[0].read_bytes() == files[1].read_bytes()
