"""PPEG over true places: the convolution of the released code, wherever the tiles lie."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from isoattn.wsi.models import PPEG
from isoattn.wsi.models.ppeg import neighbours


def made(dim=3, seed=0):
    torch.manual_seed(seed)
    return PPEG(dim).double()


def tokens(n, dim=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, 1 + n, dim, generator=generator, dtype=torch.float64)


def places(n, side, seed):
    generator = torch.Generator().manual_seed(seed)
    place = torch.randperm(side * side, generator=generator)[:n]
    return torch.stack([place % side, place // side], 1)


def dense(ppeg, x_1ND, cells_n2):
    """Tiles laid out on an empty map, three convolutions, tiles read off again."""
    columns, rows = (cells_n2.max(0).values + 1).tolist()
    grid = torch.zeros(1, x_1ND.shape[2], rows, columns, dtype=x_1ND.dtype)
    grid[0, :, cells_n2[:, 1], cells_n2[:, 0]] = x_1ND[0, 1:].T
    out = grid + ppeg.conv7(grid) + ppeg.conv5(grid) + ppeg.conv3(grid)
    return torch.cat([x_1ND[:, :1], out[:, :, cells_n2[:, 1], cells_n2[:, 0]].transpose(1, 2)], 1)


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 30), side=st.integers(6, 15), seed=st.integers(0, 99))
def test_places_are_a_sparse_map(n, side, seed):
    ppeg, at = made(), places(n, side, seed)
    x, y = tokens(n).requires_grad_(), tokens(n).requires_grad_()
    got, want = ppeg(x, at[None] + 5), dense(ppeg, y, at)
    torch.testing.assert_close(got, want)
    weight = torch.randn_like(got)
    mine = torch.autograd.grad((got * weight).sum(), [x, *ppeg.parameters()])
    theirs = torch.autograd.grad((want * weight).sum(), [y, *ppeg.parameters()])
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_gradcheck():
    ppeg, at = made(2), places(7, 4, 0)[None]
    x = tokens(7, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: ppeg(t, at), x)


def test_tiles_of_one_cell_see_themselves_and_others_see_the_first():
    at = torch.tensor([[4, 4], [4, 4], [5, 4]])
    near = neighbours(at)
    middle = 24
    assert near[:, middle].tolist() == [0, 1, 2]
    assert near[2, middle - 1] == 0  # the left neighbour of tile 2
    assert near[0, middle + 1] == near[1, middle + 1] == 2
    ppeg = made()
    x = tokens(3).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: ppeg(t, at[None]), x)


def test_far_apart_costs_nothing():
    at = torch.tensor([[0, 0], [10**6, 10**6]])
    x = tokens(2)
    ppeg = made()
    alone = torch.cat(
        [dense(ppeg, x[:, [0, 1]], at[:1]), dense(ppeg, x[:, [0, 2]], at[:1])[:, 1:]], 1
    )
    torch.testing.assert_close(ppeg(x, at[None]), alone)


def test_the_merged_kernel_is_the_three_convolutions():
    ppeg, x = made(), tokens(25)
    grid = x[:, 1:].transpose(1, 2).view(1, 3, 5, 5)
    weight, bias = ppeg._merged()
    want = grid + ppeg.conv7(grid) + ppeg.conv5(grid) + ppeg.conv3(grid)
    torch.testing.assert_close(F.conv2d(grid, weight, bias, padding=3, groups=3), want)


def test_what_is_no_square_is_refused():
    with pytest.raises(ValueError, match="10 tiles fill no square"):
        made()(tokens(10))
