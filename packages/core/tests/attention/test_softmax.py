import pytest
import torch

from isoattn.core import CosineSoftmax, CrossCovariance, Softmax


def test_fused_has_no_second_derivative_and_says_so():
    q, k, v = (torch.randn(1, 2, 5, 4, requires_grad=True) for _ in range(3))
    module = Softmax(2, 4)
    assert not module.capability.double_backward
    (grad,) = torch.autograd.grad(module(q, k, v).sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="not implemented"):
        torch.autograd.grad(grad.sum(), q)
    assert Softmax(2, 4, path="math").capability.double_backward


@pytest.mark.parametrize("cls", [Softmax, CosineSoftmax])
def test_unknown_path(cls):
    with pytest.raises(ValueError, match="path must be 'fused' or 'math', got 'flash'"):
        cls(2, 4, path="flash")


def test_cosine_and_cross_covariance_have_the_same_parameters():
    for options in ({}, {"temperature_init": 10.0}, {"learn_temperature": False}):
        cosine, cross = CosineSoftmax(3, 4, **options), CrossCovariance(3, 4, **options)
        for a, b in zip(cosine.named_parameters(), cross.named_parameters(), strict=True):
            assert a[0] == b[0] == "temperature"
            assert torch.equal(a[1], b[1])
            assert (
                a[1].requires_grad == b[1].requires_grad == options.get("learn_temperature", True)
            )
        assert cosine.state_dict()["temperature"].shape == (3, 1, 1)
        assert cosine.no_weight_decay == cross.no_weight_decay == {"temperature"}


def test_cosine_ignores_length_and_takes_zero_vectors():
    q, k, v = (torch.randn(1, 2, 6, 4) for _ in range(3))
    module = CosineSoftmax(2, 4, temperature_init=10.0)
    torch.testing.assert_close(module(7.0 * q, 0.01 * k, v), module(q, k, v))
    q = torch.zeros_like(q).requires_grad_()
    out = module(q, k, v)
    torch.testing.assert_close(out, v.mean(2, keepdim=True).expand_as(out))
    out.sum().backward()
    assert not q.grad.any()


def test_the_math_path_refuses_nothing_the_fused_one_takes():
    q, k, v = torch.randn(2, 4, 7, 3), torch.randn(2, 2, 9, 3), torch.randn(2, 2, 9, 5)
    mask = torch.rand(2, 9) > 0.4
    mask[1] = False
    for causal in (False, True):
        fused, math = (
            Softmax(4, 3, path=p)(q, k, v, key_mask=mask, causal=causal) for p in ("fused", "math")
        )
        torch.testing.assert_close(fused, math)
        assert not fused[1].any()
