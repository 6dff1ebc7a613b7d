"""Laws about the mathematics: the oracle, symmetries, and the matrix behind the output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from isoattn.core.contract import Attention, UnsupportedAttention
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
    mixing_matrix,
    reference,
)

LENGTHS = (1, 2, 7, 63, 64, 65, 131)
"""Around the chunk length 64, and primes."""


@law()
def oracle(factory: AttentionFactory, sizes: Sizes) -> None:
    """Output and gradients equal the float64 oracle to 1e-10, for every form, mask and length.

    Lengths 1, 2, 7, 63, 64, 65, 131 and the given one up to 200.
    """
    sizes = sizes.at_most(200)
    module = build(factory, sizes)
    _require_reference(module)
    for tokens in sorted({*LENGTHS, sizes.tokens}):
        draw = Draw(tokens)
        inputs = draw.qkv(replace(sizes, tokens=tokens))
        masks: list[Tensor | None] = [None]
        if module.capability.key_mask:
            masks.append(draw.mask(sizes.batch, tokens))
        for mask in masks:
            for causal in forms(module):
                _like_reference(module, inputs, mask, causal)


@law()
def cross(factory: AttentionFactory, sizes: Sizes) -> None:
    """More or fewer keys than queries equal the float64 oracle."""
    sizes = sizes.at_most(100)
    module = build(factory, sizes)
    if not module.capability.cross:
        raise NotApplicableError(f"no cross form: {module.unsupported.get('cross')}")
    _require_reference(module)
    for keys in (1, max(1, sizes.tokens // 2), 2 * sizes.tokens + 67):
        inputs = Draw(keys).qkv(sizes, keys=keys)
        for causal in forms(module):
            _like_reference(module, inputs, None, causal)


@law()
def value_width(factory: AttentionFactory, sizes: Sizes) -> None:
    """Values may be wider or narrower than keys; channel mixing says that they may not."""
    sizes = sizes.at_most(100)
    module = build(factory, sizes)
    q, k, v = Draw().qkv(sizes)
    for wide in (v[..., :1], torch.cat([v, 2.0 * v], -1)):
        if wide.shape == v.shape:
            continue
        if module.capability.mixes == "channels":
            try:
                attend(module, q, k, wide)
            except ValueError as error:
                assert "v must have" in str(error), f"the message {str(error)!r} does not say why"
            else:
                raise AssertionError(f"values of width {wide.shape[-1]} were taken")
        else:
            _require_reference(module)
            for causal in forms(module):
                _like_reference(module, (q, k, wide), None, causal)


def _require_reference(module: Attention) -> None:
    if type(module).reference is Attention.reference:
        raise NotApplicableError(f"{type(module).__name__} has no float64 reference")


def _like_reference(
    module: Attention, inputs: tuple[Tensor, ...], mask: Tensor | None, causal: bool
) -> None:
    ours, theirs = leaves(*inputs), leaves(*inputs)
    out = attend(module, *ours, key_mask=mask, causal=causal)
    want = reference(module, *theirs, key_mask=mask, causal=causal)
    shape = f"N={inputs[0].shape[2]} M={inputs[1].shape[2]}"
    what = f"{shape} causal={causal} mask={mask is not None}"
    assert_close(out, want, 1e-10, what)
    weight = Draw(3).normal(*out.shape)
    parameters = [p for p in module.parameters() if p.requires_grad]
    got = torch.autograd.grad((out * weight).sum(), [*ours, *parameters], allow_unused=True)
    wanted: Sequence[Tensor | None] = [None] * len(got)
    if want.requires_grad:
        loss = (want * weight).sum()
        wanted = torch.autograd.grad(loss, [*theirs, *parameters], allow_unused=True)
    names = ["q", "k", "v", *(n for n, p in module.named_parameters() if p.requires_grad)]
    for name, a, b in zip(names, got, wanted, strict=True):
        assert a is not None, f"{what}: {name} gets no gradient"
        assert_close(a, torch.zeros_like(a) if b is None else b, 1e-10, f"{what}: d{name}")


@law()
def grouped_heads(factory: AttentionFactory, sizes: Sizes) -> None:
    """A key head may serve several query heads, as if it were repeated."""
    sizes = sizes.at_most(100)
    module = build(factory, sizes)
    divisors = {1, *(g for g in range(2, sizes.heads) if sizes.heads % g == 0)} - {sizes.heads}
    if not divisors:
        raise NotApplicableError("one head cannot be shared")
    for groups in sorted(divisors):
        inputs = leaves(*Draw(groups).qkv(sizes, groups=groups))
        q, k, v = inputs
        repeats = sizes.heads // groups
        for causal in forms(module):
            shared = attend(module, q, k, v, causal=causal)
            repeated = attend(
                module,
                q,
                k.repeat_interleave(repeats, 1),
                v.repeat_interleave(repeats, 1),
                causal=causal,
            )
            what = f"{groups} key heads, causal={causal}"
            assert_close(shared, repeated, 1e-12, what)
            weight = Draw(4).normal(*shared.shape)
            got = torch.autograd.grad((shared * weight).sum(), inputs)
            want = torch.autograd.grad((repeated * weight).sum(), inputs)
            for a, b in zip(got, want, strict=True):
                assert_close(a, b, 1e-11, f"{what}: gradient")


@law()
def permutation(factory: AttentionFactory, sizes: Sizes) -> None:
    """Permuted tokens give permuted outputs; the order of keys alone does not matter."""
    sizes = sizes.at_most(200)
    module = build(factory, sizes)
    if not (module.capability.bidirectional and module.capability.positions == "none"):
        raise NotApplicableError("it depends on the order")
    draw = Draw()
    q, k, v = draw.qkv(sizes)
    order = torch.randperm(sizes.tokens, generator=draw.generator)
    out = attend(module, q, k, v)
    moved = attend(module, q[:, :, order], k[:, :, order], v[:, :, order])
    assert_close(moved, out[:, :, order], 1e-11, "all tokens permuted")
    if module.capability.cross and module.capability.mixes == "tokens":
        assert_close(attend(module, q, k[:, :, order], v[:, :, order]), out, 1e-11, "keys permuted")


@law()
def linear_in_values(factory: AttentionFactory, sizes: Sizes) -> None:
    """The output is linear in v and equals the declared matrix times v."""
    sizes = sizes.at_most(100)
    module = build(factory, sizes)
    q, k, v = Draw(0).qkv(sizes)
    other = Draw(1).qkv(sizes)[2]
    for causal in forms(module):
        out = attend(module, q, k, v, causal=causal)
        mixed = attend(module, q, k, 2.0 * v - 3.0 * other, causal=causal)
        want = 2.0 * out - 3.0 * attend(module, q, k, other, causal=causal)
        assert_close(mixed, want, 1e-11, f"causal={causal}: 2 v - 3 w")
        if module.capability.mixes == "channels":
            want = v @ _channel_matrix(module, q, k).transpose(-2, -1)
        else:
            want = mixing_matrix(module, q, k, causal=causal) @ v
        assert_close(out, want, 1e-11, f"causal={causal}: matrix times v")


@law()
def row_sums(factory: AttentionFactory, sizes: Sizes) -> None:
    """Rows of the matrix sum to 1 or are 0 throughout; hidden tokens have weight exactly 0."""
    sizes = sizes.at_most(100)
    module = build(factory, sizes)
    draw = Draw()
    q, k, _ = draw.qkv(sizes)
    if module.capability.mixes == "channels":
        _sums_to_one(module, _channel_matrix(module, q, k))
        return
    for causal in forms(module):
        seen = torch.ones(sizes.tokens, sizes.tokens, dtype=torch.bool)
        seen = (seen.tril() if causal else seen).expand(sizes.batch, 1, -1, -1)
        for masked in (False, True) if module.capability.key_mask else (False,):
            mask = draw.mask(sizes.batch, sizes.tokens) if masked else None
            visible = seen if mask is None else seen & mask[:, None, None, :]
            matrix = mixing_matrix(module, q, k, key_mask=mask, causal=causal)
            assert not matrix.masked_fill(visible, 0.0).any(), f"causal={causal}: a hidden weight"
            _sums_to_one(module, matrix)


def _sums_to_one(module: Attention, matrix: Tensor) -> None:
    if not module.capability.normalised:
        return
    sums = matrix.sum(-1)
    off = torch.where((matrix == 0).all(-1), 0.0, sums - 1.0).abs().max().item()
    assert off <= 1e-6, f"a row sums to 1 only within {off:.2e}"


def _channel_matrix(module: Attention, q: Tensor, k: Tensor) -> Tensor:
    channel_matrix = getattr(module, "channel_matrix", None)
    if channel_matrix is None:
        raise UnsupportedAttention(
            f"{type(module).__name__} mixes channels: it needs channel_matrix"
        )
    matrix: Tensor = channel_matrix(q, k)
    return matrix
