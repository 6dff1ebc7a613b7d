"""Nystrom: official numbers, its own options, and the laws at landmarks that matter there."""

from functools import partial

import pytest
import torch

from isoattn.core import Nystrom, Softmax, UnsupportedAttention
from isoattn.core.cost import Shape
from isoattn.core.ops import landmark
from isoattn.core.ops.reference import landmark as oracle
from isoattn.core.testing import LAWS, NotApplicableError, Sizes, count_flops, saved_bytes
from isoattn.core.testing.suite import Draw, build, leaves

BOTH = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])


@BOTH
@pytest.mark.parametrize(
    "name", ["nystrom_n37_m8_mask", "nystrom_n37_m8_residual", "nystrom_n5_lt_landmarks"]
)
def test_nystrom_attention(golden, name, dtype):
    case = golden(name, dtype)
    options = case.entry["options"]
    heads, tokens = options["heads"], options["n"]
    module = Nystrom(
        heads,
        options["dim_head"],
        landmarks=options["num_landmarks"],
        compat="nystrom-attention",
        residual_kernel=33,
    ).to(dtype)
    module.load_state_dict({"residual_weight": case["w.res_conv.weight"]})
    x = case["in.x"].clone().requires_grad_()
    qkv = torch.nn.functional.linear(x, case["w.to_qkv.weight"])
    q, k, v = qkv.view(len(x), tokens, 3, heads, -1).permute(2, 0, 3, 1, 4)
    mask = case["in.mask"] if options["mask"] else None
    mixed = module(q, k, v, key_mask=mask).transpose(1, 2).flatten(2)
    out = torch.nn.functional.linear(mixed, case["w.to_out.0.weight"], case["w.to_out.0.bias"])
    case.close(out, "out.y")
    case.grads_close(out, [x], ["x"])
    plan = module._plan(q, k, mask, None)
    case.close(plan.inverse_BHLL, "mid.attn2_pinv")


@BOTH
def test_authors(golden, dtype):
    case = golden("nystromformer_authors", dtype)
    inputs, (q, k, v) = case.qkv(token_major=False)
    taps = case.entry["options"]["conv_kernel_size"]
    module = Nystrom(2, 8, landmarks=8, compat="authors", residual_kernel=taps).to(dtype)
    module.load_state_dict({"residual_weight": case["w.conv.weight"]})
    out = module(q, k, v, key_mask=case["in.mask"] > 0)
    case.close(out, "out.y")
    case.grads_close(out, inputs, "qkv")


@BOTH
def test_iterations_of_the_inverse(golden, dtype):
    case = golden("nystrom_pinv", dtype)
    a = case["in.a"]
    norm = a.sum(-2).amax() * a.sum(-1).amax()
    for iterations in (0, 1, 3, 6, 15):
        got = landmark.iterated_inverse(a, iterations, norm)
        case.close(got, f"out.z_iter{iterations}")
    if dtype == torch.float64:
        case.close(torch.linalg.pinv(a), "out.true_inverse")


SMALL = {
    "m=8": partial(Nystrom, landmarks=8),
    "m=1": partial(Nystrom, landmarks=1),
    "authors, m=8": partial(Nystrom, landmarks=8, compat="authors"),
    "nystrom-attention, m=8": partial(Nystrom, landmarks=8, compat="nystrom-attention"),
    "convolution": partial(Nystrom, landmarks=8, residual_kernel=5),
    "convolution alone": partial(Nystrom, landmarks=99, residual_kernel=3),
}


@pytest.mark.parametrize("options", SMALL.values(), ids=SMALL.keys())
@pytest.mark.parametrize(
    "law",
    [
        pytest.param(
            law, id=name, marks=[pytest.mark.slow] if law.slow or "derivatives" in name else []
        )
        for name, law in LAWS.items()
    ],
)
def test_laws_with_few_landmarks(options, law):
    # At the default of 64 most laws would only see the exact form.
    if "residual_kernel" in options.keywords and law.name == "cost":
        pytest.skip("torch counts the weight gradient of a grouped convolution H times, see below")
    if law.slow and (law.name == "long_dtypes" or options is not SMALL["m=8"]):
        pytest.skip("once is enough; gradients of means of 2,048 tokens are subnormal in float16")
    try:
        law(options, Sizes())
    except NotApplicableError as reason:
        assert str(reason)


