"""Points move as cameras move them, in one frame."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isoattn.matching.data.sampling import HomographyOptions, draw_homography
from isoattn.matching.geometry import (
    essential_matrix,
    homogeneous,
    normalise_points,
    relative_pose,
    resize_matrix,
    transfer_points,
    warp_points,
)

D = torch.float64


def rotation(generator: torch.Generator, strength: float = 0.3) -> torch.Tensor:
    skew = torch.zeros(3, 3, dtype=D)
    skew[0, 1], skew[0, 2], skew[1, 2] = strength * torch.randn(3, generator=generator, dtype=D)
    return torch.linalg.matrix_exp(skew - skew.T)


def camera(focal: float = 300.0) -> torch.Tensor:
    return torch.tensor([[focal, 0, 160], [0, focal * 1.1, 120], [0, 0, 1]], dtype=D)


def pose(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.eye(4, dtype=D)
    matrix[:3, :3] = rotation(generator)
    matrix[:3, 3] = torch.randn(3, generator=generator, dtype=D)
    return matrix


@given(seed=st.integers(0, 10_000), factor=st.sampled_from([1.0, -1.0, 0.37, -250.0]))
@settings(deadline=None, max_examples=25)
def test_a_homography_and_its_inverse_lead_back_whatever_its_scale(seed, factor):
    generator = torch.Generator().manual_seed(seed)
    drawn = draw_homography((96, 128), HomographyOptions(), generator).matrix_33
    points = torch.rand(1, 20, 2, generator=generator, dtype=D) * torch.tensor([127.0, 95.0])
    there = warp_points(points, factor * drawn[None])
    torch.testing.assert_close(there, warp_points(points, drawn[None]))
    back = warp_points(there, torch.linalg.inv(factor * drawn)[None])
    torch.testing.assert_close(back, points, rtol=1e-8, atol=1e-8)


def test_a_point_beyond_the_horizon_has_no_image():
    tilted = torch.tensor([[1.0, 0, 0], [0, 1, 0], [-0.01, 0, 1]])
    points = torch.tensor([[[0.0, 0], [50, 0], [20, 5], [150, 0]]])
    for sign in (1.0, -1.0):
        moved = warp_points(points, sign * tilted[None])
        assert moved[0, :3].isfinite().all()
        assert moved[0, 3].isnan().all()
    assert warp_points(points[:, :0], tilted[None]).shape == (1, 0, 2)


@pytest.mark.parametrize("seed", range(4))
def test_points_of_a_plane_move_by_its_homography(seed):
    generator = torch.Generator().manual_seed(seed)
    to_second, k0, k1 = pose(seed), camera(), camera(410.0)
    to_second[:3, 3] *= 0.2
    normal = torch.tensor([0.1, -0.2, 1.0], dtype=D)
    distance = 4.0
    points = torch.rand(1, 30, 2, generator=generator, dtype=D) * 200
    rays = homogeneous(points) @ torch.linalg.inv(k0).T
    depth = distance / (rays @ normal)
    plane = to_second[:3, :3] + torch.outer(to_second[:3, 3], normal) / distance
    homography = k1 @ plane @ torch.linalg.inv(k0)
    moved, ahead = transfer_points(points, depth, k0[None], k1[None], to_second[None])
    torch.testing.assert_close(moved, warp_points(points, homography[None]))
    assert (ahead > 0).all()


@pytest.mark.parametrize("seed", range(4))
def test_what_moves_by_a_pose_lies_on_its_epipolar_line(seed):
    generator = torch.Generator().manual_seed(seed)
    to_second = pose(seed)
    points = torch.rand(1, 30, 2, generator=generator, dtype=D) * 200
    depth = 2 + torch.rand(1, 30, generator=generator, dtype=D)
    k0, k1 = camera()[None], camera(250.0)[None]
    moved, _ = transfer_points(points, depth, k0, k1, to_second[None])
    first = homogeneous(normalise_points(points, k0))
    second = homogeneous(normalise_points(moved, k1))
    essential = essential_matrix(to_second[None])
    residual = torch.einsum("bni,bij,bnj->bn", second, essential, first)
    torch.testing.assert_close(residual, torch.zeros_like(residual), rtol=0, atol=1e-9)


def test_the_pose_between_two_cameras():
    first, second = pose(1), pose(2)
    world = torch.randn(4, 7, dtype=D, generator=torch.Generator().manual_seed(0))
    world[3] = 1
    moved = relative_pose(first, second) @ (first @ world)
    torch.testing.assert_close(moved, second @ world)


def test_resizing_keeps_the_outer_edges():
    matrix = resize_matrix((480, 640), (240, 160))
    corners = torch.tensor([[-0.5, -0.5, 1], [639.5, 479.5, 1]], dtype=D)
    moved = (corners @ matrix.T)[:, :2]
    torch.testing.assert_close(moved, torch.tensor([[-0.5, -0.5], [159.5, 239.5]], dtype=D))
    back = resize_matrix((240, 160), (480, 640))
    torch.testing.assert_close(back @ matrix, torch.eye(3, dtype=D))
