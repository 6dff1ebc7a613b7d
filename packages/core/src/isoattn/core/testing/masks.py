"""Laws about who sees whom: key masks, empty rows, the batch, the future."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from isoattn.core.contract import Attention
from isoattn.core.registry import AttentionFactory
from isoattn.core.testing.suite import (
    Draw,
    NotApplicableError,
    Sizes,
    assert_close,
    attend,
    build,
    forms,
    law,
    leaves,
)

FILLERS = (float("nan"), 1e30, -3.0)


@law()
def key_mask(factory: AttentionFactory, sizes: Sizes) -> None:
    """Masked keys have no influence whatever they hold: outputs within 1e-6, their gradients 0.

    float32, at most 64 tokens; two samples of different length, and one alone; pads on either
    side (at the end only, where the index counts) that hold NaN, 1e30 or ordinary numbers.
    """
    sizes = sizes.at_most(64, batch=1)
    module = build(factory, sizes, torch.float32)
    if not module.capability.key_mask:
        raise NotApplicableError(f"no key mask: {module.unsupported.get('key_mask')}")
    shorter = Sizes(sizes.heads, sizes.head_dim, max(1, sizes.tokens // 2), 1)
    samples = [Draw(n).qkv(s, dtype=torch.float32) for n, s in enumerate((sizes, shorter))]
    for causal in forms(module):
        for left in (False, True) if module.capability.positions != "index" else (False,):
            for filler in FILLERS:
                _padded_like_alone(module, samples, filler, left, causal)
                _padded_like_alone(module, samples[:1], filler, left, causal)


def _padded_like_alone(
    module: Attention, samples: Sequence[Sequence[Tensor]], filler: float, left: bool, causal: bool
) -> None:
    """Pad the samples into one batch and compare with each of them alone."""
    length = max(sample[0].shape[2] for sample in samples) + 7
    # Where tokens mix, the query rows of pads are the caller's to zero; elsewhere they are ours.
    fillers = (filler if module.capability.mixes == "channels" else -3.0, filler, filler)
    rows = [
        slice(length - s[0].shape[2], length) if left else slice(0, s[0].shape[2]) for s in samples
    ]
    mask = torch.zeros(len(samples), length, dtype=torch.bool)
    padded = []
    for part, fill in enumerate(fillers):
        heads, width = samples[0][part].shape[1], samples[0][part].shape[3]
        x = torch.full((len(samples), heads, length, width), fill)
        for b, row in enumerate(rows):
            x[b, :, row] = samples[b][part][0]
            mask[b, row] = True
        padded.append(x)
    q, k, v = leaves(*padded)
    out = attend(module, q, k, v, key_mask=mask, causal=causal)
    what = f"causal={causal}, pads {'left' if left else 'right'} = {filler}, batch {len(samples)}"
    total = out.new_zeros(())
    for b, row in enumerate(rows):
        inputs = leaves(*samples[b])
        alone = attend(module, *inputs, causal=causal)
        assert_close(out[b : b + 1, :, row], alone, 1e-6, what)
        weight = Draw(9).normal(*alone.shape, dtype=torch.float32)
        total = total + (out[b : b + 1, :, row] * weight).sum()
        wanted = torch.autograd.grad((alone * weight).sum(), inputs)
        for x, want in zip((q, k, v), wanted, strict=True):
            (got,) = torch.autograd.grad(total, x, retain_graph=True)
            assert_close(got[b : b + 1, :, row], want, 1e-5, f"{what}: gradient")
    for x in (k, v):
        (got,) = torch.autograd.grad(total, x, retain_graph=True)
        pads = got.transpose(1, 2)[~mask]
        assert torch.equal(pads, torch.zeros_like(pads)), f"{what}: gradients at pads are not 0"


@law()
def empty_rows(factory: AttentionFactory, sizes: Sizes) -> None:
    """A query without any key gives exactly 0 with zero gradients, even where keys hold NaN."""
    sizes = replace(sizes.at_most(128), batch=2)
    module = build(factory, sizes, torch.float32)
    if module.capability.cross and module.capability.bidirectional:
        q, k, v = leaves(*Draw().qkv(sizes, keys=0, dtype=torch.float32))
        out = attend(module, q, k, v)
        assert torch.equal(out, torch.zeros_like(out)), "without keys the output is not 0"
    if not module.capability.key_mask:
        raise NotApplicableError(f"no key mask: {module.unsupported.get('key_mask')}")
    for causal in forms(module):
        q, k, v = Draw().qkv(sizes, dtype=torch.float32)
        mask = torch.ones(2, sizes.tokens, dtype=torch.bool)
        mask[0] = False
        k[0] = v[0] = float("nan")
        q, k, v = leaves(q, k, v)
        out = attend(module, q, k, v, key_mask=mask, causal=causal)
        assert torch.equal(out[0], torch.zeros_like(out[0])), f"causal={causal}: output is not 0"
        torch.autograd.backward(out.sum())
        for name, x in (("q", q), ("k", k), ("v", v)):
            assert x.grad is not None, f"{name} gets no gradient"
            assert x.grad.isfinite().all(), f"causal={causal}: gradient of {name} is not finite"
            assert not x.grad[0].any(), f"causal={causal}: gradient of {name} is not 0"


@law()
def visible_nan(factory: AttentionFactory, sizes: Sizes) -> None:
    """A NaN that is not masked shows in the output: a guard against 0 / 0 must not swallow it."""
    sizes = sizes.at_most(128, batch=1)
    module = build(factory, sizes)
    for causal in forms(module):
        inputs = leaves(*Draw().qkv(sizes))
        out = attend(module, *inputs, causal=causal).square().sum()
        used = [grad.any() for grad in torch.autograd.grad(out, inputs)]
        if not any(used):
            raise NotApplicableError("the output depends on nothing")
        for part, name in enumerate("qkv"):
            if used[part]:
                dirty = [x.detach().clone() for x in inputs]
                dirty[part][:, :, 0, 0] = float("nan")
                shown = attend(module, *dirty, causal=causal).isnan().flatten(2).any(2)
                assert shown.all(), f"causal={causal}: a NaN in {name} leaves the output finite"


@law()
def batch_leak(factory: AttentionFactory, sizes: Sizes) -> None:
    """A sample does not depend on the others of its batch (1e-12 in float64)."""
    sizes = sizes.at_most(256, batch=1)
    module = build(factory, sizes)
    x, y = Draw(0).qkv(sizes), Draw(1).qkv(sizes)
    both = [torch.cat([a, 20.0 * b]) for a, b in zip(x, y, strict=True)]
    for causal in forms(module):
        alone = attend(module, *x, causal=causal)
        assert_close(attend(module, *both, causal=causal)[:1], alone, 1e-12, f"causal={causal}")


@law()
def causal_leak(factory: AttentionFactory, sizes: Sizes) -> None:
    """Causal outputs have exactly no gradient from later tokens, and use the earlier ones."""
    # More than one chunk of 64, however few tokens the caller has.
    sizes = Sizes(sizes.heads, sizes.head_dim, min(max(sizes.tokens, 70), 140), 1)
    module = build(factory, sizes)
    if not module.capability.causal:
        raise NotApplicableError(f"no causal form: {module.unsupported.get('causal')}")
    inputs = leaves(*Draw().qkv(sizes))
    out = attend(module, *inputs, causal=True)
    for token in {0, 1, 63, 64, sizes.tokens - 2}:
        grads = torch.autograd.grad(out[:, :, token].sum(), inputs, retain_graph=True)
        for name, grad in zip("qkv", grads, strict=True):
            assert not grad[:, :, token + 1 :].any(), f"output {token} depends on later {name}"
        if module.capability.mixes == "tokens" and token:
            # far away may be out of reach where the distance counts
            earlier = token - 1 if module.capability.positions == "distance" else 0
            seen = grads[2][:, :, earlier].any()
            assert seen, f"output {token} does not depend on value {earlier}"
    changed = [x.detach().clone() for x in inputs]
    half = sizes.tokens // 2
    for x, new in zip(changed, Draw(5).qkv(sizes), strict=True):
        x[:, :, half:] = new[:, :, half:]
    later = attend(module, *changed, causal=True)
    assert_close(later[:, :, :half], out[:, :, :half], 1e-12, "after new tokens the past")
