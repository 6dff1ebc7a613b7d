"""GAU and FLASH: the official numbers, the oracle, half precision, packed samples, messages."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from isoattn.core import GatedAttentionUnit
from isoattn.core.ops.gau import in_chunks, mixed_chunk, squared_relu
from isoattn.core.ops.reference import gau as reference
from isoattn.core.ops.relative_bias import t5_buckets
from isoattn.core.ops.rotary import rotate
from isoattn.core.testing.suite import Draw

BOTH = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])


@BOTH
@pytest.mark.parametrize("form", ["full", "causal"])
@pytest.mark.parametrize("scaling", ["equation", "listing", "lucidrains"])
def test_flash_core(golden, scaling, form, dtype):
    case = golden("flash_core_variants", dtype)
    chunk, chunks, causal = case.entry["options"]["chunk"], 4, form == "causal"
    q, k, linear_q, linear_k, v, u = (
        case[f"in.{name}"].flatten(1, 2)
        for name in ("quad_q", "quad_k", "lin_q", "lin_k", "v", "u")
    )
    keys = {
        "equation": torch.ones(1),
        # S holds all keys, or those of the earlier chunks
        "listing": chunk * torch.arange(chunks).clamp(min=1) if causal else torch.tensor(24),
        # FLASH-pytorch does not divide by the number of earlier chunks
        "lucidrains": torch.tensor(chunk if causal else 24),
    }[scaling]
    options = {
        "chunk": chunk,
        "causal": causal,
        "scale": 1.0 if scaling == "equation" else 1.0 / chunk,
        "state_scale": keys.view(-1, 1, 1).to(dtype).reciprocal(),
        "bias": case["in.bias"],
    }
    name = f"{scaling}_{form}"
    both = mixed_chunk(q, k, linear_q, linear_k, v, **options)
    case.close(in_chunks(u * both, chunk), f"out.gated_{name}")
    quad = mixed_chunk(q, k, 0 * linear_q, linear_k, v, **options)
    case.close(in_chunks(quad, chunk), f"out.quad_{name}")
    options["bias"] = None
    case.close(
        in_chunks(mixed_chunk(0 * q, k, linear_q, linear_k, v, **options), chunk), f"out.lin_{name}"
    )


@BOTH
@pytest.mark.parametrize("form", ["full", "causal"])
def test_flash_listing_with_chunks_that_share_a_document(golden, form, dtype):
    # The listing mixes whole chunks whose documents overlap, so one that holds two documents leaks
    # between them; our segments do not. Its numbers still check S and the row-normalised mask.
    case = golden("flash_core_variants", dtype)
    ids, chunk = case["in.segment_ids"], case.entry["options"]["chunk"]
    low, high = ids.min(-1).values, ids.max(-1).values
    overlap = (low[:, :, None] <= high[:, None, :]) & (high[:, :, None] >= low[:, None, :])
    overlap = overlap.to(dtype).tril(-1) if form == "causal" else overlap.to(dtype)
    overlap = overlap / overlap.sum(-1, keepdim=True).clamp(min=1)
    state = case["in.lin_k"].transpose(-2, -1) @ case["in.v"] / chunk
    got = case["in.lin_q"] @ torch.einsum("bts,bsde->btde", overlap, state)
    case.close(got, f"out.lin_listing_{form}_segments")


def scale_norm(x, gain):
    return gain * x / (x.norm(dim=-1, keepdim=True) * x.shape[-1] ** -0.5).clamp(min=1e-5)


def shift(x):
    """The first half of the channels comes from the token before."""
    a, b = x.chunk(2, -1)
    return torch.cat([F.pad(a, (0, 0, 1, -1)), b], -1)


def t5_bias(table, tokens, causal):
    place = torch.arange(tokens)
    return table[t5_buckets(place[:, None] - place[None, :], causal=causal)]


@BOTH
@pytest.mark.parametrize("name", ["causal_rotary_shift", "noncausal_pad_mask"])
def test_flash_lucidrains(golden, name, dtype):
    case = golden(f"flash_lucidrains_{name}", dtype)
    options = case.entry["options"]
    chunk, causal, tokens = options["group_size"], options["causal"], options["n"]
    x = case["in.x"].requires_grad_()
    normed = scale_norm(x, case["w.norm.g"])
    normed = shift(normed) if options["shift_tokens"] else normed
    v, gate = F.silu(
        F.linear(normed, case["w.to_hidden.0.weight"], case["w.to_hidden.0.bias"])
    ).chunk(2, -1)
    z = F.silu(F.linear(normed, case["w.to_qk.0.weight"], case["w.to_qk.0.bias"]))
    parts = z[..., None, :] * case["w.qk_offset_scale.gamma"] + case["w.qk_offset_scale.beta"]
    q, linear_q, k, linear_k = parts.unbind(-2)
    if options["rotary"]:
        q, linear_q, k, linear_k = (
            rotate(y, torch.arange(tokens)) for y in (q, linear_q, k, linear_k)
        )
    if options["mask"]:
        v = v.masked_fill(~case["in.mask"][:, :, None], 0.0)
    table = case["w.rel_pos_bias.relative_attention_bias.weight"][:, 0]
    mixed = mixed_chunk(
        q,
        k,
        linear_q,
        linear_k,
        v,
        chunk=chunk,
        causal=causal,
        scale=1 / chunk,
        state_scale=1 / chunk if causal else 1 / tokens,  # of all tokens, pads counted
        bias=t5_bias(table * options["query_key_dim"] ** 0.5, chunk, causal),
    )
    out = F.linear(gate * mixed, case["w.to_out.weight"], case["w.to_out.bias"]) + x
    case.close(out, "out.y")
    case.grads_close(out, [x], ["x"])


@BOTH
def test_gau_lucidrains(golden, dtype):
    case = golden("gau_lucidrains", dtype)
    x = case["in.x"].requires_grad_()
    tokens, dim = x.shape[1:]
    normed = F.layer_norm(x, (dim,), case["w.norm.weight"], case["w.norm.bias"])
    v, gate = F.silu(
        F.linear(normed, case["w.to_hidden.0.weight"], case["w.to_hidden.0.bias"])
    ).chunk(2, -1)
    z = F.silu(F.linear(normed, case["w.to_qk.0.weight"], case["w.to_qk.0.bias"]))
    q, k = (z[..., None, :] * case["w.offsetscale.gamma"] + case["w.offsetscale.beta"]).unbind(-2)
    v = v.masked_fill(~case["in.mask"][:, :, None], 0.0)
    table = case["w.rel_pos_bias.relative_attention_bias.weight"][:, 0] * dim**0.5
    # It divides by all tokens, pads counted, and the bias too.
    mixed = squared_relu(q, k, v, scale=1 / tokens, bias_NM=t5_bias(table, tokens, False) / tokens)
    out = F.linear(gate * mixed, case["w.to_out.0.weight"], case["w.to_out.0.bias"]) + x
    case.close(out, "out.y")
    case.grads_close(out, [x], ["x"])


@BOTH
def test_gau_junnyu(golden, dtype):
    case = golden("gau_junnyu", dtype)
    x = case["in.x"].requires_grad_()
    tokens, dim = x.shape[1:]
    # It divides by the longest sequence there can be, whatever the length.
    longest, key_dim = case.entry["options"]["max_position_embeddings"], 8
    normed = F.layer_norm(x, (dim,), case["w.LayerNorm.weight"], case["w.LayerNorm.bias"])
    hidden = F.silu(F.linear(normed, case["w.uv.weight"], case["w.uv.bias"]))
    u, v, z = hidden.split([2 * dim, 2 * dim, key_dim], -1)
    place = torch.arange(tokens)
    q, k = (
        rotate(y, place, layout="halves")
        for y in (z[..., None, :] * case["w.weight"] + case["w.bias"]).unbind(-2)
    )
    pads = case["in.attention_mask"][:, :, None] == 0
    toeplitz = case["w.w"][place[None, :] - place[:, None] + longest - 1]
    mixed = squared_relu(q, k, v.masked_fill(pads, 0.0), scale=1 / longest, bias_NM=toeplitz)
    mixed = mixed.masked_fill(pads, 0.0)  # its mask hides queries as well as keys
    out = F.linear(u * mixed, case["w.o.weight"], case["w.o.bias"]) + x
    case.close(out, "out.y")
    case.grads_close(out, [x], ["x"])


def build(dtype=torch.float64, dim=8, **options):
    module = GatedAttentionUnit(dim, **options).to(dtype)
    draw = Draw(3)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.7 * draw.normal(*parameter.shape, dtype=dtype))
    return module


def by_definition(module, x, mask, causal):
    """The unit from its equations in float64, with the dense oracle; ranks by counting."""
    module = module.double()
    batch, tokens, _ = x.shape
    keep = torch.ones(batch, tokens, dtype=torch.bool) if mask is None else mask
    x = torch.where(keep[:, :, None], x.double(), 0.0)
    u, v = F.silu(module.hidden(x)).chunk(2, -1)
    z = F.silu(module.base(x))
    parts = [z * g + b for g, b in zip(module.gamma, module.beta, strict=True)]
    if module.rotary:
        place = (keep.long().cumsum(1) - 1).clamp(min=0)
        for i, y in enumerate(parts):
            pairs = torch.view_as_complex(y.unflatten(-1, (-1, 2)).contiguous())
            power = torch.arange(0, y.shape[-1], 2, dtype=torch.float64) / y.shape[-1]
            angle = place[:, :, None] * 10_000.0**-power
            parts[i] = torch.view_as_real(pairs * torch.exp(1j * angle)).flatten(-2)
    bias = None
    if module.relative_bias is not None:
        bias = t5_bias(
            module.relative_bias, tokens if module.chunk is None else module.chunk, causal
        )
    options = {"mask": mask, "causal": causal, "scaling": module.scaling, "bias": bias}
    if module.chunk is None:
        out = reference.gau(*parts, v, **options)
    else:
        out = reference.flash(*parts, v, chunk=module.chunk, **options)
    return torch.where(keep[:, :, None], module.out(u * out), 0.0)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("placed", [False, True], ids=["plain", "placed"])
@pytest.mark.parametrize("scaling", ["equation", "listing"])
@pytest.mark.parametrize("chunk", [None, 1, 7, 16, 35, 64])
def test_equals_the_oracle(chunk, scaling, placed, causal):
    module = build(key_dim=4, chunk=chunk, scaling=scaling, rotary=placed, relative_bias=placed)
    for tokens in (1, 2, 15, 16, 17, 35):
        x = Draw(tokens).normal(3, tokens, 8)
        for mask in (None, Draw(tokens).mask(3, tokens)):
            want = by_definition(module, x, mask, causal)
            got = module(x, mask=mask, causal=causal)
            torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("chunk", [None, 16])
def test_half_precision_beyond_a_logit_of_256(chunk, causal):
    # relu^2 of a logit of 256 is more than float16 can hold.
    module = build(torch.float16, key_dim=8, chunk=chunk, scaling="equation")
    with torch.no_grad():
        module.hidden.weight[16:] *= 3e-5  # v, so that what is right fits into float16
        module.hidden.bias[16:] *= 3e-5
        module.gamma *= 30
    x = Draw().normal(2, 40, 8).half()
    got = module(x, causal=causal)
    wide = build(key_dim=8, chunk=chunk, scaling="equation")
    wide.load_state_dict(module.state_dict())
    z = F.silu(wide.base(x.double()))
    q, k = z * wide.gamma[0] + wide.beta[0], z * wide.gamma[1] + wide.beta[1]
    assert (q @ k.transpose(-2, -1)).max() > 512
    want = by_definition(wide, x, None, causal)
    assert want.abs().max() < 6e4
    assert (got.double() - want).abs().max() <= 1e-2 * want.abs().max()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("chunk", [None, 4])
def test_packed_samples_give_what_they_give_alone(chunk, causal):
    module = build(key_dim=4, chunk=chunk, rotary=True, relative_bias=True)
    lengths = (5, 1, 9, 4)
    samples = [Draw(n).normal(1, n, 8) for n in lengths]
    ids = torch.repeat_interleave(torch.arange(4), torch.tensor(lengths))[None]
    got = module(torch.cat(samples, 1), segments=ids, causal=causal)
    want = torch.cat([module(sample, causal=causal) for sample in samples], 1)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


def test_the_state_of_flash_is_one_matrix_and_one_chunk():
    module = build(key_dim=4, chunk=6)
    _, state = module.extend(Draw().normal(2, 50, 8))
    sizes = {name: tuple(x.shape) for name, x in state.items()}
    assert sizes == {
        "tokens": (2,),
        "matrix": (2, 4, 16),
        "k": (2, 6, 4),
        "linear_k": (2, 6, 4),
        "v": (2, 6, 16),
    }
    half = build(torch.float16, key_dim=4, chunk=6)
    assert half.extend(Draw().normal(2, 50, 8).half())[1]["matrix"].dtype == torch.float32


@pytest.mark.parametrize("chunk", [None, 5])
def test_samples_of_different_length_continue_in_one_batch(chunk):
    # Rows end in the middle of different chunks, with pads on either side and in between.
    module = build(key_dim=4, chunk=chunk, rotary=True, relative_bias=True)
    x, mask = Draw().normal(4, 40, 8), Draw(2).mask(4, 40)
    mask[3] = False
    whole = module(x, mask=mask, causal=True)
    state, outputs = None, []
    for a, b in ((0, 1), (1, 2), (2, 9), (9, 9), (9, 10), (10, 31), (31, 40)):
        out, state = module.extend(x[:, a:b], state, mask=mask[:, a:b])
        outputs.append(out)
    torch.testing.assert_close(torch.cat(outputs, 1), whole, rtol=1e-10, atol=1e-10)
    assert state["tokens"].tolist() == mask.sum(1).tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"expansion": 0.0}, "expansion=0.0, key_dim=128, chunk=None"),
        ({"key_dim": 0}, "at least 1, got expansion=2.0, key_dim=0"),
        ({"chunk": 0}, "chunk=0"),
        ({"scaling": "paper"}, "scaling must be one of equation, listing, got 'paper'"),
    ],
)
def test_messages(options, message):
    with pytest.raises(ValueError, match=message):
        GatedAttentionUnit(8, **options)


def test_no_weight_decay_names_parameters():
    module = GatedAttentionUnit(8, relative_bias=True)
    assert module.no_weight_decay <= {name for name, _ in module.named_parameters()}


def test_gradients_of_every_parameter():
    for chunk in (None, 3):
        module = build(
            dim=3, expansion=1.0, key_dim=2, chunk=chunk, rotary=True, relative_bias=True
        )
        x = Draw().normal(1, 5, 3).requires_grad_()
        mask = torch.tensor([[True, False, True, True, True]])
        for causal in (False, True):

            def call(x, *_, module=module, causal=causal, mask=mask):
                return module(x, mask=mask, causal=causal)

            assert torch.autograd.gradcheck(call, (x, *module.parameters()))
            assert torch.autograd.gradgradcheck(
                partial(module, mask=mask, causal=causal), (x,), fast_mode=True
            )
