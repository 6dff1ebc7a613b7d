"""Laws over random shapes, lengths and masks, for every attention."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isoattn.core import attentions
from isoattn.core.testing.suite import Draw, Sizes, attend, build, forms, reference

CLASSES = {n: c for n, c in attentions().items() if c.__module__.startswith("isoattn.core.")}
each = pytest.mark.parametrize("cls", CLASSES.values(), ids=CLASSES.keys())
stable = settings(derandomize=True, deadline=None, max_examples=25, database=None)


@st.composite
def calls(draw, cls, *, square=False):
    """A module in float64, inputs of a random shape, a form it has, and a mask or none."""
    sizes = Sizes(
        heads=draw(st.integers(1, 6)),
        head_dim=draw(st.integers(1, 9)),
        tokens=draw(st.integers(1, 80)),
        batch=draw(st.integers(1, 3)),
    )
    module = build(cls, sizes)
    groups = draw(st.sampled_from([g for g in range(1, 7) if sizes.heads % g == 0]))
    keys = sizes.tokens
    if module.capability.cross and not square:
        keys = draw(st.integers(0, 80))
    qkv = Draw(draw(st.integers(0, 99))).qkv(sizes, keys=keys, groups=groups)
    mask = None
    if draw(st.booleans()):
        bits = st.lists(st.booleans(), min_size=keys, max_size=keys)
        mask = torch.tensor([draw(bits) for _ in range(sizes.batch)], dtype=torch.bool)
        mask = mask.view(sizes.batch, keys)
    return module, qkv, mask, draw(st.sampled_from(forms(module)))


def close(got, want, tolerance=1e-10):
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)


@each
@stable
@given(data=st.data())
def test_equals_the_oracle(cls, data):
    module, qkv, mask, causal = data.draw(calls(cls))
    want = reference(module, *qkv, key_mask=mask, causal=causal)
    close(attend(module, *qkv, key_mask=mask, causal=causal), want)


@each
@stable
@given(data=st.data())
def test_a_mask_is_a_deletion(cls, data):
    module, (q, k, v), mask, causal = data.draw(calls(cls))
    if module.capability.positions in ("distance", "index"):
        return
    if mask is None:
        mask = torch.ones(k.shape[0], k.shape[2], dtype=torch.bool)
    nan = ~mask[:, None, :, None]
    k_nan, v_nan = (x.masked_fill(nan, torch.nan) for x in (k, v))
    if causal and k.shape[2] != q.shape[2]:
        return  # the first key a query sees is then another one
    out = attend(module, q, k_nan, v_nan, key_mask=mask, causal=causal)
    for b, keep in enumerate(mask):
        one = slice(b, b + 1)
        alone = module.capability.independent_queries or q.shape[2] != k.shape[2]
        if module.capability.cross and alone and not causal:
            close(out[one], attend(module, q[one], k[one][:, :, keep], v[one][:, :, keep]))
        else:
            rest = attend(module, *(x[one][:, :, keep] for x in (q, k, v)), causal=causal)
            close(out[one][:, :, keep], rest)
            if module.capability.mixes != "tokens":
                assert not out[one][:, :, ~keep].any()


@each
@stable
@given(data=st.data())
def test_a_causal_prefix_stands_alone(cls, data):
    module, qkv, mask, _ = data.draw(calls(cls, square=True))
    if not module.capability.causal:
        with pytest.raises(NotImplementedError, match=cls.__name__):
            attend(module, *qkv, causal=True)
        return
    end = data.draw(st.integers(1, qkv[0].shape[2]))
    whole = attend(module, *qkv, key_mask=mask, causal=True)
    prefix = [x[:, :, :end] for x in qkv]
    close(
        whole[:, :, :end],
        attend(module, *prefix, key_mask=mask if mask is None else mask[:, :end], causal=True),
    )


@each
@stable
@given(data=st.data())
def test_samples_do_not_see_each_other(cls, data):
    module, qkv, mask, causal = data.draw(calls(cls))
    whole = attend(module, *qkv, key_mask=mask, causal=causal)
    for b in range(len(whole)):
        one = [x[b : b + 1] for x in qkv]
        kept = None if mask is None else mask[b : b + 1]
        close(whole[b : b + 1], attend(module, *one, key_mask=kept, causal=causal), 1e-12)


@each
@stable
@given(data=st.data())
def test_order_does_not_matter(cls, data):
    module, qkv, mask, _ = data.draw(calls(cls, square=True))
    if not (module.capability.bidirectional and module.capability.positions == "none"):
        return
    order = torch.tensor(data.draw(st.permutations(range(qkv[0].shape[2]))))
    moved = [x[:, :, order] for x in qkv]
    out = attend(module, *moved, key_mask=mask if mask is None else mask[:, order])
    close(out, attend(module, *qkv, key_mask=mask)[:, :, order])


@each
@stable
@given(data=st.data(), factor=st.floats(-8, 8))
def test_linear_in_the_values(cls, data, factor):
    module, (q, k, v), mask, causal = data.draw(calls(cls))
    other = Draw(123).normal(*v.shape)
    got = attend(module, q, k, v + factor * other, key_mask=mask, causal=causal)
    parts = [attend(module, q, k, x, key_mask=mask, causal=causal) for x in (v, other)]
    close(got, parts[0] + factor * parts[1])


@each
@stable
@given(data=st.data())
def test_gradients_equal_those_of_the_oracle(cls, data):
    module, qkv, mask, causal = data.draw(calls(cls))
    gradients = []
    for call in (attend, reference):
        inputs = [x.clone().requires_grad_() for x in qkv]
        out = call(module, *inputs, key_mask=mask, causal=causal)
        out = out + sum(0.0 * x.sum() for x in inputs)  # the oracle may not use them all
        gradients.append(torch.autograd.grad(out.sin().sum(), inputs))
    for got, want in zip(*gradients, strict=True):
        close(got, want, 1e-9)
