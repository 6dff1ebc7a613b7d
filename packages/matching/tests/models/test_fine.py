"""Fine refinement: windows, expectation and deviation, nothing to refine."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from isoattn.matching.models.cells import grid_of
from isoattn.matching.models.fine import FinePreprocess, expectation, gather_windows


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 60), st.integers(1, 60), st.booleans())
def test_windows_are_those_of_the_unfolded_map(height, width, channels_last):
    grid, size = grid_of(height, width), (-(-height // 2), -(-width // 2))
    fine = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0))
    cells = grid[0] * grid[1]
    want = F.unfold(fine, 5, stride=4, padding=2).view(2, 3, 25, cells).permute(0, 3, 2, 1)
    if channels_last:
        fine = fine.contiguous(memory_format=torch.channels_last)
    batch, cell = torch.arange(2).repeat_interleave(cells), torch.arange(cells).repeat(2)
    assert torch.equal(gather_windows(fine, batch, cell, grid), want.reshape(-1, 25, 3))


def test_merging_in_two_products_is_the_linear_map_of_both():
    module = FinePreprocess(12, 8).double()
    generator = torch.Generator().manual_seed(0)
    fine = torch.randn(1, 8, 12, 16, generator=generator, dtype=torch.float64)
    coarse = torch.randn(1, 12, 12, generator=generator, dtype=torch.float64)
    batch, cell = torch.zeros(4, dtype=torch.int64), torch.tensor([0, 3, 7, 11])
    windows = gather_windows(fine, batch, cell, (3, 4))
    context = module.down_proj(coarse[batch, cell])[:, None].expand(-1, 25, -1)
    want = module.merge_feat(torch.cat([windows, context], 2))
    torch.testing.assert_close(module(fine, coarse, batch, cell, (3, 4)), want)


def test_a_sure_match_has_its_place_and_no_deviation():
    centre = torch.zeros(25, 25, 8)
    centre[:, 12, 0] = 1.0
    other = torch.zeros(25, 25, 8)
    other[torch.arange(25), torch.arange(25), 0] = 1e4
    found = expectation(centre, other)
    y, x = torch.arange(25) // 5 * 0.5 - 1, torch.arange(25) % 5 * 0.5 - 1
    torch.testing.assert_close(found.expectation, torch.stack([x, y], 1))
    torch.testing.assert_close(found.offset(), torch.stack([x, y], 1) * 4)
    torch.testing.assert_close(found.std, torch.full((25,), 2e-5), rtol=1e-3, atol=1e-6)


def test_no_similarity_is_the_middle_with_the_deviation_of_a_square():
    found = expectation(torch.zeros(2, 25, 8), torch.ones(2, 25, 8))
    torch.testing.assert_close(found.expectation, torch.zeros(2, 2), atol=1e-6, rtol=0)
    torch.testing.assert_close(found.std, torch.full((2,), 2 * 0.5**0.5))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_deviation_in_half_precision_is_that_of_single(dtype):
    generator = torch.Generator().manual_seed(0)
    one, other = (torch.randn(50, 25, 16, generator=generator).to(dtype) for _ in range(2))
    got, want = expectation(one, other), expectation(one.double(), other.double())
    assert got.std.dtype == torch.float32
    torch.testing.assert_close(got.std.double(), want.std, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(got.expectation.double(), want.expectation, rtol=1e-4, atol=1e-4)


def test_gradients_are_finite_where_the_deviation_is_0():
    one, other = torch.zeros(1, 25, 4), torch.zeros(1, 25, 4)
    one[:, 12], other[:, 3] = 100.0, 100.0
    one.requires_grad_(), other.requires_grad_()
    found = expectation(one, other)
    (found.std.sum() + found.expectation.sum()).backward()
    assert one.grad.isfinite().all() and other.grad.isfinite().all()
