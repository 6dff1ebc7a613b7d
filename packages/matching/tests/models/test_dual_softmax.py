"""Dual softmax in log space: the formula, masks, streamed against dense, half precision, ties."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isoattn.matching.models.dual_softmax import dual_log_softmax, similarity, stream_nearest
from isoattn.matching.models.nearest import Nearest, nearest, select


def tokens(batch, n, m, dim=16, seed=0, dtype=torch.float64, scale=2.0):
    generator = torch.Generator().manual_seed(seed)
    x0 = torch.randn(batch, n, dim, generator=generator, dtype=torch.float64) * scale
    x1 = torch.randn(batch, m, dim, generator=generator, dtype=torch.float64) * scale
    return x0.to(dtype), x1.to(dtype)


def masks(batch, n, m, seed=0, keep=0.6):
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.rand(batch, n, generator=generator) < keep,
        torch.rand(batch, m, generator=generator) < keep,
    )


def test_it_is_the_product_of_two_softmaxes():
    x0, x1 = tokens(2, 7, 9)
    logits = x0 @ x1.mT / (16 * 0.1)
    want = logits.softmax(1) * logits.softmax(2)
    got = dual_log_softmax(similarity(x0, x1, 0.1)).exp()
    torch.testing.assert_close(got, want)


def test_masked_equals_cropped_and_masked_pairs_have_no_confidence():
    x0, x1 = tokens(1, 12, 10)
    mask0, mask1 = masks(1, 12, 10)
    x0.masked_fill_(~mask0[:, :, None], 1e6)
    got = dual_log_softmax(similarity(x0, x1, 0.1), mask0, mask1).exp()
    cropped = dual_log_softmax(similarity(x0[:, mask0[0]], x1[:, mask1[0]], 0.1)).exp()
    pair = mask0[:, :, None] & mask1[:, None, :]
    torch.testing.assert_close(got[pair], cropped.flatten())
    assert (got[~pair] == 0).all()
    one = dual_log_softmax(similarity(x0, x1, 0.1), None, mask1)
    assert (one.exp().masked_select(~mask1[:, None]) == 0).all()


@pytest.mark.parametrize("empty", ["neither", "0", "1", "both"])
def test_gradients_are_finite_where_cells_are_masked(empty):
    x0, x1 = tokens(2, 6, 5)
    mask0, mask1 = masks(2, 6, 5)
    mask0[0] &= empty not in ("0", "both")
    mask1[0] &= empty not in ("1", "both")
    x0.requires_grad_(), x1.requires_grad_()
    got = dual_log_softmax(similarity(x0, x1, 0.1), mask0, mask1)
    pair = mask0[:, :, None] & mask1[:, None, :]
    got[pair].sum().backward()
    for x, mask in ((x0, mask0), (x1, mask1)):
        assert x.grad.isfinite().all()
        assert not x.grad[~mask].any()


def test_gradcheck():
    x0, x1 = (x.requires_grad_() for x in tokens(1, 4, 3, dim=4, scale=0.5))
    mask0, mask1 = torch.tensor([[True, True, False, True]]), torch.tensor([[True, False, True]])

    def function(a, b):
        out = dual_log_softmax(similarity(a, b, 0.5), mask0, mask1)
        return out[mask0[:, :, None] & mask1[:, None, :]]

    assert torch.autograd.gradcheck(function, (x0, x1))


def assert_same(one: Nearest, other: Nearest):
    torch.testing.assert_close(one.score, other.score)
    seen = one.score > -torch.inf
    assert torch.equal(one.cell[seen], other.cell[seen])
    assert torch.equal(one.mutual, other.mutual)


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 3),
    st.integers(1, 40),
    st.integers(1, 40),
    st.integers(1, 300),
    st.sampled_from([0, 10**9]),
    st.sampled_from([None, 0.0, 0.1, 0.7]),
    st.integers(0, 10**6),
)
def test_streamed_equals_dense(batch, n, m, block, kept, keep, seed):
    x0, x1 = tokens(batch, n, m, seed=seed)
    mask0, mask1 = (None, None) if keep is None else masks(batch, n, m, seed, keep)
    dense = nearest(dual_log_softmax(similarity(x0, x1, 0.1), mask0, mask1))
    streamed = stream_nearest(x0, x1, 0.1, mask0, mask1, block_numbers=block, kept_numbers=kept)
    assert_same(streamed, dense)


@pytest.mark.parametrize("kept", [0, 10**9])
def test_streamed_never_holds_the_matrix(kept):
    """The largest tensor made is a block, unless keeping is allowed."""
    sizes = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            parts = out if isinstance(out, tuple) else (out,)
            sizes.extend(x.numel() for x in parts if isinstance(x, torch.Tensor))
            return out

    x0, x1 = tokens(1, 200, 210)
    with Watch():
        stream_nearest(x0, x1, 0.1, block_numbers=210 * 20, kept_numbers=kept)
    assert max(sizes) == 210 * 20


def test_the_first_of_equals_wins():
    x0 = torch.ones(1, 3, 4, dtype=torch.float64)
    x1 = torch.ones(1, 5, 4, dtype=torch.float64)
    dense = nearest(dual_log_softmax(similarity(x0, x1, 0.1)))
    for found in (dense, stream_nearest(x0, x1, 0.1, block_numbers=5)):
        assert found.cell.tolist() == [[0, 0, 0]]
        assert found.mutual.tolist() == [[True, False, False]]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_with_masks(dtype):
    """zju3dv/LoFTR#285: -1e9 does not fit float16, and larger features overflow the product."""
    x0, x1 = tokens(1, 40, 40, dim=64, dtype=dtype, scale=30.0)
    mask0, mask1 = masks(1, 40, 40)
    got = dual_log_softmax(similarity(x0, x1, 0.1), mask0, mask1)
    want = dual_log_softmax(similarity(x0.double(), x1.double(), 0.1), mask0, mask1)
    assert got.dtype == torch.float32
    pair = mask0[:, :, None] & mask1[:, None, :]
    torch.testing.assert_close(got[pair].double(), want[pair], rtol=1e-4, atol=1e-3)
    assert (got[~pair] == -torch.inf).all()
    streamed = stream_nearest(x0, x1, 0.1, mask0, mask1)
    assert_same(streamed, nearest(got))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        again = dual_log_softmax(similarity(x0, x1, 0.1), mask0, mask1)
    assert torch.equal(again, got)


