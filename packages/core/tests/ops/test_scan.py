"""The diagonal scan against the loop over tokens."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isoattn.core.ops.reference import scan as reference
from isoattn.core.ops.scan import diagonal_scan


def draw(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def decays(*shape, scale=1.0, dtype=torch.float64):
    return -scale * draw(*shape, seed=1, dtype=dtype).exp()


def everything(call, *inputs):
    """Outputs and the gradients of all inputs."""
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    h, last = call(*inputs)
    loss = (h * draw(*h.shape, seed=9)).sum() + last.sin().sum()
    return [h, last, *torch.autograd.grad(loss, inputs)]


@settings(derandomize=True, deadline=None, max_examples=40, database=None)
@given(
    n=st.integers(1, 300),
    axes=st.sampled_from([(), (1,), (3,), (2, 3)]),
    scale=st.sampled_from([1e-7, 1.0, 1e3]),
    seed=st.integers(0, 9),
)
def test_equals_the_loop(n, axes, scale, seed):
    inputs = decays(2, n, *axes, scale=scale), draw(2, n, *axes, seed=seed), draw(2, *axes)
    for got, want in zip(
        everything(diagonal_scan, *inputs),
        everything(reference.diagonal_scan, *inputs),
        strict=True,
    ):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("channels", [1, 2000])
def test_pieces_of_the_time_axis(channels):
    # wide enough to be walked through in pieces on the CPU, forwards and backwards
    inputs = decays(1, 150, channels), draw(1, 150, channels), draw(1, channels)
    for got, want in zip(
        everything(diagonal_scan, *inputs),
        everything(reference.diagonal_scan, *inputs),
        strict=True,
    ):
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)


def test_forgetting_everything():
    log_a = decays(1, 20, 3)
    log_a[:, 7] = -torch.inf
    x, h0 = draw(1, 20, 3), draw(1, 3, seed=3)
    results = everything(diagonal_scan, log_a, x, h0)
    assert all(r.isfinite().all() for r in results)
    assert torch.equal(results[0][:, 7], x[:, 7])
    torch.testing.assert_close(results[0][:, 7:], diagonal_scan(log_a[:, 7:], x[:, 7:])[0])
    assert not torch.autograd.functional.jacobian(lambda h: diagonal_scan(log_a, x, h)[1], h0).any()


def test_continues_from_the_state():
    log_a, x = decays(2, 50, 3), draw(2, 50, 3)
    whole, last = diagonal_scan(log_a, x)
    for cut in (0, 1, 31, 50):
        first, state = diagonal_scan(log_a[:, :cut], x[:, :cut])
        second, state = diagonal_scan(log_a[:, cut:], x[:, cut:], state)
        torch.testing.assert_close(torch.cat([first, second], 1), whole)
        torch.testing.assert_close(state, last)


def test_first_and_second_derivatives():
    inputs = [x.requires_grad_() for x in (decays(1, 5, 2), draw(1, 5, 2), draw(1, 2))]
    assert torch.autograd.gradcheck(diagonal_scan, inputs)
    assert torch.autograd.gradgradcheck(diagonal_scan, inputs)
    assert torch.autograd.gradcheck(diagonal_scan, inputs[:2])


def test_one_decay_for_many_channels():
    log_a, x = decays(1, 9, 1), draw(1, 9, 4)
    torch.testing.assert_close(
        diagonal_scan(log_a, x)[0], diagonal_scan(log_a.expand(1, 9, 4).contiguous(), x)[0]
    )


def test_slow_decay_in_float32():
    # 1 - 3e-8 is 1 in float32: a product of rounded decays would not decay at all
    n = 2**18
    log_a = torch.full((1, n, 1), -3e-8)
    h, _ = diagonal_scan(log_a, torch.zeros(1, n, 1), torch.ones(1, 1))
    assert abs(h[0, -1].item() - float(torch.tensor(-3e-8 * n).double().exp())) < 2e-7


@pytest.mark.slow
def test_compiled():
    program = torch.compile(diagonal_scan, fullgraph=True, dynamic=True, backend="aot_eager")
    for n in (70, 131):
        inputs = decays(2, n, 3), draw(2, n, 3), draw(2, 3)
        for got, want in zip(
            everything(program, *inputs), everything(diagonal_scan, *inputs), strict=True
        ):
            torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_inputs_are_left_alone():
    inputs = decays(1, 65, 3), draw(1, 65, 3), draw(1, 3)
    kept = [x.clone() for x in inputs]
    everything(diagonal_scan, *inputs)
    diagonal_scan(*inputs)[0].add_(1.0)
    for x, before in zip(inputs, kept, strict=True):
        assert torch.equal(x, before)