@pytest.mark.parametrize("landmarks", [8, 99])
def test_cost_of_the_convolution(landmarks):
    module = build(partial(Nystrom, landmarks=landmarks, residual_kernel=5), Sizes()).float()
    for dtype in (torch.float32, torch.float16):
        inputs = leaves(*Draw().qkv(Sizes(), dtype=dtype))
        said = module.cost(Shape.square(2, 3, 37, 5, itemsize=dtype.itemsize))
        forward, backward = count_flops(partial(module, *inputs))
        assert said.forward_flops == forward
        taps = 2 * 2 * 3 * 37 * 5 * 5
        assert said.backward_flops == backward - (module.heads - 1) * taps
        assert said.saved_bytes == saved_bytes(
            partial(module, *inputs), exclude=module.parameters()
        )


def draw(tokens, keys=None, heads=2, dim=6, batch=2, groups=None):
    return Draw(tokens).qkv(Sizes(heads, dim, tokens, batch), keys=keys, groups=groups)


@pytest.mark.parametrize("keep", [1, 7, 8])
def test_few_tokens_get_softmax_itself_also_beside_a_long_sample(keep):
    q, k, v = draw(40)
    mask = torch.arange(40) < torch.tensor([[40], [keep]])
    out = Nystrom(2, 6, landmarks=8)(q, k, v, key_mask=mask)
    want = Softmax(2, 6)(q, k, v, key_mask=mask)
    torch.testing.assert_close(out[1], want[1], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(out[0], want[0], atol=1e-3)


@pytest.mark.parametrize(("queries", "keys"), [(3, 90), (90, 3), (1, 90)])
def test_few_queries_or_keys_get_softmax_itself(queries, keys):
    q, k, v = draw(queries, keys)
    out = Nystrom(2, 6, landmarks=8)(q, k, v)
    torch.testing.assert_close(out, Softmax(2, 6)(q, k, v), rtol=1e-12, atol=1e-12)


def test_masked_queries_of_cross_attention_stay_out_of_the_landmarks():
    module = Nystrom(2, 6, landmarks=8)
    for kept, few in ((30, False), (5, True)):  # 5 queries are few: softmax itself
        q, k, v = draw(40, 50)
        query_mask = torch.arange(40) < torch.tensor([[40], [kept]])
        key_mask = torch.arange(50) < torch.tensor([[50], [45]])
        dirty = q.masked_fill(~query_mask[:, None, :, None], torch.nan)
        out = module(dirty, k, v, key_mask=key_mask, query_mask=query_mask)
        alone = module(q[1:, :, :kept], k[1:, :, :45], v[1:, :, :45])
        torch.testing.assert_close(out[1:, :, :kept], alone, rtol=1e-11, atol=1e-11)
        want = oracle.nystrom(
            q, k, v, landmarks=8, iterations=6, key_mask=key_mask, query_mask=query_mask
        )
        rows = out.masked_fill(~query_mask[:, None, :, None], 0.0)
        want = want.masked_fill(~query_mask[:, None, :, None], 0.0)
        torch.testing.assert_close(rows, want, rtol=1e-11, atol=1e-11)
        soft = Softmax(2, 6)(q, k, v, key_mask=key_mask)[1:, :, :kept]
        assert few == torch.allclose(alone, soft)


def test_queries_as_many_as_keys_may_still_be_cross_attention():
    q, k, v = draw(40)
    key_mask = torch.arange(40) < torch.tensor([[30], [40]])
    module = Nystrom(2, 6, landmarks=8)
    everything = torch.ones_like(key_mask)
    out = module(q, k, v, key_mask=key_mask, query_mask=everything)
    short = module(q[:1], k[:1, :, :30], v[:1, :, :30])
    torch.testing.assert_close(out[:1], short, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("compat", ["none", "nystrom-attention", "authors"])
@pytest.mark.parametrize("tokens", [5, 37, 40])
@pytest.mark.parametrize("masked", [False, True])
def test_cls_row_is_a_row_of_the_matrix(compat, tokens, masked, monkeypatch):
    monkeypatch.setattr(landmark, "ROW_BLOCK", 16)
    q, k, v = draw(tokens, groups=1)
    mask = Draw(3).mask(2, tokens, 0.7) if masked else None
    if masked:
        mask[:, 0] = True
        k, v = (x.masked_fill(~mask[:, None, :, None], torch.nan) for x in (k, v))
    module = Nystrom(2, 6, landmarks=8, compat=compat)
    rows = module.cls_row(q[:, :, [0]], q, k, key_mask=mask)
    assert rows.shape == (2, 2, 1, tokens)
    clean = v if mask is None else v.masked_fill(~mask[:, None, :, None], 0.0)
    want = module(q, k, v, key_mask=mask)[:, :, [0]]
    torch.testing.assert_close(rows @ clean, want, rtol=1e-11, atol=1e-11)
    matrix = module.matrix(q, k, key_mask=mask)
    torch.testing.assert_close(rows, matrix[:, :, [0]], rtol=1e-11, atol=1e-11)


def test_cls_row_shows_the_mass_on_the_zeros_in_front():
    q, k, v = draw(37)
    module = Nystrom(2, 6, landmarks=8, compat="nystrom-attention")
    whole = module.cls_row(q[:, :, :1], q, k, front=True)
    assert whole.shape[-1] == 40
    assert whole[..., :3].abs().sum() > 0
    torch.testing.assert_close(whole[..., 3:], module.cls_row(q[:, :, :1], q, k))


def test_cls_row_of_cross_attention():
    q, k, v = draw(30, 41)
    query_mask = torch.arange(30) < torch.tensor([[30], [6]])
    module = Nystrom(2, 6, landmarks=8)
    rows = module.cls_row(q[:, :, :2], q, k, query_mask=query_mask)
    want = module(q, k, v, query_mask=query_mask)[:, :, :2]
    torch.testing.assert_close(rows @ v, want, rtol=1e-11, atol=1e-11)


def test_the_pseudo_inverse_is_the_oracle_of_the_iterations():
    q, k, v = (3.0 * x for x in draw(64, dim=16))
    exact = Nystrom(2, 16, landmarks=8, iterations=None)
    torch.testing.assert_close(exact(q, k, v), exact.reference(q, k, v), rtol=1e-9, atol=1e-9)
    errors, residuals = [], []
    for iterations in (6, 10, 15):  # at 15 rounding is all that is left
        module = Nystrom(2, 16, landmarks=8, iterations=iterations)
        errors.append((module(q, k, v) - exact(q, k, v)).abs().max())
        residuals.append(module.inverse_residual(q, k).max())
    assert errors[0] > errors[1] > errors[2]
    assert residuals[0] > residuals[1] > residuals[2]
    assert residuals[2] < 1e-10 > exact.inverse_residual(q, k).max()
    assert not Nystrom(2, 16, landmarks=64).inverse_residual(q, k).any()


def test_the_pseudo_inverse_shows_a_nan_and_is_counted():
    q, k, v = draw(40)
    module = Nystrom(2, 6, landmarks=8, iterations=None)
    assert module(q.index_fill(2, torch.tensor([3]), torch.nan), k, v).isnan().all()
    LAWS["cost"](partial(Nystrom, landmarks=8, iterations=None), Sizes())


def test_the_convolution_is_drawn_by_seed_and_has_a_reason_against_cross():
    module = Nystrom(2, 6, residual_kernel=33)
    first = module.residual_weight.detach().clone()
    assert first.abs().max() <= 33**-0.5
    assert first.unique().numel() == first.numel()
    module.reseed(1)
    assert not torch.equal(module.residual_weight, first)
    module.reseed(0)
    assert torch.equal(module.residual_weight, first)
    with pytest.raises(UnsupportedAttention, match="one value for every query"):
        module(*draw(5, 6))
    assert not list(Nystrom(2, 6).parameters())


def test_no_causal_form_has_a_reason():
    with pytest.raises(UnsupportedAttention, match="landmarks pool the future"):
        Nystrom(2, 6)(*draw(5), causal=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"landmarks": 0}, "landmarks must be at least 1, got 0"),
        ({"iterations": -1}, "iterations must be at least 0, or None for the pseudo-inverse; got"),
        ({"compat": "lucid"}, "compat must be one of none, nystrom-attention, authors; got 'lu"),
        ({"residual_kernel": 4}, "residual_kernel must be an odd number of taps, or None .* got 4"),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        Nystrom(2, 6, **options)


def test_query_masks_that_do_not_fit():
    q, k, v = draw(12)
    mask = torch.ones(2, 12, dtype=torch.bool)
    ids = torch.zeros(2, 12, dtype=torch.long)
    with pytest.raises(ValueError, match="no meaning with segments.*key_mask alone"):
        Nystrom(2, 6)(q, k, v, query_mask=mask, segments=ids)
    with pytest.raises(ValueError, match="no meaning with compat='authors'"):
        Nystrom(2, 6, compat="authors")(q, k, v, query_mask=mask)
    with pytest.raises(ValueError, match=r"must be bool \(batch, queries\) = \(2, 12\)"):
        Nystrom(2, 6)(q, k, v, query_mask=mask[:, :5])
    with pytest.raises(ValueError, match="takes q, k, v as"):
        Nystrom(2, 6).cls_row(q[0], q, k)


def test_the_options_are_shown():
    text = repr(Nystrom(2, 6, landmarks=8, iterations=None, residual_kernel=3))
    assert "landmarks=8, iterations=None, compat='none', residual_kernel=3" in text
