"""Laws about running: callers' tensors, memory layouts, the compiler, and the cost model."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch

from isoattn.core.cost import Shape
from isoattn.core.registry import AttentionFactory
from isoattn.core.testing.measure import count_flops, saved_bytes
from isoattn.core.testing.suite import (
    Draw,
    Sizes,
    assert_close,
    attend,
    build,
    forms,
    gates,
    law,
    leaves,
)


@law()
def inputs_unmodified(factory: AttentionFactory, sizes: Sizes) -> None:
    """Forward and backward leave the caller's tensors alone, and the output is not one of them."""
    sizes = sizes.at_most(256)
    module = build(factory, sizes)
    draw = Draw()
    for masked in (False, True) if module.capability.key_mask else (False,):
        mask = draw.mask(sizes.batch, sizes.tokens) if masked else None
        for causal in forms(module):
            inputs = leaves(*draw.qkv(sizes))
            weight = draw.normal(*inputs[0].shape)
            kept = [x.detach().clone() for x in (*inputs, weight)]
            out = attend(module, *inputs, key_mask=mask, causal=causal)
            torch.autograd.backward(out, weight)
            with torch.no_grad():
                out.detach().add_(1.0)
            for before, after in zip(kept, (*inputs, weight), strict=True):
                assert torch.equal(before, after), f"causal={causal}: a caller's tensor changed"


@law()
def layouts(factory: AttentionFactory, sizes: Sizes) -> None:
    """Views of one fused projection, token-major and expanded tensors give the same result."""
    sizes = sizes.at_most(128)
    module = build(factory, sizes)
    fused = Draw().normal(sizes.batch, sizes.tokens, 3, sizes.heads, sizes.head_dim)
    q, k, v = fused.permute(2, 0, 3, 1, 4).unbind(0)
    single = q[:, :1, :, :1].expand_as(q)
    backwards = q.transpose(2, 3).contiguous().transpose(2, 3)
    for name, views in {
        "one projection": (q, k, v),
        "expanded": (q, single, single),
        "dim-major": (backwards, k, v.transpose(2, 3).contiguous().transpose(2, 3)),
        "every second token": tuple(x.repeat_interleave(2, 2)[:, :, ::2] for x in (q, k, v)),
    }.items():
        for causal in forms(module):
            strided = [x.detach().requires_grad_() for x in views]
            plain = leaves(*(x.contiguous() for x in views))
            got, want = (
                attend(module, *strided, causal=causal),
                attend(module, *plain, causal=causal),
            )
            assert_close(got, want, 1e-12, f"{name}, causal={causal}")
            weight = Draw(2).normal(*got.shape)
            got_grads = torch.autograd.grad(got, strided, weight)
            want_grads = torch.autograd.grad(want, plain, weight)
            for a, b in zip(got_grads, want_grads, strict=True):
                assert_close(a, b, 1e-11, f"{name}, causal={causal}: gradient")


@law(slow=True)
def compiled(factory: AttentionFactory, sizes: Sizes) -> None:
    """torch.compile takes it whole (fullgraph), for any number of tokens, and equals eager."""
    module = build(factory, sizes)
    torch._dynamo.reset()
    # The graph is traced in full and run without generated code, so no C++ compiler is needed.
    program: Any = torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager")
    draw = Draw()
    for tokens, masked in ((70, True), (131, True), (131, False)):
        some = masked and module.capability.key_mask
        mask = draw.mask(sizes.batch, tokens) if some else None
        for causal in forms(module):
            inputs = draw.qkv(replace(sizes, tokens=tokens))
            given = gates(module, inputs[1])
            one, two = (leaves(*inputs, *given.values()) for _ in range(2))
            form: dict[str, Any] = {"key_mask": mask, "causal": causal}
            got = program(*one[:3], **form, **dict(zip(given, one[3:], strict=True)))
            want = module(*two[:3], **form, **dict(zip(given, two[3:], strict=True)))
            what = f"N={tokens}, causal={causal}, masked={mask is not None}"
            assert_close(got, want, 1e-11, what)
            for a, b in zip(
                torch.autograd.grad(got.sin().sum(), one),
                torch.autograd.grad(want.sin().sum(), two),
                strict=True,
            ):
                assert_close(a, b, 1e-10, f"{what}: gradient")


@law()
def cost(factory: AttentionFactory, sizes: Sizes) -> None:
    """FLOPs, forward and backward, equal torch's counter; saved bytes equal autograd's hooks."""
    sizes = sizes.at_most(200)
    module = build(factory, sizes, torch.float32)
    keys = [sizes.tokens, sizes.tokens + 3] if module.capability.cross else [sizes.tokens]
    for dtype in (torch.float32, torch.float16):
        for count in keys:
            for causal in forms(module):
                inputs = leaves(*Draw().qkv(sizes, keys=count, dtype=dtype))
                extra = {n: leaves(x)[0] for n, x in gates(module, inputs[1]).items()}
                run = partial(module, *inputs, causal=causal, **extra)

                shape = Shape(
                    sizes.batch,
                    sizes.heads,
                    sizes.tokens,
                    count,
                    sizes.head_dim,
                    sizes.head_dim,
                    dtype.itemsize,
                )
                said = module.cost(shape, causal=causal)
                forward, backward = count_flops(run)
                saved = saved_bytes(run, exclude=module.parameters())
                what = f"{shape}, causal={causal}"
                for name, declared, counted in (
                    ("forward FLOPs", said.forward_flops, forward),
                    ("backward FLOPs", said.backward_flops, backward),
                    ("saved bytes", said.saved_bytes, saved),
                ):
                    assert declared == counted, (
                        f"{what}: {name} said {declared:,}, counted {counted:,}"
                    )
                once = (*inputs, inputs[0], *extra.values())
                largest = sum(x.numel() for x in once) * dtype.itemsize
                assert 0 <= said.min_bytes <= largest, f"{what}: min_bytes {said.min_bytes}"
