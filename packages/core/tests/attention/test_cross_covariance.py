import pytest
import torch

from isoattn.core import CrossCovariance, UnsupportedAttention


def test_black_and_constant_inputs_are_finite_in_float16():
    module = CrossCovariance(2, 4)
    for value in (0.0, 1.0, -300.0):
        q, k, v = (torch.full((1, 2, 16_384, 4), value).half().requires_grad_() for _ in range(3))
        out = module(q, k, v)
        out.float().mean().backward()
        torch.testing.assert_close(out, v, rtol=1e-3, atol=0.0)  # rows of A sum to 1
        for x in (q, k, v, module.temperature):
            assert x.grad.isfinite().all()


def test_a_dead_channel_gets_no_gradient():
    q, k, v = (torch.randn(1, 1, 9, 3) for _ in range(3))
    q[..., 0] = 0.0
    q.requires_grad_()
    module = CrossCovariance(1, 3)
    module(q, k, v).square().sum().backward()
    assert not q.grad[..., 0].any()
    assert q.grad[..., 1:].all()
    weights = module.channel_matrix(q, k)
    torch.testing.assert_close(weights[0, 0, 0], torch.full((3,), 1 / 3))


def test_length_does_not_count_but_temperature_does():
    q, k, v = (torch.randn(2, 2, 20, 4) for _ in range(3))
    cold, warm = CrossCovariance(2, 4, temperature_init=50.0), CrossCovariance(2, 4)
    torch.testing.assert_close(warm(9.0 * q, 0.2 * k, v), warm(q, k, v))
    assert cold.channel_matrix(q, k).amax(-1).mean() > warm.channel_matrix(q, k).amax(-1).mean()


def test_masked_tokens_count_in_no_norm():
    q, k, v = (torch.randn(1, 2, 20, 4) for _ in range(3))
    mask = torch.arange(20)[None] < 13
    module = CrossCovariance(2, 4)
    short = module.channel_matrix(q[:, :, :13], k[:, :, :13])
    torch.testing.assert_close(module.channel_matrix(q, k, key_mask=mask), short)
    out = module(q, k, v, key_mask=mask)
    assert not out[:, :, 13:].any()


def test_what_it_cannot_do():
    module = CrossCovariance(2, 4)
    q, k, v = (torch.randn(1, 2, 6, 4) for _ in range(3))
    with pytest.raises(UnsupportedAttention, match="no cross form: q and k are paired"):
        module(q, k[:, :, :5], v[:, :, :5])
    with pytest.raises(UnsupportedAttention, match="no causal form: .* the future included"):
        module(q, k, v, causal=True)
    with pytest.raises(UnsupportedAttention, match="Use channel_matrix"):
        module.matrix(q, k)
    with pytest.raises(ValueError, match="v must have dim 4, got"):
        module(q, k, v[..., :3])


def test_a_frozen_temperature_gets_no_gradient():
    module = CrossCovariance(2, 4, learn_temperature=False)
    q, k, v = (torch.randn(1, 2, 6, 4, requires_grad=True) for _ in range(3))
    module(q, k, v).sum().backward()
    assert module.temperature.grad is None
    (grad,) = torch.autograd.grad(module(q, k, v).square().sum(), q, create_graph=True)
    grad.square().sum().backward()
    assert module.temperature.grad is None


def test_the_backward_pass_ignores_autocast():
    module = CrossCovariance(2, 4)
    inputs = [torch.randn(1, 2, 30, 4, requires_grad=True) for _ in range(3)]
    out = module(*inputs)
    want = torch.autograd.grad(out.square().sum(), inputs, retain_graph=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = torch.autograd.grad(out.square().sum(), inputs)
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a, b)
