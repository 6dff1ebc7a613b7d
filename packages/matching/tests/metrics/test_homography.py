"""Corner errors against glue-factory's numbers, and seeded estimation."""

import math

import pytest
import torch

from isoattn.matching.geometry import warp_points
from isoattn.matching.metrics import RobustOptions, corner_error, error_auc, estimate_homography

TRUE = torch.tensor([[1.1, 0.1, 8], [-0.05, 0.95, 4], [1e-4, -2e-4, 1]], dtype=torch.float64)
SIZE = (240, 320)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_official_numbers(numbers, dtype):
    case = numbers("metric_homography_corner")
    data = case.inputs(dtype)
    width, height = data["image_size_wh"].tolist()
    for corners, name in (("edges", "out.corner_error"), ("centres", "out.corner_error_wm1")):
        errors = torch.tensor(
            [
                corner_error(found, true, (height, width), corners=corners)
                for found, true in zip(data["H_pred"], data["H_gt"], strict=True)
            ],
            dtype=torch.float64,
        )
        case.check(errors, name, dtype)
        if corners == "edges":
            areas = torch.tensor(error_auc(errors, [3, 5, 10]), dtype=torch.float64)
            case.check(areas, "out.auc_3_5_10", dtype)


def matches(noise: float, outliers: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    first = torch.rand(150, 2, generator=generator, dtype=torch.float64) * 230
    second = warp_points(first[None], TRUE[None])[0]
    second = second + noise * torch.randn(second.shape, generator=generator, dtype=torch.float64)
    second[:outliers] = 230 * torch.rand(outliers, 2, generator=generator, dtype=torch.float64)
    return first, second


@pytest.mark.parametrize("method", ["ransac", "magsac"])
def test_the_homography_is_found_among_outliers(method):
    options = RobustOptions(3.0, 0.995, method=method, repeats=3)
    found = estimate_homography(*matches(0.3, 60), options)
    errors = [corner_error(matrix, TRUE, SIZE) for matrix in found]
    assert len(errors) == 3 and max(errors) < 1.5
    again = estimate_homography(*matches(0.3, 60), options)
    assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))


def test_repeats_differ_and_follow_their_seed_alone():
    state = torch.get_rng_state()
    points = matches(2.5, 100)
    runs = [
        estimate_homography(*points, RobustOptions(3.0, 0.9, iterations=20, repeats=4, seed=seed))
        for seed in (0, 0, 1)
    ]
    errors = [[corner_error(matrix, TRUE, SIZE) for matrix in run] for run in runs]
    assert errors[0] == errors[1] != errors[2]
    assert len(set(errors[0])) > 1
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "points",
    [
        torch.zeros(0, 2),
        torch.tensor([[0.0, 0], [9, 0], [0, 9]]),
        torch.zeros(12, 2),
        torch.arange(12.0)[:, None].repeat(1, 2),
    ],
    ids=["none", "three", "one place", "a line"],
)
def test_a_failure_is_an_infinite_error(points):
    for method in ("ransac", "magsac"):
        found = estimate_homography(points, points, RobustOptions(3.0, 0.99, method=method))
        errors = [corner_error(matrix, torch.eye(3), SIZE) for matrix in found]
        # A line fixes no homography: whatever comes back must be flagged or explain the points.
        assert all(math.isinf(error) or error >= 0 for error in errors) and len(errors) == 5
        if len(points) < 4:
            assert found == [None] * 5 and all(map(math.isinf, errors))


def test_an_error_that_is_no_number_is_infinite():
    beyond = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 0]])  # every corner goes to infinity
    assert math.isinf(corner_error(beyond, torch.eye(3), SIZE))
    assert math.isinf(corner_error(None, torch.eye(3), SIZE))
    assert corner_error(torch.eye(3) * -7, torch.eye(3), SIZE) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threshold": 0.0, "confidence": 0.9}, "threshold must be above 0"),
        ({"threshold": 1.0, "confidence": 1.0}, r"confidence in \(0, 1\)"),
        ({"threshold": 1.0, "confidence": 0.9, "repeats": 0}, "repeats must be 1 or more"),
        ({"threshold": 1.0, "confidence": 0.9, "method": "lmeds"}, "method must be ransac or"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        RobustOptions(**options)
