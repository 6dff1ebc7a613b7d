"""Layers with any attention: masks, equal parameters, order of updates, half precision."""

from functools import partial

import pytest
import torch

from isoattn.core import (
    CosineSoftmax,
    Favor,
    Identity,
    Linear,
    Mean,
    Nystrom,
    RandomFourier,
    Softmax,
    Zero,
    attentions,
)
from isoattn.matching.models import EncoderLayer, PairTransformer
from isoattn.matching.models.transformer import alternating

CROSS = [Linear, Softmax, CosineSoftmax, Favor, RandomFourier, Mean, Zero]
ARMS = pytest.mark.parametrize("attention", CROSS, ids=lambda a: a.__name__)


def layer(attention, dim=16, heads=2, seed=0, dtype=torch.float64):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return EncoderLayer(attention, dim, heads).to(dtype)


def pair(attention, kinds=("self", "cross"), cross_update="sequential", dtype=torch.float64):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        factories = [attention] * len(kinds)
        model = PairTransformer(factories, 16, 2, kinds, cross_update=cross_update)
        return model.to(dtype).eval()


def tokens(batch, n, m, dim=16, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        torch.randn(batch, k, dim, generator=generator, dtype=torch.float64).to(dtype)
        for k in (n, m)
    )


@ARMS
def test_masked_equals_cropped(attention):
    model = layer(attention).eval()
    x, source = tokens(1, 9, 12)
    keep = torch.rand(12, generator=torch.Generator().manual_seed(1)) > 0.4
    got = model(x, source, None, keep[None])
    torch.testing.assert_close(got, model(x, source[:, keep]), rtol=1e-9, atol=1e-9)


@ARMS
def test_pads_have_no_influence_even_as_nan(attention):
    model = pair(attention)
    x0, x1 = tokens(2, 9, 7)
    mask0 = torch.arange(9).expand(2, -1) < torch.tensor([[9], [6]])
    mask1 = torch.arange(7).expand(2, -1) < torch.tensor([[4], [7]])
    want = model(x0, x1, mask0, mask1)
    noisy = [x.masked_fill(~m[:, :, None], torch.nan) for x, m in ((x0, mask0), (x1, mask1))]
    got = model(*noisy, mask0, mask1)
    for a, b, mask in zip(got, want, (mask0, mask1), strict=True):
        torch.testing.assert_close(a[mask], b[mask])


@ARMS
def test_padded_queries_get_no_message(attention):
    """Their message is LN(0), whatever they see; zju3dv and kornia's softmax gives NaN here."""
    model = layer(attention).eval()
    with torch.no_grad():
        model.norm1.bias.fill_(0.3)
    x, source = tokens(1, 5, 8)
    mask = torch.tensor([[True, False, True, True, False]])
    got = model(x, source, mask, torch.ones(1, 8, dtype=torch.bool))
    assert got.isfinite().all()
    message = torch.full_like(x, 0.3)
    want = x + model.norm2(model.mlp(torch.cat([x, message], 2)))
    torch.testing.assert_close(got[~mask], want[~mask])


@ARMS
def test_an_image_without_any_valid_token_is_finite(attention):
    model = pair(attention).train()
    x0, x1 = (x.requires_grad_() for x in tokens(2, 6, 5))
    mask0, mask1 = torch.ones(2, 6, dtype=torch.bool), torch.ones(2, 5, dtype=torch.bool)
    mask1[0] = False
    out0, out1 = model(x0, x1, mask0, mask1)
    (out0.square().sum() + out1.square().sum()).backward()
    assert out0.isfinite().all() and out1.isfinite().all()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name


def test_every_attention_that_crosses_has_the_same_parameters_and_initial_values():
    first = layer(Linear).state_dict()
    tried = 0
    for cls in attentions().values():
        try:
            core = cls(2, 8)
        except TypeError:
            continue
        if not core.capability.cross and not isinstance(core, (Nystrom, Identity)):
            continue
        own = {n: x for n, x in layer(cls).state_dict().items() if not n.startswith("core.")}
        assert own.keys() == first.keys(), cls.__name__
        assert all(torch.equal(own[n], first[n]) for n in first), cls.__name__
        tried += 1
    assert tried >= 10


