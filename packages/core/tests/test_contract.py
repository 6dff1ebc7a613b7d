import subprocess
import sys

import pytest
import torch

import isoattn.core
from isoattn.core import Attention, Capability, Cost, Shape, Softmax, UnsupportedAttention
from isoattn.core import Linear as LinearAttention


def qkv(*, keys=5, heads=2, dim=3, value_dim=3):
    return (
        torch.randn(1, 2, 5, 3),
        torch.randn(1, heads, keys, dim),
        torch.randn(1, heads, keys, value_dim),
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda q, k, v: (q[0], k, v),
            r"Softmax takes q, k, v as \(batch, heads, tokens, dim\); got q \(2, 5, 3\)",
        ),
        (
            lambda q, k, v: (q.transpose(1, 2), k, v),
            r"has heads=2, head_dim=3 and takes .*got q \(1, 5, 2, 3\)",
        ),
        (lambda q, k, v: (q, k[..., :2], v), r"got .* k \(1, 2, 5, 2\)"),
        (lambda q, k, v: (q, k, v[:, :, :4]), r"k and v that agree in batch, heads and tokens"),
        (
            lambda q, k, v: (q, torch.cat([k, k, k], 1), torch.cat([v, v, v], 1)),
            r"number of heads that divides 2",
        ),
        (lambda q, k, v: (q.int(), k, v), r"floating point tensors, got q torch.int32"),
    ],
)
def test_what_does_not_fit_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        Softmax(2, 3)(*change(*qkv()))


def test_a_mask_must_be_bool_and_two_dimensional():
    for mask in (
        torch.ones(1, 5),
        torch.ones(1, 1, 5, dtype=torch.bool),
        torch.ones(1, 4, dtype=torch.bool),
    ):
        with pytest.raises(
            ValueError, match=r"key_mask must be bool \(batch, keys\) = \(1, 5\), True = keep; got"
        ):
            Softmax(2, 3)(*qkv(), key_mask=mask)


def test_sizes_must_be_positive():
    with pytest.raises(ValueError, match="Softmax needs heads >= 1 and head_dim >= 1, got heads=0"):
        Softmax(0, 3)


def test_mixed_dtypes_are_computed_in_the_widest_and_returned_in_that_of_v():
    q, k, v = qkv()
    for cls in (Softmax, LinearAttention):
        module = cls(2, 3)
        out = module(q.double(), k, v.half())
        assert out.dtype == torch.float16
        torch.testing.assert_close(out, module(q.double(), k.double(), v.half().double()).half())


def test_a_class_without_reasons_still_refuses():
    class Bare(Attention):
        capability = Capability(key_mask=False)

        def _attend(self, q, k, v, key_mask, causal):
            return v

        def cost(self, shape, *, causal=False):
            return Cost(0, 0, 0, 0)

    q, k, v = qkv()
    mask = torch.ones(1, 5, dtype=torch.bool)
    for options, form in (({"key_mask": mask}, "key mask"), ({"causal": True}, "causal form")):
        with pytest.raises(UnsupportedAttention, match=f"Bare has no {form}: not defined"):
            Bare(2, 3)(q, k, v, **options)
    with pytest.raises(UnsupportedAttention, match="Bare has no float64 reference"):
        Bare(2, 3).reference(q, k, v)


def test_print_shows_the_options():
    options = "feature_map='elu1', eps=0.0, chunk=64"
    assert repr(LinearAttention(2, 3)) == f"Linear(heads=2, head_dim=3, {options})"
    assert repr(Softmax(2, 3)) == "Softmax(heads=2, head_dim=3, path='fused')"


def test_cost_is_written_for_the_sizes_it_is_asked_about():
    shape = Shape.square(1, 4, 1024, 64)
    cost = Softmax(4, 64).cost(shape)
    assert (cost.forward_flops, cost.backward_flops) == (1_073_741_824, 2_147_483_648)
    assert cost.flops == cost.forward_flops + cost.backward_flops
    assert round(LinearAttention(4, 64).cost(shape).forward_flops / 1e6) == 68
    half = Softmax(4, 64).cost(Shape.square(1, 4, 1024, 64, itemsize=2))
    assert half.min_bytes * 2 == cost.min_bytes


def test_the_public_surface():
    assert sorted(isoattn.core.__all__) == isoattn.core.__all__
    assert len(isoattn.core.__all__) < 50  # 24 attentions, 7 mixers, and the contract
    for name in isoattn.core.__all__:
        assert getattr(isoattn.core, name) is not None


def test_importing_needs_torch_alone():
    code = """
import sys, torch
before = set(sys.modules)
import isoattn.core, isoattn.core.testing
print(*sorted({n.split('.')[0] for n in set(sys.modules) - before} - set(sys.stdlib_module_names)))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    extra = set(run.stdout.split()) - {"isoattn", "torch"}
    assert not extra & {"lightning", "timm", "scipy", "pandas", "torchvision", "yaml", "hypothesis"}
    assert not extra - {"numpy", "sympy", "mpmath", "packaging", "triton", "typing_extensions"}, (
        extra
    )
