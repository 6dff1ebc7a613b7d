import torch

from isoattn.core import Identity, Mean, Zero


def inputs():
    return [torch.randn(2, 3, 6, 4, requires_grad=True) for _ in range(3)]


def test_mean():
    q, k, v = inputs()
    out = Mean(3, 4)(q, k, v)
    torch.testing.assert_close(out, v.mean(2, keepdim=True).expand_as(v))
    causal = Mean(3, 4)(q, k, v, causal=True)
    torch.testing.assert_close(causal[:, :, 2], v[:, :, :3].mean(2))


def test_mean_of_float16_does_not_overflow():
    v = torch.full((1, 1, 16_384, 2), 1000.0).half()
    for causal in (False, True):
        assert torch.equal(Mean(1, 2)(v, v, v, causal=causal), v)


def test_identity_and_zero():
    q, k, v = inputs()
    assert torch.equal(Identity(3, 4)(q, k, v), v)
    assert torch.equal(Zero(3, 4)(q, k, v), torch.zeros_like(v))


def test_every_input_gets_a_gradient_so_that_training_code_runs():
    for cls in (Mean, Identity, Zero):
        q, k, v = inputs()
        with torch.no_grad():
            q[0, 0, 0, 0] = float("nan")  # what is not used does not matter
        cls(3, 4)(q, k, v).sum().backward()
        assert not q.grad.any()
        assert not k.grad.any()
        assert v.grad.any() == (cls is not Zero)


def test_outputs_may_be_changed_in_place():
    for cls in (Mean, Identity, Zero):
        q, k, v = (x.detach() for x in inputs())
        kept = v.clone()
        cls(3, 4)(q, k, v).add_(1.0)
        assert torch.equal(v, kept)
