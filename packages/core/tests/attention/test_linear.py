import pytest
import torch

from isoattn.core import Linear, UnsupportedAttention

MAPS = ("elu1", "relu", "softplus", "exp")


def test_very_negative_inputs_still_average():
    # elu(x) + 1 rounds to 0 here, and with it the denominator.
    q = k = torch.full((1, 2, 9, 4), -20.0)
    v = torch.randn(1, 2, 9, 3)
    for name in ("elu1", "softplus", "exp"):
        out = Linear(2, 4, feature_map=name)(q, k, v)
        torch.testing.assert_close(out, v.mean(2, keepdim=True).expand_as(out))


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("causal", [False, True])
def test_a_row_without_weight_is_zero_with_zero_gradient(name, causal):
    q = torch.full((1, 1, 5, 3), -1e4, requires_grad=True)
    k, v = torch.full((1, 1, 5, 3), -1e4, requires_grad=True), torch.randn(1, 1, 5, 2)
    if name == "exp":  # its rows never lose their weight, however small
        torch.testing.assert_close(
            Linear(1, 3, feature_map=name)(q, k, v)[0, 0, 0], v[0, 0].mean(0)
        )
        return
    out = Linear(1, 3, feature_map=name)(q, k, v, causal=causal)
    out.sum().backward()
    assert not out.any()
    assert not q.grad.any()
    assert not k.grad.any()


def test_exp_neither_overflows_nor_vanishes():
    draw = torch.Generator().manual_seed(0)
    q, k = (1e4 * torch.randn(1, 2, 50, 4, generator=draw) for _ in range(2))
    v = torch.randn(1, 2, 50, 4, generator=draw)
    q.requires_grad_()
    out = Linear(2, 4, feature_map="exp")(q, k, v)
    out.sum().backward()
    assert out.isfinite().all()
    assert q.grad.isfinite().all()
    assert out.abs().max() <= v.abs().max()


def test_exp_has_no_causal_form_and_no_eps():
    module = Linear(1, 2, feature_map="exp")
    assert not module.capability.causal
    assert Linear.capability.causal
    x = torch.randn(1, 1, 3, 2)
    with pytest.raises(UnsupportedAttention, match="Linear has no causal form: .*the future"):
        module(x, x, x, causal=True)
    with pytest.raises(ValueError, match="eps=1e-06 has no meaning with feature_map='exp'"):
        Linear(1, 2, feature_map="exp", eps=1e-6)


def test_options_are_checked():
    with pytest.raises(
        ValueError, match="feature_map must be one of elu1, relu, softplus, exp, got 'gelu'"
    ):
        Linear(1, 2, feature_map="gelu")
    with pytest.raises(ValueError, match="eps must not be negative, got -1"):
        Linear(1, 2, eps=-1)


@pytest.mark.parametrize("spread", [1.0, 3.0])
def test_float16_at_the_length_where_released_code_gives_zeros(spread):
    draw = torch.Generator().manual_seed(0)
    q, k, v = (spread * torch.randn(1, 8, 4800, 32, generator=draw) for _ in range(3))
    q, k, v = q.half(), k.half(), v.half()
    module = Linear(8, 32)
    rows = slice(0, 4800, 160)
    want = module.reference(q[:, :, rows], k, v)
    for cast in (False, True):
        with torch.autocast("cpu", dtype=torch.float16, enabled=cast):
            out = module(q, k, v)
        assert out.dtype == torch.float16
        assert (out[:, :, rows] - want).abs().max() <= 1e-3


def test_the_backward_pass_ignores_autocast():
    q, k, v = (torch.randn(1, 2, 30, 4, requires_grad=True) for _ in range(3))
    for causal in (False, True):
        out = Linear(2, 4)(q, k, v, causal=causal)
        want = torch.autograd.grad(out.sum(), (q, k, v), retain_graph=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = torch.autograd.grad(out.sum(), (q, k, v))
        for a, b in zip(got, want, strict=True):
            assert torch.equal(a, b)
