"""The code that torch's compiler generates, against eager."""

import pytest
import torch

from isoattn.core import CrossCovariance, Linear, Softmax

pytestmark = pytest.mark.slow


def test_autocast_is_left_inside_compiled_code():
    module = Linear(2, 8)
    torch._dynamo.reset()
    program = torch.compile(module, fullgraph=True, backend="aot_eager")
    q, k, v = (torch.randn(1, 2, 30, 8) for _ in range(3))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = program(q, k, v)
    torch.testing.assert_close(got, module(q, k, v))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("cls", [Linear, CrossCovariance, Softmax])
def test_generated_code_equals_eager(cls, causal):
    module = cls(2, 8)
    if causal and not module.capability.causal:
        return
    torch._dynamo.reset()
    program = torch.compile(module, fullgraph=True)
    draw = torch.Generator().manual_seed(0)
    inputs = [torch.randn(2, 2, 130, 8, generator=draw).requires_grad_() for _ in range(3)]
    mask = torch.rand(2, 130, generator=draw) > 0.3
    for options in ({}, {"key_mask": mask}):
        got = program(*inputs, causal=causal, **options)
        want = module(*inputs, causal=causal, **options)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
        for a, b in zip(
            torch.autograd.grad(got.square().sum(), inputs),
            torch.autograd.grad(want.square().sum(), inputs),
            strict=True,
        ):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
