"""Laws about numbers: half precision at length, autocast, first and second derivatives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.autograd.gradcheck import gradcheck, gradgradcheck

from isoattn.core.contract import Attention
from isoattn.core.cost import Shape
from isoattn.core.registry import AttentionFactory
from isoattn.core.testing.algebra import _require_reference
from isoattn.core.testing.suite import (
    Draw,
    Sizes,
    assert_close,
    attend,
    build,
    forms,
    law,
    leaves,
    reference,
)

BOUNDS = {torch.float32: 1e-5, torch.bfloat16: 1.6e-2, torch.float16: 1e-3}
"""Largest error over largest output, against float64 on the same (rounded) inputs.

Two units in the last place of float16, four of bfloat16. Gradients, in which large terms cancel,
have five times that: torch's fused softmax needs 2.4e-3 in float16.
"""

ROUNDINGS = 4
"""Where a result misses its bound it may still be off by what the oracle itself moves when q and k
change by so many roundings of float32: nothing that computes in float32 can tell such inputs apart.
It matters at 16,384 tokens for scores beyond 100, sums that nearly cancel, and kinks.
"""

NUDGES = 8
"""How many random changes of that size are looked at; a kink is crossed by few of them."""

MANY = 1000
"""Parameters above which derivatives are checked in random directions, not one by one."""

ROWS = 32
"""Rows of a long sequence that are compared; the oracle of all would need N x N numbers."""


@law()
def dtypes(factory: AttentionFactory, sizes: Sizes) -> None:
    """float32, bfloat16 and float16 are right to 1e-5, 1.6e-2 and 1e-3, up to 512 tokens."""
    sizes = sizes.at_most(512, batch=1)
    module = build(factory, sizes, torch.float32)
    _require_reference(module)
    for dtype in BOUNDS:
        for causal in forms(module):
            _right_in(module, sizes, dtype, 1.0, causal)


@law(slow=True)
def long_dtypes(factory: AttentionFactory, sizes: Sizes) -> None:
    """The same with 16,384 tokens, for inputs of standard deviation 1 and 3 and under autocast.

    What costs more than 5 GFLOP there has 32 queries only, or 2,048 tokens where causal
    or where the oracle gives no single rows.
    """
    module = build(factory, sizes, torch.float32)
    _require_reference(module)
    for causal in forms(module):
        most = module.capability.max_tokens or 16_384
        long = replace(sizes, tokens=min(16_384, most), batch=1)
        shape = Shape.square(1, sizes.heads, long.tokens, sizes.head_dim)
        if module.capability.positions != "none" and not module.capability.cross:
            long = replace(long, tokens=2_048)  # its oracle has no rows that can be had alone
        dear = module.cost(shape, causal=causal).forward_flops > 5e9
        if dear and (causal or not module.capability.cross):
            long = replace(long, tokens=2_048)
        few = dear and not causal and module.capability.cross
        for dtype in BOUNDS:
            for spread in (1.0, 3.0):
                _right_in(module, long, dtype, spread, causal, few)


def _right_in(
    module: Attention,
    sizes: Sizes,
    dtype: torch.dtype,
    spread: float,
    causal: bool,
    few: bool = False,
) -> None:
    q, k, v = (spread * x for x in Draw().qkv(sizes, dtype=dtype))
    rows = torch.arange(0, sizes.tokens, max(1, sizes.tokens // ROWS))
    if few:
        q, rows = q[:, :, rows], torch.arange(len(rows))
    ours = leaves(q, k, v)
    out = attend(module, *ours, causal=causal)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
        again = attend(module, q, k, v, causal=causal)
    what = f"{dtype}, N={sizes.tokens}, std {spread}, causal={causal}"
    assert out.dtype == again.dtype == dtype, f"{what}: came out as {out.dtype}, {again.dtype}"
    weight = Draw(1).normal(*out[:, :, rows].shape, dtype=dtype)

    def oracle(q: Tensor, k: Tensor) -> list[Tensor]:
        """Outputs and gradients in double precision."""
        theirs = leaves(q, k, v.double())
        want = _reference_rows(module, theirs, rows, causal)
        zeros = [torch.zeros_like(x) for x in theirs]
        if not want.requires_grad:
            return [want, *zeros]
        total = (want * weight.double()).sum()
        grads = torch.autograd.grad(total, theirs, allow_unused=True)
        return [want.detach(), *(z if g is None else g for z, g in zip(zeros, grads, strict=True))]

    def moved(part: int) -> float:
        """How far roundings of q and k move the oracle; asked for where a bound is missed."""
        most, nudge = 0.0, Draw(3)
        for _ in range(NUDGES):
            near = (x * (1 + ROUNDINGS * 2**-24 * nudge.normal(*x.shape).sign()) for x in (q, k))
            most = max(most, (oracle(*near)[part] - wanted[part]).abs().max().item())
        return most

    wanted = oracle(q.double(), k.double())
    got = torch.autograd.grad((out[:, :, rows] * weight).sum(), ours)
    _near(out[:, :, rows], wanted[0], BOUNDS[dtype], what, partial(moved, 0))
    _near(again[:, :, rows], wanted[0], BOUNDS[dtype], f"{what} under autocast", partial(moved, 0))
    for part, (name, a) in enumerate(zip("qkv", got, strict=True), 1):
        _near(a, wanted[part], 5 * BOUNDS[dtype], f"{what}: d{name}", partial(moved, part))


def _near(got: Tensor, want: Tensor, bound: float, what: str, moved: Callable[[], float]) -> None:
    scale = want.abs().max().item() or 1.0
    error = (got.double() - want).abs().max().item() / scale
    if error > bound:
        bound = max(bound, moved() / scale)
    assert error <= bound, f"{what}: error {error:.2e}, allowed {bound:.1e}"


def _reference_rows(
    module: Attention, inputs: tuple[Tensor, ...], rows: Tensor, causal: bool
) -> Tensor:
    """Some rows of the oracle without the N x N numbers that all of them need."""
    q, k, v = inputs
    capability = module.capability
    if capability.mixes == "channels" or not (capability.cross and capability.independent_queries):
        return reference(module, q, k, v, causal=causal)[:, :, rows]
    if causal:  # row i is the bidirectional row that sees the keys up to i
        parts = [reference(module, q[:, :, [i]], k[:, :, : i + 1], v[:, :, : i + 1]) for i in rows]
        return torch.cat(parts, 2)
    return reference(module, q[:, :, rows], k, v)


@law()
def autocast(factory: AttentionFactory, sizes: Sizes) -> None:
    """Autocast changes nothing: the dtype of the inputs decides, and v's is that of the output."""
    sizes = sizes.at_most(128)
    module = build(factory, sizes, torch.float32)
    for causal in forms(module):
        plain, cast = (leaves(*Draw().qkv(sizes, dtype=torch.float32)) for _ in range(2))
        want = attend(module, *plain, causal=causal)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = attend(module, *cast, causal=causal)
        assert got.dtype == torch.float32, f"float32 values gave {got.dtype}"
        assert torch.equal(got, want), f"causal={causal}: the output changed"
        with torch.autocast("cpu", dtype=torch.bfloat16):
            mixed = attend(module, cast[0], cast[1], cast[2].bfloat16(), causal=causal)
        assert mixed.dtype == torch.bfloat16, f"bfloat16 values gave {mixed.dtype}"


