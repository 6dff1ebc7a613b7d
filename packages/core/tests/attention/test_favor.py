"""Favor: official numbers, options, and what its exponents can take."""

from functools import partial

import pytest
import torch

from isoattn.core import Favor, Shape, UnsupportedAttention
from isoattn.core.ops.positive_features import Kernel, log_keys
from isoattn.core.ops.reference import favor as reference
from isoattn.core.testing import LAWS, NotApplicableError, Sizes
from isoattn.core.testing.suite import Draw

BOTH = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])


def performer(case, dtype, **options):
    """The module of a case, with its projection (one for all heads) copied in."""
    rows = case["noise.projection"]
    heads, dim = case["in.q"].shape[1], case["in.q"].shape[3]
    module = Favor(heads, dim, features=rows.shape[0], **options).to(dtype)
    module.projection.rows.copy_(rows)
    return module


@BOTH
@pytest.mark.parametrize("name", ["performer_favor_causal_and_not", "performer_favor_cross"])
def test_performer(golden, name, dtype):
    case = golden(name, dtype)
    inputs, (q, k, v) = case.qkv(token_major=False)
    module = performer(case, dtype, eps=case.entry["options"]["eps_feature"])
    out = module(q, k, v)
    case.close(out, "out.y_noncausal")
    case.grads_close(out, inputs, "qkv")


def test_performer_causal_is_only_an_oracle(golden):
    # Its maximum over all keys lets the future in, so the class refuses; the formula is kept.
    case = golden("performer_favor_causal_and_not", torch.float64)
    _, (q, k, v) = case.qkv(token_major=False)
    rows = case["noise.projection"].expand(q.shape[1], -1, -1)
    options = {"kind": "positive", "scale": q.shape[3] ** -0.25, "causal": True}
    out = reference.favor(q, k, v, rows, eps=1e-4, sum_eps=1e-6, **options)
    case.close(out, "out.y_causal")


@BOTH
def test_performer_relu(golden, dtype):
    case = golden("performer_relu_kernel", dtype)
    inputs, (q, k, v) = case.qkv(token_major=False)
    module = performer(case, dtype, kind="relu", eps=case.entry["options"]["kernel_epsilon"])
    out = module(q, k, v)
    case.close(out, "out.y_relu")
    case.grads_close(out, inputs, "qkv")


@BOTH
def test_hyperbolic_features(golden, dtype):
    case = golden("favor_pm_features", dtype)
    x = case["in.x"].transpose(1, 2)
    kernel = Kernel("hyperbolic", x.shape[3] ** -0.25)
    rows = case["noise.omega"].T.expand(x.shape[1], -1, -1)
    log_phi = log_keys(x, kernel.directions(rows, dtype), kernel, None)
    phi = log_phi.exp() * case.entry["options"]["n_dims"] ** -0.5
    case.close(phi.transpose(1, 2), "out.phi")


RELEASED = partial(Favor, eps=1e-4)


@pytest.mark.parametrize(
    "law",
    [
        pytest.param(law, id=name, marks=[pytest.mark.slow] if "derivatives" in name else [])
        for name, law in LAWS.items()
        if not law.slow
    ],
)
@pytest.mark.parametrize(
    "factory", [RELEASED, partial(Favor, redraw_every=1)], ids=["released", "redrawn"]
)
def test_laws_of_other_options(factory, law):
    try:
        law(factory, Sizes())
    except NotApplicableError:
        return


def test_is_unbiased_for_softmax():
    q, k, _ = (0.5 * x for x in Draw(0).qkv(Sizes(1, 8, 12, 1)))
    weights = torch.einsum("bhnd,bhmd->bhnm", q, k).mul(8**-0.5).exp()
    log_q, log_k = (
        reference.log_features(
            x, Favor(1, 8, features=20_000).projection.rows, "positive", 8**-0.25
        )
        for x in (q, k)
    )
    estimate = log_q.exp() @ log_k.exp().mT
    assert ((estimate - weights) / weights).abs().max() < 0.1


