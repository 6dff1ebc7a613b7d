"""Laws about going on: states, chunks, packed segments, gates, and draws of one's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import cast

import torch
from torch import Tensor

from isoattn.core.contract import Attention, UnsupportedAttention
from isoattn.core.cost import Shape
from isoattn.core.registry import AttentionFactory
from isoattn.core.testing.algebra import _like_reference, _require_reference
from isoattn.core.testing.suite import (
    Draw,
    NotApplicableError,
    Sizes,
    assert_close,
    attend,
    build,
    extend,
    forms,
    gates,
    law,
    leaves,
)


def _require_state(module: Attention) -> None:
    if module.capability.state == "none":
        try:
            module.extend(*Draw().qkv(Sizes(module.heads, module.head_dim, 2, 1)))
        except UnsupportedAttention as reason:
            raise NotApplicableError(str(reason)) from None
        raise AssertionError("extend works, but no state is declared")


@law()
def continuation(factory: AttentionFactory, sizes: Sizes) -> None:
    """Split anywhere and continued from the state, outputs and gradients are those of the whole.

    1e-10 in float64, with and without a mask, with shared key heads; the given state is unchanged.
    """
    sizes = Sizes(sizes.heads, sizes.head_dim, min(max(sizes.tokens, 70), 140), 2)
    module = build(factory, sizes)
    _require_state(module)
    draw, n = Draw(), sizes.tokens
    for groups in {1, sizes.heads}:
        inputs = leaves(*draw.qkv(sizes, groups=groups))
        for mask in (None, draw.mask(2, n)) if module.capability.key_mask else (None,):
            whole = attend(module, *inputs, key_mask=mask, causal=True)
            weight = Draw(6).normal(*whole.shape)
            want = torch.autograd.grad((whole * weight).sum(), inputs)
            for cuts in ((1,), (n // 2,), (63, 64), (3, 3, n - 1)):
                out = _in_pieces(module, inputs, mask, [0, *cuts, n])
                assert_close(out, whole, 1e-10, f"cut at {cuts}")
                got = torch.autograd.grad((out * weight).sum(), inputs)
                for name, a, b in zip("qkv", got, want, strict=True):
                    assert_close(a, b, 1e-10, f"cut at {cuts}: d{name} through the state")


def _in_pieces(
    module: Attention, inputs: tuple[Tensor, ...], mask: Tensor | None, ends: list[int]
) -> Tensor:
    state, outputs = None, []
    for a, b in zip(ends[:-1], ends[1:], strict=True):
        part = [x[:, :, a:b] for x in inputs]
        kept = None if state is None else {n: x.detach().clone() for n, x in state.items()}
        given = state
        kept_keys = None if mask is None else mask[:, a:b]
        out, state = extend(module, *part, state=state, key_mask=kept_keys)
        outputs.append(out)
        if given is not None and kept is not None:
            assert given.keys() == kept.keys(), "the given state has other entries now"
            for name, x in given.items():
                assert x.shape == kept[name].shape, f"the given state {name!r} changed shape"
                assert torch.equal(x, kept[name]), f"the given state {name!r} was changed"
    return torch.cat(outputs, 2)


@law()
def steps(factory: AttentionFactory, sizes: Sizes) -> None:
    """Token by token equals the parallel form to 1e-10; the state has the declared bytes."""
    sizes = sizes.at_most(70)
    module = build(factory, sizes)
    _require_state(module)
    q, k, v = Draw().qkv(sizes)
    want = attend(module, q, k, v, causal=True)
    state, outputs = None, []
    given = gates(module, k)
    for t in range(sizes.tokens):
        now = {name: x[:, :, t] for name, x in given.items()}
        out, state = module.step(q[:, :, t], k[:, :, t], v[:, :, t], state, **now)
        outputs.append(out)
    assert_close(torch.stack(outputs, 2), want, 1e-10, "token by token")


@law()
def state_size(factory: AttentionFactory, sizes: Sizes) -> None:
    """The state has the declared bytes, in float32 at least, and is constant where it says so."""
    sizes = sizes.at_most(70)
    module = build(factory, sizes, torch.float16)
    _require_state(module)
    found = []
    for tokens in (1, sizes.tokens, 2 * sizes.tokens + 5):
        size = replace(sizes, tokens=tokens)
        _, state = extend(module, *Draw().qkv(size, dtype=torch.float16))
        shape = Shape.square(size.batch, size.heads, tokens, size.head_dim, itemsize=2)
        found.append(sum(x.numel() * x.element_size() for x in state.values()))
        said = module.cost(shape, causal=True).state_bytes
        assert said == found[-1], f"after {tokens} tokens: said {said:,} bytes, found {found[-1]:,}"
        for name, x in state.items():
            assert x.shape[0] == size.batch, f"state {name!r} has no batch axis: {tuple(x.shape)}"
            narrow = x.is_floating_point() and x.dtype.itemsize < 4
            assert not (narrow and module.capability.state == "constant"), f"{name!r} is {x.dtype}"
    if module.capability.state == "constant":
        assert len(set(found)) == 1, f"a constant state of {found} bytes"


@law()
def chunks(factory: AttentionFactory, sizes: Sizes) -> None:
    """Any chunk for any length equals the oracle: 1, 7, 16, 64, N, above N, and all at once."""
    if "chunk" not in inspect.signature(factory).parameters:
        raise NotApplicableError("it has no option chunk")
    for tokens in (1, 2, 15, 16, 17, 35, 71):
        size = Sizes(2, min(sizes.head_dim, 6), tokens, 1)
        for chunk in (1, 7, 16, 64, tokens, tokens + 1, None):
            try:
                module = build(partial(cast(Callable[..., Attention], factory), chunk=chunk), size)
            except ValueError as error:
                assert chunk is None, f"chunk={chunk}: {error}"
                continue
            _require_reference(module)
            for causal in forms(module):
                _like_reference(module, Draw(tokens).qkv(size), None, causal)


@law()
def packed(factory: AttentionFactory, sizes: Sizes) -> None:
    """Packed segments equal the same samples padded, and one by one; gradients too."""
    size = Sizes(sizes.heads, sizes.head_dim, 1, 1)
    module = build(factory, size)
    lengths = (5, 1, 19, 8, 3, 8)
    samples = [Draw(i).qkv(replace(size, tokens=n)) for i, n in enumerate(lengths)]
    ids = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))[None]
    for causal in forms(module):
        rows = leaves(*(torch.cat(parts, 2) for parts in zip(*samples, strict=True)))
        out = attend(module, *rows, causal=causal, segments=ids)
        alone = leaves(*(x for sample in samples for x in sample))
        parts = [
            attend(module, *alone[3 * i : 3 * i + 3], causal=causal) for i in range(len(lengths))
        ]
        want = torch.cat(parts, 2)
        assert_close(out, want, 1e-10, f"packed, causal={causal}")
        weight = Draw(8).normal(*want.shape)
        got = torch.autograd.grad((out * weight).sum(), rows)
        grads = torch.autograd.grad((want * weight).sum(), alone, allow_unused=True)
        for part, (name, a) in enumerate(zip("qkv", got, strict=True)):
            b = torch.cat([g for g in grads[part::3] if g is not None], 2)
            assert_close(a, b, 1e-10, f"packed, causal={causal}: d{name}")
        again = attend(
            module,
            *(x.expand(2, -1, -1, -1) for x in rows),
            causal=causal,
            segments=ids.expand(2, -1),
        )
        assert_close(again[1:], want, 1e-10, "a batch of packed rows")
    for bad in (ids.float(), ids.flip(1), ids[:, 1:]):
        try:
            attend(module, *rows, causal=forms(module)[0], segments=bad)
        except ValueError as error:
            assert "segments" in str(error), f"the message {str(error)!r} does not name segments"
        else:
            raise AssertionError(f"segments {bad.dtype} {tuple(bad.shape)} were taken")


@law()
def extreme_gates(factory: AttentionFactory, sizes: Sizes) -> None:
    """Log-decays of 0, -1e-6, -50 and -1e4 and input gates of +-80 are finite and right."""
    sizes = sizes.at_most(70, batch=1)
    module = build(factory, sizes)
    given = gates(module, Draw().qkv(sizes)[1])
    if not given:
        raise NotApplicableError("it takes no gates")
    _require_reference(module)
    inputs = Draw().qkv(sizes)
    choices = {
        "log_decay": torch.tensor([0.0, -1e-6, -50.0, -1e4], dtype=torch.float64),
        "in_gate": torch.tensor([80.0, -80.0, 0.0], dtype=torch.float64),
    }
    for seed in range(6):
        draw = Draw(seed)
        extreme = {}
        for name, x in given.items():
            values = choices[name]
            pick = torch.randint(len(values), x.shape, generator=draw.generator)
            # the first rounds hold one value throughout, the later ones mix them
            extreme[name] = values[pick] if seed > 3 else values[seed % len(values)].expand(x.shape)
        grads = []
        for call in (module, module.reference):
            everything = leaves(*inputs, *extreme.values())
            form = dict(zip(extreme, everything[3:], strict=True))
            out = call(*everything[:3], causal=True, **form)
            assert out.isfinite().all(), f"round {seed}: an output is not finite"
            weight = Draw(2).normal(*out.shape)
            grads.append((out, *torch.autograd.grad((out * weight).sum(), everything)))
        for name, a, b in zip(("out", "q", "k", "v", *extreme), *grads, strict=True):
            assert a.isfinite().all(), f"round {seed}: the gradient of {name} is not finite"
            assert_close(a, b, 1e-8, f"round {seed}: {name}")


@law()
def draws(factory: AttentionFactory, sizes: Sizes) -> None:
    """Training draws anew at every call, continues from a state_dict, and differs by seed."""
    sizes = sizes.at_most(64)
    module = build(factory, sizes)
    inputs, causal = Draw().qkv(sizes), forms(module)[0]
    if not module.capability.stochastic:
        before = attend(module, *inputs, causal=causal)
        module.train()
        assert torch.equal(before, attend(module, *inputs, causal=causal)), (
            "training and evaluation differ, but it is not declared stochastic"
        )
        raise NotApplicableError("it draws nothing while it runs")
    module.train()
    attend(module, *inputs, causal=causal)
    saved = {name: x.clone() for name, x in module.state_dict().items()}
    first, second = (attend(module, *inputs, causal=causal) for _ in range(2))
    assert not torch.allclose(first, second), "two calls in training draw the same numbers"
    copy = factory(sizes.heads, sizes.head_dim).double().train()
    copy.load_state_dict(saved)
    assert torch.equal(attend(copy, *inputs, causal=causal), first), "a resumed copy differs"
    assert torch.equal(attend(copy, *inputs, causal=causal), second), "and so does its next call"
    outputs = []
    for seed in (1, 2, 1):
        other = build(factory, sizes)
        other.reseed(seed)
        outputs.append(attend(other.train(), *inputs, causal=causal))
    assert torch.equal(outputs[0], outputs[2]), "the same seed gives other draws"
    assert not torch.allclose(outputs[0], outputs[1]), "another seed gives the same draws"