@law()
def first_derivatives(factory: AttentionFactory, sizes: Sizes) -> None:
    """Gradients of every input and parameter pass gradcheck, non-contiguous ones included."""
    tiny = Sizes(2, 3, 4, 1)
    module = build(factory, tiny)
    inputs = leaves(*Draw().qkv(tiny))
    parameters = [p for p in module.parameters() if p.requires_grad]
    many = sum(p.numel() for p in parameters) > MANY
    masks = [None, torch.tensor([[True, False, True, True]])]
    for causal in forms(module):
        for mask in masks if module.capability.key_mask else masks[:1]:

            def call(
                *x: Tensor, mask: Tensor | None = mask, causal: bool = causal, turn: bool = False
            ) -> Tensor:
                out: Tensor = attend(module, *x[:3], key_mask=mask, causal=causal)
                # The gradient of a transposed and strided use arrives non-contiguous.
                return out.transpose(1, 3)[:, ::2] if turn else out

            everything = (*inputs, *parameters)
            assert gradcheck(call, everything, fast_mode=many)
            assert gradcheck(lambda *x, f=call: f(*x, turn=True), everything, fast_mode=many)
        ones = torch.autograd.grad(attend(module, *inputs, causal=causal).sum(), inputs)
        full = torch.ones_like(attend(module, *inputs, causal=causal))
        want = torch.autograd.grad(attend(module, *inputs, causal=causal), inputs, full)
        for a, b in zip(ones, want, strict=True):
            assert torch.allclose(a, b, atol=1e-12), "an expanded gradient is treated differently"


@law()
def some_gradients(factory: AttentionFactory, sizes: Sizes) -> None:
    """Asked for the gradient of one input alone, it gives the same as asked for all of them."""
    sizes = sizes.at_most(70)
    module = build(factory, sizes)
    inputs = Draw().qkv(sizes)
    for causal in forms(module):
        everything = leaves(*inputs)
        out = attend(module, *everything, causal=causal)
        weight = Draw(2).normal(*out.shape)
        want = torch.autograd.grad((out * weight).sum(), everything)
        for part, name in enumerate("qkv"):
            one = [x.detach().clone() for x in inputs]
            one[part].requires_grad_()
            out = attend(module, *one, causal=causal)
            (got,) = torch.autograd.grad((out * weight).sum(), one[part])
            assert_close(got, want[part], 1e-11, f"causal={causal}: d{name} alone")


@law()
def second_derivatives(factory: AttentionFactory, sizes: Sizes) -> None:
    """Second derivatives pass gradgradcheck, or asking for them raises where declared missing."""
    tiny = Sizes(2, 2, 3, 1)
    module = build(factory, tiny)
    inputs = leaves(*Draw().qkv(tiny))
    for causal in forms(module):

        def call(*x: Tensor, causal: bool = causal) -> Tensor:
            out: Tensor = attend(module, *x[:3], causal=causal)
            return out

        if not module.capability.double_backward:
            # cubed, so that a linear output does not hide the missing derivative
            loss = call(*inputs).pow(3).sum()
            try:
                (grad,) = torch.autograd.grad(loss, inputs[0], create_graph=True)
                torch.autograd.grad(grad.sum(), inputs[0])
            except RuntimeError:
                continue
        parameters = [p for p in module.parameters() if p.requires_grad]
        many = sum(p.numel() for p in parameters) > MANY
        assert gradgradcheck(call, (*inputs, *parameters), fast_mode=many)
