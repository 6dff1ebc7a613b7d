"""Ground truth of a homography (LoFTR#324, #254: training needs no depth)."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isoattn.matching.data.sampling import HomographyOptions, draw_homography
from isoattn.matching.models.cells import cell_points
from isoattn.matching.supervision import gt_from_homography


def test_a_shift_by_whole_cells(shift):
    truth = gt_from_homography(shift(16, 8), (40, 48), (40, 48))
    assert len(truth.b) == 4 * 4
    column, row = truth.i % 6, truth.i // 6
    assert torch.equal(truth.j, (row + 1) * 6 + column + 2)


@given(seed=st.integers(0, 10_000))
@settings(deadline=None, max_examples=25)
def test_matches_are_one_to_one_near_their_place_and_turn_with_the_pair(seed):
    generator = torch.Generator().manual_seed(seed)
    size0, size1 = (96, 128), (80, 112)
    drawn = draw_homography(size0, HomographyOptions(), generator).matrix_33.float()[None]
    truth = gt_from_homography(drawn, size0, size1)
    assert len(truth.i.unique()) == len(truth.i) and len(truth.j.unique()) == len(truth.j)
    offset = truth.offsets(truth.b, truth.i, truth.j)
    assert float(offset.abs().max()) <= 4.0 + 1e-3
    turned = gt_from_homography(torch.linalg.inv(drawn), size1, size0)
    pairs = set(zip(truth.i.tolist(), truth.j.tolist(), strict=True))
    other = set(zip(turned.j.tolist(), turned.i.tolist(), strict=True))
    # A place on the border of two cells may round either way.
    assert len(pairs ^ other) <= 2


def test_the_same_with_the_matrix_scaled(shift):
    for factor in (-1.0, 0.593, 1e3):
        truth = gt_from_homography(factor * shift(8, 0), (24, 24), (24, 24))
        assert len(truth.b) == 6


def test_padding_matches_nothing(shift):
    keep = torch.ones(1, 9, dtype=torch.bool)
    keep[0, 6:] = False
    whole = gt_from_homography(shift(0, 0), (24, 24), (24, 24))
    padded = gt_from_homography(shift(0, 0), (24, 24), (24, 24), keep0_BL=keep)
    other = gt_from_homography(shift(0, 0), (24, 24), (24, 24), keep1_BS=keep)
    assert len(whole.b) == 9
    assert padded.i.tolist() == other.i.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("bad", [torch.zeros(3, 3), torch.full((3, 3), torch.nan)])
def test_a_matrix_that_is_none_gives_no_ground_truth(bad, shift):
    both = torch.cat([bad[None], shift(0, 0)])
    truth = gt_from_homography(both, (16, 16), (16, 16))
    assert truth.known_B.tolist() == [False, True]
    assert truth.counts().tolist() == [0, 4]
    assert truth.warped0_BL2[0].isnan().all() and not truth.warped0_BL2[1].isnan().any()


def test_large_translations_are_no_fault_of_single_precision(shift):
    truth = gt_from_homography(shift(4000, 0), (16, 4800), (16, 4800))
    assert len(truth.b) == 2 * 100
    far = cell_points(truth.j, truth.grid1) - cell_points(truth.i, truth.grid0)
    assert far.unique(dim=0).tolist() == [[4000.0, 0.0]]
