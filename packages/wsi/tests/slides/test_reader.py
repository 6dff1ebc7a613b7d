"""The same pixels from every container; handles that come and go; what cannot be opened."""

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isoattn.wsi.slides import Slide, TooFine, UnreadableSlide, slide_name
from isoattn.wsi.slides.resolution import LEVEL_TOLERANCE, plan_read

Find = Callable[[str], Path]


def test_containers_hold_the_same_pixels(slide_file: Find) -> None:
    slides = {kind: Slide(slide_file(kind)) for kind in ("tiff", "svs", "dicom")}
    vendors = {kind: slide.facts.vendor for kind, slide in slides.items()}
    assert vendors == {"tiff": "generic-tiff", "svs": "aperio", "dicom": "dicom"}
    assert {slide.mpp for slide in slides.values()} == {0.5}
    parts = [slide.read(300, 200, 300, 0.5).pixels_HW3 for slide in slides.values()]
    assert np.array_equal(parts[0], parts[1]) and np.array_equal(parts[0], parts[2])


def test_any_file_of_a_dicom_series_is_the_slide(made: Path) -> None:
    slides = [Slide(made / "series" / f"{i}.dcm") for i in range(3)]
    assert {slide.dimensions for slide in slides} == {(1024, 1024)}
    assert {slide.name for slide in slides} == {"series"}
    assert slides[0].facts.properties["openslide.objective-power"] == "20"


def test_a_real_aperio_slide(real: Path) -> None:
    slide = Slide(real / "small.svs")
    assert slide.dimensions == (16, 16) and slide.mpp == 0.499
    assert slide.read(0, 0, 16, 0.499).coverage == 1
    assert slide.thumbnail(64).size == (16, 16)  # never enlarged


def test_nothing_is_opened_before_it_is_needed(tmp_path: Path, made: Path) -> None:
    slide = Slide(tmp_path / "later.tif")
    (tmp_path / "later.tif").write_bytes((made / "good.tif").read_bytes())
    assert slide.dimensions == (1024, 1024)


def test_a_slide_is_pickled_without_its_handle(made: Path) -> None:
    slide = Slide(made / "good.tif", mpp_override=0.4)
    first = slide.read(100, 100, 64, 0.4)
    twin = pickle.loads(pickle.dumps(slide))
    assert twin._handle is None and twin.mpp == 0.4
    assert np.array_equal(twin.read(100, 100, 64, 0.4).pixels_HW3, first.pixels_HW3)
    slide.close()
    slide.close()
    assert np.array_equal(slide.read(100, 100, 64, 0.4).pixels_HW3, first.pixels_HW3)


def test_a_handle_of_another_process_is_left_alone(made: Path) -> None:
    slide = Slide(made / "good.tif")
    handle = slide.handle
    slide._owner += 1  # as after a fork
    assert slide.handle is not handle
    assert handle.dimensions == (1024, 1024)  # still open, for its owner


def test_an_override_beats_the_metadata(made: Path) -> None:
    slide = Slide(made / "good.tif", mpp_override=0.25)
    assert slide.resolution.source == "override"
    assert slide.plan(0.5 / slide.mpp).scale == 2


def test_thumbnail(made: Path, pixels: np.ndarray) -> None:
    small = np.asarray(Slide(made / "good.tif").thumbnail(128)).astype(float)
    assert small.shape == (128, 128, 3)
    assert np.abs(small - pixels.reshape(128, 8, 128, 8, 3).mean((1, 3))).mean() < 3


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(UnreadableSlide, match=r"gone.svs does not exist\."):
        _ = Slide(tmp_path / "gone.svs").dimensions
    with pytest.raises(UnreadableSlide, match="is a folder, not a file"):
        _ = Slide(tmp_path).dimensions
    (tmp_path / "empty.svs").touch()
    with pytest.raises(UnreadableSlide, match=r"empty.svs is empty \(0 bytes\)"):
        _ = Slide(tmp_path / "empty.svs").dimensions
    (tmp_path / "text.svs").write_text("no slide")
    with pytest.raises(UnreadableSlide, match=r"does not recognise .*text.svs \(8 bytes\)"):
        _ = Slide(tmp_path / "text.svs").dimensions


def test_asking_for_more_than_was_scanned(made: Path) -> None:
    with pytest.raises(TooFine, match=r"good.tif was scanned 2 times coarser .* larger mpp"):
        Slide(made / "good.tif").read(0, 0, 64, 0.25)
    # Scanners vary by a few per cent around 0.5 and 0.25.
    slide = Slide(made / "good.tif", mpp_override=0.504)
    assert slide.read(256, 256, 256, 0.5).pixels_HW3.shape == (256, 256, 3)


@settings(deadline=None)
@given(
    steps=st.lists(st.floats(1.5, 5.0), max_size=6),
    scale=st.floats(0.95, 200.0),
)
def test_the_level_is_the_coarsest_that_is_fine_enough(steps: list[float], scale: float) -> None:
    downsamples = np.cumprod([1.0, *steps]).tolist()
    plan = plan_read("a", downsamples, scale)
    assert plan.downsample == downsamples[plan.level]
    limit = scale * (1 + LEVEL_TOLERANCE)
    assert plan.downsample <= limit or plan.level == 0
    assert plan.level == len(downsamples) - 1 or downsamples[plan.level + 1] > limit


@settings(max_examples=25, deadline=None)
@given(
    x=st.integers(-100, 1100),
    y=st.integers(-100, 1100),
    size=st.integers(1, 90),
    mpp=st.floats(0.47, 8.0),
)
def test_any_read_has_its_size_and_a_coverage(
    made: Path, x: int, y: int, size: int, mpp: float
) -> None:
    part = SLIDES.setdefault(made, Slide(made / "good.tif")).read(x, y, size, mpp)
    assert part.pixels_HW3.shape == (size, size, 3) and part.pixels_HW3.dtype == np.uint8
    assert 0 <= part.coverage <= 1
    side = size * mpp / 0.5
    inside = max(0.0, min(x + side, 1024) - max(x, 0)) * max(0.0, min(y + side, 1024) - max(y, 0))
    # Whole pixels of the level are read, so the edge is known to a pixel of it.
    slack = 4 * 4 * (side + 8) / side**2
    assert abs(part.coverage - inside / side**2) <= slack


SLIDES: dict[Path, Slide] = {}


def test_names() -> None:
    assert slide_name(Path("a/b.c.svs")) == "b.c" and slide_name(Path("a/series/0.dcm")) == "series"