def test_sequential_update_sees_the_other_image_updated():
    model = pair(Linear, ["cross"])
    x0, x1 = tokens(1, 5, 6)
    out0, out1 = model(x0, x1)
    only = model.layers[0]
    torch.testing.assert_close(out0, only(x0, x1))
    torch.testing.assert_close(out1, only(x1, out0))
    back1, back0 = model(x1, x0)
    assert not torch.allclose(back0, out0)


def test_parallel_update_is_symmetric():
    model = pair(Linear, alternating(4), "parallel")
    x0, x1 = tokens(1, 5, 6)
    out0, out1 = model(x0, x1)
    back1, back0 = model(x1, x0)
    torch.testing.assert_close(back0, out0)
    torch.testing.assert_close(back1, out1)


@pytest.mark.parametrize("attention", [Linear, Softmax, Mean], ids=lambda a: a.__name__)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["f16", "bf16"])
@pytest.mark.parametrize("count", [1200, 6400])
def test_half_precision_at_many_tokens(attention, dtype, count):
    """In float16 the normaliser of released linear attention overflows from 1,200 tokens on."""
    dim = 32 if count > 2000 else 64
    model = layer(attention, dim, dim // 32, dtype=torch.float32).eval()
    x, source = tokens(1, 64, count, dim, dtype=torch.float32)
    with torch.no_grad():
        heads = [project(t) for project, t in ((model.q_proj, x), (model.k_proj, source))]
        value = model.v_proj(source)
        q, k, v = (model._heads(t) for t in (*heads, value))
        want = model.core(q, k, v)
        got = model.core(*(t.to(dtype) for t in (q, k, v)))
    error = (got.float() - want).norm() / want.norm()
    assert error < (2e-3 if dtype == torch.float16 else 2e-2)
    assert got.any(-1).all()


def test_autocast_keeps_the_sums_of_linear_attention():
    model = pair(Linear, dtype=torch.float32)
    x0, x1 = tokens(1, 400, 300, dtype=torch.float32)
    with torch.no_grad():
        want = model(x0, x1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = model(x0, x1)
    for a, b in zip(got, want, strict=True):
        assert (a - b).norm() / b.norm() < 2e-2


def test_dense_part_compiles_whole():
    model = pair(Linear, dtype=torch.float32)
    x0, x1 = tokens(1, 12, 10, dtype=torch.float32)
    mask = torch.ones(1, 12, dtype=torch.bool)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    for a, b in zip(compiled(x0, x1, mask), model(x0, x1, mask), strict=True):
        torch.testing.assert_close(a, b)


def test_construction_leaves_the_global_generator_to_the_projections():
    torch.manual_seed(0)
    EncoderLayer(Linear, 16, 2)
    want = torch.get_rng_state()
    torch.manual_seed(0)
    EncoderLayer(partial(RandomFourier, features=8), 16, 2)
    assert torch.equal(torch.get_rng_state(), want)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: EncoderLayer(Linear, 16, 3),
            "heads must divide the channels: got heads=3, dim=16",
        ),
        (
            lambda: PairTransformer([Linear], 16, 2, ["other"]),
            r"Each layer is 'self' or 'cross' .* got the layers \['other'\] and 1 attentions",
        ),
        (
            lambda: PairTransformer([Linear], 16, 2, ["self", "cross"]),
            r"got the layers \['self', 'cross'\] and 1 attentions",
        ),
        (
            lambda: PairTransformer([], 16, 2, [], cross_update="both"),
            "cross_update must be 'sequential' or 'parallel', got 'both'",
        ),
    ],
)
def test_messages(call, words):
    with pytest.raises(ValueError, match=words):
        call()