@pytest.mark.parametrize("kind", ["positive", "hyperbolic", "relu"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("spread", [10.0, 100.0])
def test_exponents_of_any_size_are_right(kind, causal, spread):
    # Squared lengths of 10^4: with one maximum for a head most denominators would vanish.
    draw = Draw(0)
    q, k, v = (x.float() for x in draw.qkv(Sizes(2, 8, 150, 1)))
    q, k = spread * q, spread * k
    module = Favor(2, 8, kind=kind)
    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    out = module(*inputs, causal=causal)
    exact = [x.double().requires_grad_() for x in (q, k, v)]
    want = Favor(2, 8, kind=kind).double()(*exact, causal=causal)
    sums = module(q, k, torch.ones_like(v), causal=causal)
    torch.testing.assert_close(sums, torch.ones_like(sums), rtol=1e-5, atol=0.0)
    assert out.isfinite().all()
    # the exponents themselves carry float32 errors of their own size
    bound = 1e-6 * spread**2 + 1e-5
    assert (out - want).abs().mean() < bound
    for x in torch.autograd.grad(out.sum(), inputs):
        assert x.isfinite().all()


def test_a_later_token_however_large_leaves_earlier_ones_alone():
    q, k, v = (x.float() for x in Draw(0).qkv(Sizes(2, 8, 150, 1)))
    module = Favor(2, 8)
    before = module(q, k, v, causal=True)
    k[:, :, 100:] *= 1e4
    after = module(q, k, v, causal=True)
    assert torch.equal(before[:, :, :100], after[:, :, :100])


def test_redraws_every_so_many_calls():
    module = Favor(2, 4, redraw_every=3)
    q, k, v = (x.float() for x in Draw(0).qkv(Sizes(2, 4, 5, 1)))
    seen = []
    for _ in range(7):
        module(q, k, v)
        seen.append(module.projection.rows.clone())
    same = [torch.equal(a, b) for a, b in zip(seen[:-1], seen[1:], strict=True)]
    assert same == [True, True, False, True, True, False]
    module.eval()
    module(q, k, v)
    assert torch.equal(module.projection.rows, seen[-1])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("every", [1, 2])
def test_two_calls_before_one_backward_keep_their_own_rows(every, causal):
    module = Favor(2, 4, redraw_every=every)
    twin = Favor(2, 4)
    images = [[x.requires_grad_() for x in Draw(i).qkv(Sizes(2, 4, 9, 1))] for i in range(3)]
    module, twin = module.double(), twin.double()
    outs, want = [], []
    for image in images:
        outs.append(module(*image, causal=causal))
        twin.projection.rows.copy_(module.projection.rows)
        want.append(torch.autograd.grad(twin(*image, causal=causal).sin().sum(), image))
    sum(out.sin().sum() for out in outs).backward()
    for image, grads in zip(images, want, strict=True):
        for x, grad in zip(image, grads, strict=True):
            torch.testing.assert_close(x.grad, grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("masked", [False, True])
def test_keys_that_rise_out_of_reach_of_their_block(masked):
    # The first keys are so long that all others rise by more than e^30 above them: blocks are cut.
    q, k, v = Draw(0).qkv(Sizes(2, 8, 150, 2))
    k = k * torch.tensor([8.0, 6.0, 0.1, 5.0, 3.0, 1.0]).repeat(25)[:, None]
    k[:, :, :3] *= 1.5
    mask = None
    if masked:
        mask = torch.ones(2, 150, dtype=torch.bool)
        mask[1, :5] = mask[0, 2:4] = False
    module = Favor(2, 8).double()
    inputs, exact = ([x.clone().requires_grad_() for x in (q, k, v)] for _ in range(2))
    out = module(*inputs, key_mask=mask, causal=True)
    want = module.reference(*exact, key_mask=mask, causal=True)
    torch.testing.assert_close(out, want, rtol=1e-10, atol=1e-10)
    for a, b in zip(
        torch.autograd.grad(out.sin().sum(), inputs),
        torch.autograd.grad(want.sin().sum(), exact),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_loading_is_final():
    first, second = Favor(2, 4, seed=1), Favor(2, 4, seed=2)
    assert not torch.equal(first.projection.rows, second.projection.rows)
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.projection.rows, second.projection.rows)
    second.reseed(2)
    assert torch.equal(Favor(2, 4, seed=2).projection.rows, second.projection.rows)


def test_number_of_features():
    assert Favor(1, 64).features == 266  # int(64 log 64), as performer-pytorch
    assert Favor(1, 1).features == 1
    assert Favor(1, 5, kind="hyperbolic").features == 8
    assert Favor(1, 3, kind="hyperbolic").projection.rows.shape == (1, 2, 3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kind": "cos"}, "kind must be positive, hyperbolic or relu, got 'cos'"),
        ({"features": 0}, "features must be at least 1 for kind='positive', got 0"),
        ({"features": 7, "kind": "hyperbolic"}, "features must be an even number >= 2"),
        ({"eps": -1.0}, "eps must be >= 0, got -1.0"),
        ({"eps": 0.0, "kind": "relu"}, "eps must be > 0 for kind='relu'"),
        ({"norms": "one"}, "norms must be 'chi' or 'sqrt', got 'one'"),
        ({"norms": "sqrt", "orthogonal": False}, "norms='sqrt' is for orthogonal rows"),
        ({"redraw_every": -1}, "redraw_every must be 0 .never. or more, got -1"),
    ],
)
def test_messages(options, words):
    with pytest.raises(ValueError, match=words):
        Favor(2, 4, **options)


def test_released_eps_has_no_causal_form():
    module = Favor(2, 4, eps=1e-4)
    q, k, v = (x.float() for x in Draw(0).qkv(Sizes(2, 4, 5, 1)))
    with pytest.raises(UnsupportedAttention, match="the future included.*use eps=0"):
        module(q, k, v, causal=True)


def test_cost_names_a_linear_mechanism():
    module = Favor(4, 64)
    short, long = (module.cost(Shape.square(1, 4, n, 64)) for n in (1024, 2048))
    assert long.forward_flops == 2 * short.forward_flops
    assert long.saved_bytes < 2 * short.saved_bytes
