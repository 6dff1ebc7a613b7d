"""Disparity: which way it goes, what it hides, and the calibrated motorcycle."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from isoattn.matching.data import Aloe, Motorcycle, ResizeOptions, collate
from isoattn.matching.data.stereo import Calibration, disparity_maps
from isoattn.matching.geometry import (
    essential_matrix,
    homogeneous,
    normalise_points,
    transfer_points,
)
from isoattn.matching.supervision import supervise


def test_a_near_thing_hides_what_is_behind_it():
    disparity = torch.full((1, 10), 1.0)
    disparity[0, 6:8] = 4.0  # covers columns 2 and 3 of the right image
    disparity[0, 9] = 0.0
    left, right = disparity_maps(disparity)
    shift = left[0, :, 0] - torch.arange(10)
    # 3 and 4 go to columns 2 and 3, which are covered; 0 goes off the image.
    known = [not np.isnan(value) for value in shift.tolist()]
    assert known == [True, True, True, False, False, True, True, True, True, False]
    assert float(left[0, 0, 0]) == -1.0
    assert shift[6:9].tolist() == [-4.0, -4.0, -1.0]
    back = right[0, :, 0] - torch.arange(10)
    assert back[2:4].tolist() == [4.0, 4.0] and float(back[0]) == 1.0
    assert back[5].isnan() and back[8:].isnan().all()
    assert not left[..., 1][~left[..., 0].isnan()].any()


def test_unknown_disparity_is_unknown():
    for value in (0.0, -3.0, torch.inf, torch.nan):
        left, right = disparity_maps(torch.full((3, 4), value))
        assert left[..., 0].isnan().all() and right[..., 0].isnan().all()


def correlation(pair) -> float:
    height, width = pair.image1.shape
    grid = (pair.map0 + 0.5) * 2 / torch.tensor([width, height]) - 1
    known = (grid.abs() < 1).all(-1)
    seen = F.grid_sample(pair.image1[None, None], grid.nan_to_num(9.0)[None], align_corners=False)[
        0, 0
    ]
    return float(torch.corrcoef(torch.stack([seen[known], pair.image0[known]]))[0, 1])


def test_motorcycle_left_goes_to_the_left_in_the_right_image():
    pair = Motorcycle(ResizeOptions(size=(160, 240))).pairs("test", 0)[0]
    right = correlation(pair)
    assert right > 0.95
    wrong = pair.map0.clone()
    wrong[..., 0] = 2 * torch.arange(240) - wrong[..., 0]  # the docstring's direction
    pair.map0 = wrong
    assert correlation(pair) < right - 0.2


def test_motorcycle_is_calibrated():
    pair = Motorcycle(ResizeOptions(size=(160, 240))).pairs("val", 0)[0]
    rows, columns = (~pair.map0.isnan().any(-1)).nonzero(as_tuple=True)
    first = torch.stack([columns, rows], -1)[::97].double()
    second = pair.map0[rows, columns][::97].double()
    cameras = pair.intrinsics0.double(), pair.intrinsics1.double()
    # Z = f B / (d + doffs) moves each pixel to where the disparity says.
    stored = (first + 0.5) * torch.tensor(pair.scale0, dtype=torch.float64) - 0.5
    moved = (second + 0.5) * torch.tensor(pair.scale1, dtype=torch.float64) - 0.5
    depth = 994.978 * 193.001 / ((stored - moved)[:, 0] + 31.086)
    got, _ = transfer_points(
        first[None], depth[None], cameras[0][None], cameras[1][None], pair.pose.double()[None]
    )
    torch.testing.assert_close(got[0], second, rtol=0, atol=0.01)
    essential = essential_matrix(pair.pose.double()[None])[0]
    ends = [
        homogeneous(normalise_points(points, camera))
        for points, camera in zip((first, second), cameras, strict=True)
    ]
    residual = (ends[1] @ essential * ends[0]).sum(-1)
    assert float(residual.abs().max()) < 1e-3


def test_motorcycle_as_a_batch():
    batch = collate([Motorcycle(ResizeOptions(size=(160, 240))).pairs("test", 0)[0]])
    truth = supervise(batch)
    assert 250 < len(truth.b) < 600 and truth.known_B.all()
    assert batch["strata"]["parallax"].tolist() == [1.0]
    assert {"pose", "intrinsics0", "map0"} < set(batch)
    same = Motorcycle(ResizeOptions(size=(160, 240)))
    assert len(same.pairs("train", 0)) == 1 and same.splits == ()


def test_calibration():
    one = Calibration(100.0, (30.0, 20.0), 5.0, 0.5)
    assert one.intrinsics(right=False).tolist() == [[100, 0, 30], [0, 100, 20], [0, 0, 1]]
    assert float(one.intrinsics(right=True)[0, 2]) == 35.0
    assert one.pose()[:, 3].tolist() == [-0.5, 0, 0, 1]


def test_aloe_from_a_folder(tmp_path, write_picture):
    write_picture(tmp_path / "aloeL.jpg", size=(40, 48))
    write_picture(tmp_path / "aloeR.jpg", size=(40, 48))
    gt = np.full((40, 48), 8, dtype=np.uint8)
    gt[:8] = 0
    Image.fromarray(gt).save(tmp_path / "aloeGT.png")
    pair = Aloe(str(tmp_path)).pairs("test", 0)[0]
    assert pair.map0[:8].isnan().all() and pair.map0[20, 20].tolist() == [12.0, 20.0]
    truth = supervise(collate([pair]))
    assert truth.i.tolist() == [r * 6 + c for r in range(1, 5) for c in range(1, 6)]
    assert torch.equal(truth.j, truth.i - 1) and pair.pose is None
    Image.fromarray(np.stack([gt] * 3, -1)).save(tmp_path / "aloeGT.png")
    with pytest.raises(ValueError, match=r"aloeGT.png has the shape \(40, 48, 3\): disparity is"):
        Aloe(str(tmp_path)).pairs("test", 0)[0]
    (tmp_path / "aloeGT.png").write_bytes(b"no")
    with pytest.raises(ValueError, match="aloeGT.png cannot be read as disparity"):
        Aloe(str(tmp_path)).pairs("test", 0)[0]
    with pytest.raises(FileNotFoundError, match="Give the folder with aloeL.jpg"):
        Aloe(str(tmp_path / "gone")).pairs("test", 0)[0]
