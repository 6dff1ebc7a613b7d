"""The coarse grid: sizes, coordinates, both kinds of masks, the border along the valid part."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isoattn.matching.models.cells import cell_mask, cell_points, grid_of, inner_cells


def test_sizes_are_rounded_up():
    assert grid_of(8, 9) == (1, 2)
    assert grid_of(1704, 2272) == (213, 284)


def test_a_cell_sits_on_its_pixel():
    points = cell_points(torch.tensor([0, 4, 7]), (2, 5))
    assert points.tolist() == [[0, 0], [32, 0], [16, 8]]


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 10**6))
def test_pixel_masks_and_cell_masks_agree(height, width, seed):
    generator = torch.Generator().manual_seed(seed)
    image = torch.zeros(2, 1, height, width)
    pixels = torch.rand(2, height, width, generator=generator) > 0.5
    want = pixels[:, ::8, ::8].flatten(1)
    assert torch.equal(cell_mask(pixels, image), want)
    assert torch.equal(cell_mask(pixels[:, None], image), want)
    assert torch.equal(cell_mask(pixels[:, ::8, ::8], image), want)
    assert cell_mask(None, image) is None


def test_other_masks_are_refused():
    image = torch.zeros(1, 1, 20, 30)
    with pytest.raises(ValueError, match=r"mask0 must be bool, True = keep, over pixels \(1, 20, "):
        cell_mask(torch.ones(1, 20, 30), image, "mask0")
    with pytest.raises(ValueError, match=r"cells \(1, 3, 4\); got torch.bool \(1, 2, 3\)"):
        cell_mask(torch.ones(1, 2, 3, dtype=torch.bool), image)


def test_border_without_mask():
    inner = inner_cells(None, 2, (5, 7), 2).view(2, 5, 7)
    assert inner.sum() == 2 * 1 * 3 and inner[:, 2, 2:5].all()
    assert inner_cells(None, 2, (5, 7), 0) is None
    assert not inner_cells(None, 1, (4, 7), 2).any()


def test_border_runs_along_the_valid_part_wherever_it_lies():
    mask = torch.zeros(2, 6, 8, dtype=torch.bool)
    mask[0, :5, :6] = True
    mask[1, 1:, 3:] = True
    inner = inner_cells(mask.flatten(1), 2, (6, 8), 1).view(2, 6, 8)
    want = torch.zeros_like(mask)
    want[0, 1:4, 1:5] = True
    want[1, 2:5, 4:7] = True
    assert torch.equal(inner, want)
    assert torch.equal(inner_cells(mask.flatten(1), 2, (6, 8), 0), mask.flatten(1))
    assert not inner_cells(torch.zeros(1, 48, dtype=torch.bool), 1, (6, 8), 0).any()


def test_a_hole_inside_is_no_border():
    mask = torch.ones(1, 5, 5, dtype=torch.bool)
    mask[0, 2, 2] = False
    inner = inner_cells(mask.flatten(1), 1, (5, 5), 1).view(5, 5)
    assert inner.sum() == 8 and not inner[2, 2]
