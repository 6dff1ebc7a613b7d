"""Random directions: how many blocks, orthogonal within each, uniform by Haar measure."""

import pytest
import torch

from isoattn.core.frequencies import gaussian, orthogonal
from isoattn.core.streams import Stream

KEY = Stream(3).key()


@pytest.mark.parametrize("features", [1, 2, 7, 8, 9, 16, 21, 40])
@pytest.mark.parametrize("norms", ["chi", "sqrt"])
def test_rows_are_orthogonal_within_blocks_for_any_number_of_them(features, norms):
    dim = 8
    rows = orthogonal(KEY, 3, features, dim, norms)
    assert rows.shape == (3, features, dim)
    assert rows.dtype == torch.float32
    unit = rows.double() / rows.double().norm(dim=-1, keepdim=True)
    for start in range(0, features, dim):
        block = unit[:, start : start + dim]
        want = torch.eye(block.shape[1], dtype=torch.float64).expand(3, -1, -1)
        torch.testing.assert_close(block @ block.mT, want, rtol=0.0, atol=1e-6)
    if features > dim:  # blocks are independent of each other
        across = unit[:, :dim] @ unit[:, dim:].mT
        assert across.abs().max() > 1e-3


def test_blocks_and_heads_are_drawn_alone():
    rows = orthogonal(KEY, 2, 16, 8)
    assert not torch.allclose(rows[0], rows[1])
    assert not torch.allclose(rows[:, :8], rows[:, 8:])


def test_a_draw_is_a_function_of_its_key():
    stream = Stream(1)
    first, second = (orthogonal(stream.advance(), 2, 5, 4) for _ in range(2))
    stream.reseed(1)
    assert torch.equal(orthogonal(stream.advance(), 2, 5, 4), first)
    assert not torch.allclose(first, second)


def test_lengths():
    sqrt = orthogonal(KEY, 2, 20, 9, "sqrt").norm(dim=-1)
    torch.testing.assert_close(sqrt, torch.full_like(sqrt, 3.0))
    chi = orthogonal(KEY, 100, 90, 9).norm(dim=-1)
    # a chi distribution of 9 degrees: mean 2.918, variance 0.485
    assert abs(chi.square().mean().item() - 9.0) < 0.15
    assert abs(chi.var().item() - 0.485) < 0.03


@pytest.mark.parametrize("draws", [gaussian, orthogonal])
def test_every_row_alone_is_standard_normal(draws):
    rows = draws(KEY, 4000, 7, 5).double()
    assert rows.mean(0).abs().max() < 0.08  # five standard errors
    assert (rows.var(0) - 1.0).abs().max() < 0.12
    assert (rows.pow(4).mean(0) - 3.0).abs().max() < 0.8


def test_orthogonal_rows_are_haar():
    # Without the sign correction the diagonal of Q from a Householder QR is negative far more
    # often than not, and the trace and determinant have other moments than by Haar measure.
    q = orthogonal(KEY, 6000, 4, 4, "sqrt").double() / 2.0
    signs = (q > 0).double().mean(0)
    assert (signs - 0.5).abs().max() < 0.035
    trace = q.diagonal(dim1=-2, dim2=-1).sum(-1)
    assert abs(trace.mean().item()) < 0.07
    assert abs(trace.square().mean().item() - 1.0) < 0.1  # E tr^2 = 1, E tr^4 = 3
    assert abs(trace.pow(4).mean().item() - 3.0) < 0.6
    assert abs(torch.linalg.det(q).mean().item()) < 0.07
    # invariant under a fixed rotation: entries have variance 1 / D and no correlation
    flat = q.flatten(1)
    assert (flat.T @ flat / len(flat) - torch.eye(16).double() / 4.0).abs().max() < 0.03


@pytest.mark.parametrize("draws", [gaussian, orthogonal])
def test_sizes_below_one_are_refused(draws):
    with pytest.raises(ValueError, match="features and dim >= 1, got heads=1, features=0, dim=4"):
        draws(KEY, 1, 0, 4)


def test_unknown_norms_are_refused():
    with pytest.raises(ValueError, match="norms must be 'chi' or 'sqrt', got 'one'"):
        orthogonal(KEY, 1, 4, 4, "one")
