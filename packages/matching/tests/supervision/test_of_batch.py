"""A batch says by its keys how its ground truth is made."""

import pytest
import torch

from isoattn.matching.data import Pair, collate
from isoattn.matching.supervision import supervise


def image(height: int = 16, width: int = 24) -> torch.Tensor:
    return torch.zeros(height, width)


def test_kinds_may_differ_within_a_batch():
    grid = torch.stack(torch.meshgrid(torch.arange(16), torch.arange(24), indexing="ij"))
    same = grid.flip(0).permute(1, 2, 0).float()
    points = torch.tensor([[8.0, 8.0]])
    camera = torch.tensor([[20.0, 0, 12], [0, 20, 8], [0, 0, 1]])
    depth = torch.full((16, 24), 2.0)
    batch = collate(
        [
            Pair(image(), image(), 0, homography=torch.eye(3)),
            Pair(image(), image(), 1, map0=same, map1=same),
            Pair(image(), image(), 2, points0=points, points1=points),
            Pair(
                image(),
                image(),
                3,
                depth0=depth,
                depth1=depth,
                intrinsics0=camera,
                intrinsics1=camera,
                pose=torch.eye(4),
            ),
            Pair(image(), image(), 4),
        ]
    )
    truth = supervise(batch)
    assert truth.known_B.tolist() == [True] * 4 + [False]
    assert truth.counts().tolist() == [6, 6, 1, 6, 0]
    assert truth.i.tolist() == [*range(6), *range(6), 4, *range(6)] == truth.j.tolist()
    assert truth.b.tolist() == sorted(truth.b.tolist())


def test_padding_of_a_batch_reaches_the_cells():
    # M5: a mask of pixels, bottom and right, becomes one of cells.
    pairs = [
        Pair(image(), image(), 0, homography=torch.eye(3)),
        Pair(image(9, 8), image(16, 17), 1, homography=torch.eye(3)),
    ]
    batch = collate(pairs)
    assert batch["mask0"].shape == (2, 16, 24) and batch["mask1"].shape == (2, 16, 24)
    truth = supervise(batch)
    # Rows 0 and 8, column 0 of image 0; rows 0 and 8, columns 0, 8, 16 of image 1.
    assert truth.i[truth.b == 1].tolist() == [0, 3]
    cells = dict(batch)
    cells["mask0"], cells["mask1"] = batch["mask0"][:, ::8, ::8], batch["mask1"][:, ::8, ::8]
    again = supervise(cells)
    assert torch.equal(again.i, truth.i) and torch.equal(again.b, truth.b)
    cells["mask0"] = batch["mask0"][:, :12]
    with pytest.raises(ValueError, match=r"mask0 must be bool.*pixels \(2, 16, 24\) or cells"):
        supervise(cells)


def test_a_batch_without_ground_truth():
    plain = collate([Pair(image(), image(), 0)])
    posed = collate([Pair(image(), image(), 0, pose=torch.eye(4))])
    for batch in (plain, posed):
        truth = supervise(batch)
        assert truth.known_B.tolist() == [False] and truth.shape == (1, 6, 6) and len(truth.b) == 0


def test_half_precision_around_it_changes_nothing():
    # A training step runs in autocast, which rounds every matrix product.
    shift = torch.tensor([[1.0, 0.01, 301.3], [0.0, 1, 7.7], [1e-5, 0, 1]])
    camera = torch.tensor([[333.0, 0, 401], [0, 333, 203], [0, 0, 1]])
    pose = torch.eye(4)
    pose[0, 3] = 0.31
    depth = torch.full((400, 800), 3.3)
    pairs = [
        Pair(image(400, 800), image(400, 800), 0, homography=shift),
        Pair(
            image(400, 800),
            image(400, 800),
            1,
            depth0=depth,
            depth1=depth,
            intrinsics0=camera,
            intrinsics1=camera,
            pose=pose,
        ),
    ]
    plain = supervise(collate(pairs))
    with torch.autocast("cpu", torch.bfloat16):
        rounded = supervise(collate(pairs))
    assert len(plain.b) > 5000 and torch.equal(rounded.j, plain.j)
    torch.testing.assert_close(
        rounded.warped0_BL2, plain.warped0_BL2, rtol=0, atol=0, equal_nan=True
    )


def test_the_released_rule_is_passed_on():
    depth, camera = torch.full((16, 24), 2.0), torch.eye(3)
    pair = Pair(
        image(),
        image(),
        0,
        depth0=depth,
        depth1=depth,
        intrinsics0=camera,
        intrinsics1=camera,
        pose=torch.eye(4),
    )
    batch = collate([pair])
    assert supervise(batch).i.tolist() == [0, 1, 2, 3, 4, 5]
    assert supervise(batch, fidelity="released").i.tolist() == [1, 2, 3, 4, 5]
