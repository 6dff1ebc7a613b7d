"""Pixel sizes: who says so, and what is believed."""

import pytest

from isoattn.wsi.slides import ImplausibleMpp, MissingMpp
from isoattn.wsi.slides.resolution import ReadPlan, resolve_mpp

X, Y = "openslide.mpp-x", "openslide.mpp-y"


def test_metadata_and_override() -> None:
    assert resolve_mpp("a", {X: "0.25", Y: "0.25"}).mpp == 0.25
    found = resolve_mpp("a", {X: "0.25", Y: "0.25"}, 0.5)
    assert (found.mpp, found.source) == (0.5, "override")
    assert resolve_mpp("a", {X: "0.252", Y: "0.250"}).mpp == pytest.approx(0.251, abs=1e-4)


@pytest.mark.parametrize("value", ["0", "-1", "inf", "nan", "0.0001", "1000", "", "a"])
def test_absurd_values_are_refused(value: str) -> None:
    with pytest.raises(ImplausibleMpp, match=r"b.svs would have .* plausible is 0.05 to 20"):
        resolve_mpp("b.svs", {X: value, Y: value})


def test_an_absurd_override_is_refused() -> None:
    with pytest.raises(ImplausibleMpp, match=r"40.0 micrometres per pixel \(the override\)"):
        resolve_mpp("b.svs", {}, 40.0)


def test_pixels_that_are_not_square() -> None:
    with pytest.raises(ImplausibleMpp, match=r"pixels of 0.5 x 0.25 .* mpp_override"):
        resolve_mpp("b.svs", {X: "0.5", Y: "0.25"})


def test_a_missing_value_names_slide_and_remedy() -> None:
    with pytest.raises(MissingMpp, match=r"b.svs does not say .* mpp_override, such as 0.5"):
        resolve_mpp("b.svs", {X: "0.5"})
    with pytest.raises(MissingMpp, match="objective power is 20, which does not fix"):
        resolve_mpp("b.svs", {"openslide.objective-power": "20"})


def test_half_a_pixel_is_the_limit_of_reading_without_resampling() -> None:
    assert not ReadPlan(1, 4.0002, 4.0).resamples(256)
    assert ReadPlan(0, 1.0, 1.01).resamples(256)
    assert not ReadPlan(0, 1.0, 1.0).resamples(10**6)
