"""Random homographies keep to their options, and a view shows what its matrix says."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isoattn.matching.data.photos import Photo, halvings
from isoattn.matching.data.sampling import (
    HomographyOptions,
    PhotometricOptions,
    distort,
    draw_homography,
    draw_window,
    homography_of_corners,
    render,
    view_corners,
)
from isoattn.matching.geometry import warp_points

SIZE = (96, 128)
STILL = HomographyOptions(jitter=0, rotation=0, scale=1, translation=0)
PLAIN = PhotometricOptions(contrast=0, brightness=0, gamma=1, noise=0)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def waves(height: int = 200, width: int = 300) -> Photo:
    """Smooth, so that interpolation is nearly exact, and of a known formula."""
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return Photo("waves", halvings(wave(torch.stack([x, y], -1).double()).float()))


def wave(points: torch.Tensor) -> torch.Tensor:
    x, y = points.unbind(-1)
    return 0.5 + 0.2 * (x / 25).sin() + 0.2 * (y / 17 + x / 40).cos()


@given(seed=st.integers(0, 10_000))
@settings(deadline=None, max_examples=25)
def test_four_corners_make_a_homography(seed):
    corners = view_corners(SIZE)
    moved = corners + 10 * torch.rand(4, 2, generator=rng(seed), dtype=torch.float64)
    matrix = homography_of_corners(corners, moved)
    torch.testing.assert_close(warp_points(corners[None], matrix[None])[0], moved)
    assert float(matrix[2, 2]) == 1.0


@given(seed=st.integers(0, 10_000))
@settings(deadline=None, max_examples=25)
def test_draws_keep_to_their_options(seed):
    options = HomographyOptions(jitter=0, rotation=20, scale=1.5, translation=0.1)
    drawn = draw_homography(SIZE, options, rng(seed))
    linear = drawn.matrix_33[:2, :2]
    factor = math.sqrt(float(torch.linalg.det(linear)))
    angle = math.degrees(math.atan2(float(linear[1, 0]), float(linear[0, 0])))
    assert abs(angle) == pytest.approx(drawn.rotation, abs=1e-6) and drawn.rotation <= 20
    assert max(factor, 1 / factor) == pytest.approx(drawn.scale) and drawn.scale <= 1.5 + 1e-9
    centre = view_corners(SIZE).mean(0)
    moved = warp_points(centre[None, None], drawn.matrix_33[None])[0, 0] - centre
    assert abs(float(moved[0])) <= 12.8 + 1e-9 and abs(float(moved[1])) <= 9.6 + 1e-9
    torch.testing.assert_close(drawn.matrix_33[2], torch.tensor([0.0, 0, 1], dtype=torch.float64))


def test_nothing_drawn_is_the_identity_and_jitter_is_no_similarity():
    still = draw_homography(SIZE, STILL, rng())
    torch.testing.assert_close(still.matrix_33, torch.eye(3, dtype=torch.float64))
    assert (still.rotation, still.scale) == (0.0, 1.0)
    jitter = HomographyOptions(jitter=0.1, rotation=0, scale=1, translation=0)
    matrix = draw_homography(SIZE, jitter, rng()).matrix_33
    corners = view_corners(SIZE)
    moved = (warp_points(corners[None], matrix[None])[0] - corners).abs()
    assert (moved <= torch.tensor([12.8, 9.6]) + 1e-6).all() and matrix[2, :2].abs().max() > 1e-5


@given(seed=st.integers(0, 10_000))
@settings(deadline=None, max_examples=25)
def test_a_window_lies_in_its_photo(seed):
    for photo in (waves(), waves(40, 300)):
        matrix = draw_window(photo, SIZE, HomographyOptions(cover=(0.4, 1.0)), rng(seed))
        edges = torch.tensor([[[-0.5, -0.5], [127.5, 95.5]]], dtype=torch.float64)
        low, high = warp_points(edges, matrix[None])[0]
        assert (low >= -0.5 - 1e-9).all()
        assert (high <= torch.tensor([photo.size[1], photo.size[0]]) - 0.5 + 1e-9).all()


@pytest.mark.parametrize("factor", [0.6, 1.0, 1.9, 3.0])
def test_a_view_shows_what_its_matrix_says(factor):
    photo = waves(400, 500)
    matrix = torch.tensor(
        [[factor, 0.1, 20.3], [-0.1, factor, 30.7], [2e-4, 1e-4, 1]], dtype=torch.float64
    )
    view = render(photo, matrix, SIZE)
    y, x = torch.meshgrid(torch.arange(96), torch.arange(128), indexing="ij")
    points = torch.stack([x, y], -1).reshape(1, -1, 2).double()
    places = warp_points(points, matrix[None])[0]
    want = wave(places).reshape(SIZE).float()
    inside = (places >= 4).all(-1) & (places <= torch.tensor([495.0, 395.0])).all(-1)
    error = (view - want).abs().reshape(-1)[inside]
    assert float(error.max()) < 0.02 and inside.float().mean() > 0.9


def test_outside_a_photo_a_view_is_black():
    shifted = torch.tensor([[1.0, 0, -60], [0, 1, 0], [0, 0, 1]], dtype=torch.float64)
    view = render(waves(), shifted, SIZE)
    assert not view[:, :59].any() and (view[:, 61:] > 0).all()
    horizon = torch.tensor([[1.0, 0, 0], [0, 1, 0], [-0.02, 0, 1]], dtype=torch.float64)
    beyond = render(waves(), horizon, SIZE)
    assert beyond.isfinite().all() and not beyond[:, 60:].any()


def test_grey_values():
    image = render(waves(), torch.eye(3, dtype=torch.float64), SIZE)
    torch.testing.assert_close(distort(image, PLAIN, rng()), image)
    for options in (
        PhotometricOptions(contrast=0.5, brightness=0, gamma=1, noise=0),
        PhotometricOptions(contrast=0, brightness=0.3, gamma=1, noise=0),
        PhotometricOptions(contrast=0, brightness=0, gamma=2, noise=0),
        PhotometricOptions(contrast=0, brightness=0, gamma=1, noise=0.1),
        PhotometricOptions(),
    ):
        changed = distort(image, options, rng())
        assert not torch.equal(changed, image) and changed.dtype == torch.float32
        assert float(changed.min()) >= 0 and float(changed.max()) <= 1
        assert torch.equal(changed, distort(image, options, rng()))


@pytest.mark.parametrize(
    ("cls", "options", "message"),
    [
        (HomographyOptions, {"jitter": 0.25}, r"jitter must be in \[0, 0.25\), got 0.25"),
        (HomographyOptions, {"rotation": 181.0}, "rotation must be degrees"),
        (HomographyOptions, {"scale": 0.9}, r"scale must be a factor in \[1, 8\]"),
        (HomographyOptions, {"translation": -0.1}, "translation must be in"),
        (HomographyOptions, {"cover": (0.9, 0.5)}, "cover must be 0 < smallest <= largest <= 1"),
        (PhotometricOptions, {"contrast": 1.0}, "contrast must be in"),
        (PhotometricOptions, {"brightness": -0.1}, "brightness must be in"),
        (PhotometricOptions, {"gamma": 0.5}, "gamma must be 1 or more"),
        (PhotometricOptions, {"noise": -1.0}, "noise must be in"),
    ],
)
def test_options_are_checked(cls, options, message):
    with pytest.raises(ValueError, match=message):
        cls(**options)
