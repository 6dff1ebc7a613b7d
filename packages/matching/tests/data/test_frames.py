"""Resized images take their geometry along."""

import pytest
import torch
from hypothesis import given
from hypothesis import settings as run_settings
from hypothesis import strategies as st

from isoattn.matching.data import ResizeOptions
from isoattn.matching.data.frames import View, load_view, resized_homography, resized_map
from isoattn.matching.geometry import warp_points

SIZES = st.tuples(st.integers(1, 3000), st.integers(1, 3000))


@given(size=SIZES, step=st.sampled_from([1, 8, 32]), side=st.integers(64, 900))
@run_settings(deadline=None, max_examples=50)
def test_targets(size, step, side):
    longer = ResizeOptions(longer=side, multiple=step).target(size)
    shorter = ResizeOptions(shorter=side, multiple=step).target(size)
    assert max(longer) == side // step * step and min(shorter) == max(side // step * step, step)
    for target in (longer, shorter, ResizeOptions(multiple=step).target(size)):
        assert all(value % step == 0 and value >= step for value in target)


def test_targets_by_hand():
    # The released recipes: the longer side 840, floored to a multiple of 8; the shorter side 480.
    assert ResizeOptions(longer=840).target((1200, 1600)) == (624, 840)
    assert ResizeOptions(shorter=480, multiple=1).target((640, 800)) == (480, 600)
    assert ResizeOptions(size=(480, 640)).target((968, 1296)) == (480, 640)
    assert ResizeOptions().target((501, 743)) == (496, 736)
    for options in ({"longer": 5, "shorter": 5}, {"longer": 0}, {"multiple": 0}):
        with pytest.raises(ValueError, match="Images are resized by one of longer, shorter"):
            ResizeOptions(**options)


def views() -> tuple[View, View]:
    return View(torch.zeros(30, 40), (60, 120)), View(torch.zeros(80, 50), (40, 100))


def test_homographies_points_and_cameras():
    first, second = views()
    assert first.scale == (3.0, 2.0) and second.scale == (2.0, 0.5)
    stored = torch.tensor([[1.2, 0.1, 4], [0, 0.9, -3], [1e-3, 0, 1]], dtype=torch.float64)
    points = torch.tensor([[10.0, 20.0], [100.0, 50.0]])
    moved = warp_points(points[None].double(), stored[None])[0]
    resized = resized_homography(stored, first, second)
    got = warp_points(first.points(points)[None], resized[None])[0]
    torch.testing.assert_close(got, second.points(moved), rtol=1e-4, atol=1e-3)
    camera = torch.tensor([[50.0, 0, 60], [0, 55, 30], [0, 0, 1]], dtype=torch.float64)
    ray = torch.tensor([0.3, -0.2, 1.0], dtype=torch.float64)
    pixel = camera @ ray
    resized_pixel = first.intrinsics(camera).double() @ ray
    torch.testing.assert_close(
        first.points(pixel[None, :2]), resized_pixel[None, :2].float(), rtol=1e-5, atol=1e-4
    )
    # K in another frame that shows the same, such as that of a smaller depth map.
    half = torch.diag(torch.tensor([0.5, 0.5, 1.0], dtype=torch.float64)) @ camera
    half[:2, 2] -= 0.25  # pixel centres: (x + 0.5) / 2 - 0.5
    torch.testing.assert_close(first.intrinsics(half, (30, 60)), first.intrinsics(camera))


def test_depth_and_maps_are_read_at_the_nearest_pixel():
    first, second = views()
    depth = torch.arange(60.0 * 120).reshape(60, 120)
    read = first.depth(depth)
    assert read.shape == (30, 40)
    assert float(read[3, 5]) == float(depth[round(3.5 * 2 - 0.5), round(5.5 * 3 - 0.5)])
    rows, columns = torch.meshgrid(torch.arange(60), torch.arange(120), indexing="ij")
    stored = torch.stack([columns + 7.0, rows - 2.0], -1).double()
    stored[0] = torch.nan
    moved = resized_map(stored, first, second)
    y, x = torch.meshgrid(torch.arange(30), torch.arange(40), indexing="ij")
    origin = torch.stack([(x + 0.5) * 3 - 0.5 + 7, (y + 0.5) * 2 - 0.5 - 2], -1)
    want = second.points(origin.reshape(-1, 2)).reshape(30, 40, 2)
    assert moved[0].isnan().all()
    torch.testing.assert_close(moved[1:], want[1:])


def test_files_are_read_at_their_target(tmp_path, write_picture):
    path = write_picture(tmp_path / "a.png", size=(60, 100))
    whole = load_view(path, ResizeOptions(multiple=1))
    assert whole.size == whole.stored == (60, 100) and whole.scale == (1.0, 1.0)
    small = load_view(path, ResizeOptions(longer=50))
    assert small.size == (24, 48) and small.stored == (60, 100)
    assert small.image_HW.dtype == torch.float32 and float(small.image_HW.max()) <= 1
    assert float(small.image_HW.mean()) == pytest.approx(float(whole.image_HW.mean()), abs=0.01)
