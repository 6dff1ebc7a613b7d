"""Pose errors and epipolar distances against LoFTR's numbers; seeded estimation of poses."""

import math

import pytest
import torch

from isoattn.matching.geometry import essential_matrix, transfer_points
from isoattn.matching.metrics import (
    RobustOptions,
    epipolar_errors,
    estimate_pose,
    line_distance,
    pose_error,
)

D = torch.float64
K0 = torch.tensor([[300.0, 0, 160], [0, 310, 120], [0, 0, 1]], dtype=D)
K1 = torch.tensor([[420.0, 0, 150], [0, 410, 130], [0, 0, 1]], dtype=D)


def true_pose() -> torch.Tensor:
    pose = torch.eye(4, dtype=D)
    pose[:3, :3] = torch.linalg.matrix_exp(
        torch.tensor([[0, -0.1, 0.2], [0.1, 0, -0.05], [-0.2, 0.05, 0]], dtype=D)
    )
    pose[:3, 3] = torch.tensor([1.0, 0.2, -0.1], dtype=D)
    return pose


def matches(count: int = 120, outliers: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    first = torch.rand(1, count, 2, generator=generator, dtype=D) * torch.tensor([320.0, 240.0])
    depth = 3 + 4 * torch.rand(1, count, generator=generator, dtype=D)
    second, _ = transfer_points(first, depth, K0[None], K1[None], true_pose()[None])
    second = second[0] + 0.05 * torch.randn(count, 2, generator=generator, dtype=D)
    second[:outliers] = 200 * torch.rand(outliers, 2, generator=generator, dtype=D)
    return first[0], second


def test_official_pose_errors(numbers):
    case = numbers("metric_pose_error")
    data = case.inputs(D)
    found = [
        pose_error(rotation, translation, pose)
        for rotation, translation, pose in zip(data["R"], data["t"], data["T_0to1"], strict=True)
    ]
    rotation, translation = torch.tensor(found, dtype=D).unbind(1)
    case.check(rotation, "out.R_err_deg", D)
    case.check(translation, "out.t_err_deg", D)
    case.check(torch.maximum(rotation, translation), "out.pose_err_deg", D)


@pytest.mark.parametrize("dtype", [D, torch.float32])
def test_official_epipolar_distances(numbers, dtype):
    case = numbers("metric_epipolar")
    data = case.inputs(dtype)
    pair = data["batch_ids"]
    error = epipolar_errors(
        data["pts0"], data["pts1"], pair, data["K0"], data["K1"], data["T_0to1"]
    )
    case.check(error, "out.epi_err", dtype)
    # The pair that is appended has no match and counts 0.
    pairs = case.options["B"] + 1
    precision = [
        sum(float((error[pair == p] < t).double().mean()) for p in range(pairs - 1)) / pairs
        for t in (5e-4, 1e-4)
    ]
    case.check(torch.tensor(precision, dtype=D), "out.precision_5e4_1e4", dtype)


def test_a_pose_without_translation_has_no_direction_to_miss():
    rotation, translation = pose_error(torch.eye(3), torch.tensor([0.0, 0, 1]), torch.eye(4))
    assert (rotation, translation) == (0.0, 0.0)


def test_the_pose_is_found_among_outliers_whatever_the_cameras():
    first, second = matches(outliers=30)
    state = torch.get_rng_state()
    options = RobustOptions(0.5, 0.9999, repeats=2)
    found = estimate_pose(first, second, K0, K1, options)
    for pose in found:
        assert pose is not None and max(pose_error(*pose, true_pose())) < 1.0
    again = estimate_pose(first, second, K0, K1, options)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(found, again, strict=True))
    assert torch.equal(torch.get_rng_state(), state)


def test_too_few_matches_or_all_in_one_place_give_no_pose():
    first, second = matches(4)
    options = RobustOptions(0.5, 0.99, repeats=2)
    assert estimate_pose(first, second, K0, K1, options) == [None, None]
    same = torch.full((10, 2), 50.0)
    for pose in estimate_pose(same, same, K0, K1, options):
        assert pose is None or not math.isnan(max(pose_error(*pose, true_pose())))


def test_distance_to_the_epipolar_line():
    first, second = matches()
    fundamental = (
        torch.linalg.inv(K1).T @ essential_matrix(true_pose()[None])[0] @ torch.linalg.inv(K0)
    )
    assert float(line_distance(first, second, fundamental).max()) < 0.3
    horizontal = torch.tensor([[0.0, 0, 0], [0, 0, -1], [0, 1, 0]], dtype=D)  # rows correspond
    moved = first + torch.tensor([11.0, 2.5], dtype=D)
    distance = line_distance(first, moved, horizontal)
    torch.testing.assert_close(distance, torch.full_like(distance, 2.5))