def test_select_takes_mutual_pairs_above_the_threshold_inside_the_border():
    score = torch.tensor([[0.9, 0.5, 0.3, 0.19, 0.8]]).log()
    found = Nearest(
        torch.tensor([[4, 3, 2, 1, 0]]),
        score,
        torch.tensor([[True, True, False, True, True]]),
    )
    got = select(found, 0.2)
    assert got.cell0.tolist() == [0, 1, 4] and got.cell1.tolist() == [4, 3, 0]
    torch.testing.assert_close(got.confidence, torch.tensor([0.9, 0.5, 0.8]))
    assert select(found, 0.0).cell0.tolist() == [0, 1, 3, 4]
    inner = torch.tensor([[False, True, True, True, True]])
    assert select(found, 0.2, inner).cell0.tolist() == [1, 4]
    assert select(found, 0.2, None, inner).cell0.tolist() == [0, 1]
    assert len(select(found, 1.0)) == 0
    with pytest.raises(ValueError, match=r"threshold is a confidence in \[0, 1\], got 1.5"):
        select(found, 1.5)


def test_confidence_starts_far_below_the_clamp_of_the_released_loss():
    """What log space is for: at such logits the probability is 0 in float32."""
    x0, x1 = tokens(1, 50, 50, dim=256, dtype=torch.float32, scale=30.0)
    log_p = dual_log_softmax(similarity(x0, x1, 0.1))
    assert log_p.isfinite().all() and log_p.min() < math.log(1e-45)
