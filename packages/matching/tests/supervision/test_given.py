"""Matches that are given become cells (LoFTR#238; EfficientLoFTR#71)."""

import torch

from isoattn.matching.supervision import gt_from_matches

SIZE = (32, 40)
KNOWN = torch.ones(1, dtype=torch.bool)


def ids(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


def test_each_match_belongs_to_the_nearest_cells():
    points0 = torch.tensor([[8.0, 0], [17, 9], [0, 24]])
    points1 = torch.tensor([[0.0, 0], [10, 15], [32, 24]])
    truth = gt_from_matches(points0, points1, ids(0, 0, 0), KNOWN, SIZE, SIZE)
    assert truth.i.tolist() == [1, 7, 15] and truth.j.tolist() == [0, 11, 19]
    # The match (17, 9) -> (10, 15) puts the cell at (16, 8) to (9, 14).
    assert truth.warped0_BL2[0, 7].tolist() == [9.0, 14.0]
    assert truth.warped0_BL2[0, 2].isnan().all()


def test_of_two_matches_in_a_cell_the_nearer_one_stays():
    points0 = torch.tensor([[8.0, 0], [9, 1], [24, 8]])
    points1 = torch.tensor([[3.0, 0], [8, 0], [1, 1]])
    truth = gt_from_matches(points0, points1, ids(0, 0, 0), KNOWN, SIZE, SIZE)
    # The first and the second share cell 1 of image 0, the first and the third cell 0 of image 1:
    # the second and the third lie nearer to their cells.
    assert list(zip(truth.i.tolist(), truth.j.tolist(), strict=True)) == [(1, 1), (8, 0)]


def test_matches_off_an_image_or_in_padding_are_left_out():
    points0 = torch.tensor([[-9.0, 0], [8, 8], [16, 8], [0, 8]])
    points1 = torch.tensor([[0.0, 0], [8, 99], [16, 8], [0, 8]])
    keep = torch.ones(1, 20, dtype=torch.bool)
    keep[0, 7] = False
    truth = gt_from_matches(points0, points1, ids(0, 0, 0, 0), KNOWN, SIZE, SIZE, keep1_BS=keep)
    assert truth.i.tolist() == [5]
    truth = gt_from_matches(points0, points1, ids(0, 0, 0, 0), KNOWN, SIZE, SIZE, keep0_BL=keep)
    assert truth.i.tolist() == [5]


def test_pairs_of_a_batch_are_kept_apart_and_may_be_empty():
    points = torch.tensor([[8.0, 0], [8, 0], [0, 0]])
    known = torch.tensor([True, True, False])
    truth = gt_from_matches(points, points, ids(1, 0, 0), known, SIZE, SIZE)
    assert truth.b.tolist() == [0, 0, 1] and truth.i.tolist() == [0, 1, 1]
    assert truth.counts().tolist() == [2, 1, 0] and truth.known_B.tolist() == known.tolist()
    none = torch.zeros(0, 2)
    empty = gt_from_matches(none, none, ids(), known, SIZE, SIZE)
    assert empty.counts().tolist() == [0, 0, 0]
