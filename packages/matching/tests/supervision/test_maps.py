"""Ground truth from maps of positions."""

import torch

from isoattn.matching.supervision import gt_from_homography, gt_from_maps


def plane(size: tuple[int, int], x: float, y: float) -> torch.Tensor:
    rows, columns = torch.meshgrid(torch.arange(size[0]), torch.arange(size[1]), indexing="ij")
    return torch.stack([columns + x, rows + y], -1)[None].float()


def test_maps_of_a_shift_are_its_homography(shift):
    size0, size1 = (40, 48), (30, 50)
    truth = gt_from_maps(plane(size0, 11, -5), plane(size1, -11, 5))
    same = gt_from_homography(shift(11, -5), size0, size1)
    assert torch.equal(truth.i, same.i) and torch.equal(truth.j, same.j)
    torch.testing.assert_close(truth.warped0_BL2, same.warped0_BL2)


def test_unknown_places_and_unknown_pairs():
    map0, map1 = plane((16, 24), 0, 0).repeat(2, 1, 1, 1), plane((16, 24), 0, 0).repeat(2, 1, 1, 1)
    map0[0, 8, 8] = torch.nan
    map1[0, 0, 0] = torch.nan
    map0[1] = torch.nan
    truth = gt_from_maps(map0, map1)
    assert truth.known_B.tolist() == [True, False]
    assert truth.i.tolist() == [1, 2, 3, 5]
    keep = torch.tensor([[True] * 3 + [False] * 3]).repeat(2, 1)
    assert gt_from_maps(map0, map1, keep1_BS=keep).i.tolist() == [1, 2]
