"""Cells, their numbers, and what a supervision says of them."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isoattn.matching.models.cells import cell_points
from isoattn.matching.supervision import Supervision, gt_from_homography
from isoattn.matching.supervision.cells import all_points, mutual_cells, nearest_cells


@given(
    rows=st.integers(1, 9),
    columns=st.integers(1, 9),
    x=st.floats(-3.9, 3.9),
    y=st.floats(-3.9, 3.9),
)
@settings(deadline=None, max_examples=25)
def test_a_cell_is_the_nearest_of_what_lies_within_half_of_it(rows, columns, x, y):
    grid = (rows, columns)
    numbers = torch.arange(rows * columns)
    points = cell_points(numbers, grid) + torch.tensor([x, y])
    assert torch.equal(nearest_cells(points[None], grid)[0], numbers)


def test_what_is_off_the_map_or_unknown_has_no_cell():
    points = torch.tensor([[[-4.1, 0.0], [0, -4.1], [20.1, 0], [0, 12.1], [torch.nan, 0]]])
    assert nearest_cells(points, (2, 3)).tolist() == [[-1] * 5]


def test_mutual_cells_are_one_to_one_and_leave_padding_out():
    grid = (2, 3)
    same = all_points(grid, torch.zeros(1))[None]
    b, i, j = mutual_cells(same, same, grid, grid)
    assert i.tolist() == j.tolist() == list(range(6))
    keep0, keep1 = torch.ones(1, 6, dtype=torch.bool), torch.ones(1, 6, dtype=torch.bool)
    keep0[0, 1] = keep1[0, 4] = False
    b, i, j = mutual_cells(same, same, grid, grid, keep0, keep1)
    assert i.tolist() == j.tolist() == [0, 2, 3, 5]
    crowded = same.clone()
    crowded[0, 1] = crowded[0, 0]  # two cells go to one: its reverse decides
    b, i, j = mutual_cells(crowded, same, grid, grid)
    assert i.tolist() == [0, 2, 3, 4, 5]


def test_views_of_a_supervision(shift):
    truth = gt_from_homography(torch.cat([shift(8, 0), shift(900, 0)]), (16, 24), (16, 24))
    assert truth.shape == (2, 6, 6)
    assert truth.counts().tolist() == [4, 0]
    assert truth.valid_B.tolist() == [True, False] and truth.known_B.tolist() == [True, True]
    assert truth.partner().tolist() == [[1, 2, -1, 4, 5, -1], [-1] * 6]
    dense = truth.dense()
    assert dense.sum() == 4 and bool(dense[truth.b, truth.i, truth.j].all())


def test_offsets_and_fine_targets(shift):
    truth = gt_from_homography(shift(9.5, -2.0), (16, 24), (16, 24))
    one = torch.tensor([0])
    assert truth.offsets(one, torch.tensor([0]), torch.tensor([1])).tolist() == [[1.5, -2.0]]
    # 2 px a fine cell, two cells to the edge of a window of five.
    fine = truth.fine_targets(one, torch.tensor([0]), torch.tensor([1]))
    assert fine.tolist() == [[0.375, -0.5]]
    wide = truth.fine_targets(one, torch.tensor([0]), torch.tensor([1]), fine_stride=1, window=7)
    torch.testing.assert_close(wide, torch.tensor([[0.5, -2 / 3]]))


def test_a_supervision_without_any_match():
    none = torch.zeros(0, dtype=torch.int64)
    warped = torch.full((2, 4, 2), torch.nan)
    truth = Supervision(none, none, none, warped, torch.zeros(2, dtype=torch.bool), (2, 2), (2, 2))
    assert truth.counts().tolist() == [0, 0] and not truth.dense().any()
    assert truth.fine_targets(none, none, none).shape == (0, 2)
