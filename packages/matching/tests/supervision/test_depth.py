"""Ground truth from depth and poses: LoFTR's numbers, and what its code does not guard."""

from dataclasses import replace

import pytest
import torch

from isoattn.matching.supervision import gt_from_depth, gt_from_homography
from isoattn.matching.supervision.depth import DepthView

DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
SIZE = (48, 64)


def camera(batch: int = 1, focal: float = 60.0) -> torch.Tensor:
    return torch.tensor([[focal, 0, 32], [0, focal, 24], [0, 0, 1]]).repeat(batch, 1, 1)


def wall(batch: int = 1, distance: float = 2.0) -> DepthView:
    return DepthView(torch.full((batch, *SIZE), distance), camera(batch), SIZE)


def sideways(batch: int = 1, by: float = 0.5) -> torch.Tensor:
    pose = torch.eye(4).repeat(batch, 1, 1)
    pose[:, 0, 3] = by
    return pose


@DTYPES
def test_the_released_rule(numbers, dtype):
    case = numbers("loftr_supervision")
    given = case.inputs(dtype)
    sizes = (tuple(case.options["image0_hw"]), tuple(case.options["image1_hw"]))
    views = [DepthView(given[f"depth{side}"], given[f"K{side}"], sizes[side]) for side in (0, 1)]
    truth = gt_from_depth(views[0], views[1], given["T_0to1"], fidelity="released")
    for name, ids in (("b", truth.b), ("i", truth.i), ("j", truth.j)):
        case.check(ids, f"out.spv_{name}_ids", dtype)
    case.check(truth.dense().to(torch.uint8), "out.conf_matrix_gt", dtype)
    case.check(truth.warped0_BL2, "out.spv_w_pt0_i", dtype)
    case.check(truth.fine_targets(truth.b, truth.i, truth.j), "out.expec_f_gt", dtype)
    exact = gt_from_depth(views[0], views[1], given["T_0to1"])
    assert torch.equal(exact.i, truth.i) and torch.equal(exact.j, truth.j)
    unknown = given["depth0"][0, ::8, ::8].flatten() == 0
    assert bool(unknown.any())
    assert torch.equal(exact.warped0_BL2[0].isnan().any(-1), unknown)


def test_a_wall_moves_by_a_homography():
    # 60 px * 0.5 / 2 = 15 px to the right
    truth = gt_from_depth(wall(), wall(), sideways())
    shift = torch.tensor([[[1.0, 0, 15], [0, 1, 0], [0, 0, 1]]])
    plane = gt_from_homography(shift, SIZE, SIZE)
    assert torch.equal(truth.i, plane.i) and torch.equal(truth.j, plane.j)
    torch.testing.assert_close(truth.warped0_BL2, plane.warped0_BL2)


@pytest.mark.parametrize("fidelity", ["exact", "released"])
def test_depth_at_the_size_of_the_original_image(fidelity):
    small = gt_from_depth(wall(), wall(), sideways(), fidelity=fidelity)
    large = DepthView(
        torch.full((1, 96, 192), 2.0),
        torch.diag(torch.tensor([3.0, 2.0, 1.0])) @ camera(),
        SIZE,
        scale_B2=torch.tensor([[3.0, 2.0]]),
    )
    for views in ((large, wall()), (wall(), large), (large, large)):
        truth = gt_from_depth(*views, sideways(), fidelity=fidelity)
        assert torch.equal(truth.i, small.i) and torch.equal(truth.j, small.j)
        torch.testing.assert_close(truth.warped0_BL2, small.warped0_BL2)


def test_unknown_depth_and_what_lies_behind_match_nothing():
    holes = wall()
    holes.depth_BHW[0, :, 32:] = 0
    truth = gt_from_depth(holes, wall(), sideways())
    assert len(truth.i) and bool((truth.i % 8 < 4).all())
    # Turned by 180 degrees, everything lies behind the second camera.
    turned = torch.diag(torch.tensor([-1.0, 1, -1, 1]))[None]
    behind = gt_from_depth(wall(), wall(), turned)
    assert len(behind.b) == 0 and behind.warped0_BL2.isnan().all() and behind.known_B.all()


def test_the_corner_can_match_unless_as_released():
    here = torch.eye(4)[None]
    assert gt_from_depth(wall(), wall(), here).i.tolist() == list(range(48))
    released = gt_from_depth(wall(), wall(), here, fidelity="released")
    assert released.i.tolist() == list(range(1, 48))


@pytest.mark.parametrize("fidelity", ["exact", "released"])
def test_padding_matches_nothing(fidelity):
    keep = torch.ones(1, 48, dtype=torch.bool)
    keep[0, 24:] = False
    for views in (
        (replace(wall(), keep_BN=keep), wall()),
        (wall(), replace(wall(), keep_BN=keep)),
    ):
        truth = gt_from_depth(*views, torch.eye(4)[None], fidelity=fidelity)
        assert truth.i.max() < 24 and len(truth.i) >= 23


def test_pairs_without_depth_or_pose_are_unknown():
    first, second = wall(4), wall(4)
    first.depth_BHW[0] = 0
    pose = sideways(4)
    pose[1, 0, 0] = torch.nan
    second.intrinsics_B33[2] = torch.nan
    truth = gt_from_depth(first, second, pose)
    assert truth.known_B.tolist() == [False, False, False, True]
    assert set(truth.b.tolist()) == {3}
    assert truth.warped0_BL2[:3].isnan().all()


def test_a_depth_map_that_is_smaller_than_its_image_is_not_read_beyond_its_edge():
    cropped = replace(wall(), depth_BHW=torch.full((1, 20, 64), 2.0))
    truth = gt_from_depth(cropped, wall(), torch.eye(4)[None])
    assert truth.i.tolist() == list(range(24))  # rows 0, 8 and 16
