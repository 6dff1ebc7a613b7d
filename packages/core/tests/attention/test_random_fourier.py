import pytest
import torch

from isoattn.core import RandomFourier, Shape
from isoattn.core.testing.measure import count_flops, saved_bytes

BOTH = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])


def with_directions(case, heads, dim, **options):
    """In evaluation mode, with the directions of the case copied into the buffer."""
    directions = case["noise.W"]
    module = RandomFourier(heads, dim, features=directions.shape[1], **options).to(case.dtype)
    module.projection.copy_(directions)
    return module.eval()


@BOTH
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("rfa_gauss_causal", {"lengths": "keep"}),  # q and k are of length 1 already
        ("rfa_arccos_causal", {"lengths": "keep", "kernel": "arccos"}),
        ("rfa_gauss_cross", {"lengths": "keep"}),
        ("rfa_gauss_cross_unnormalised", {"lengths": "weigh"}),
    ],
)
def test_the_equations(golden, name, options, dtype):
    case = golden(name, dtype)
    inputs, (q, k, v) = case.qkv(token_major=False)
    module = with_directions(case, q.shape[1], q.shape[3], **options)
    mask = case["in.key_mask"] if "in.key_mask" in case.stored else None
    causal = "causal" in name
    out = module(q, k, v, key_mask=mask, causal=causal)
    case.close(out, "out.y")
    case.grads_close(out, inputs, "qkv")
    if causal:
        again, state = module.extend(q, k, v)
        case.close(again, "out.y")
        scale = case.entry["options"]["random_features"] ** -0.5  # cancels, so phi has none here
        case.close(scale * state["S"], "out.S")
        case.close(scale * state["z"], "out.z")


@BOTH
@pytest.mark.parametrize(
    ("name", "clamp", "padded"),
    [
        ("causal_recurrent", "released", False),
        ("causal_masked", "released_masked", False),
        ("causal_masked_keypad", "released_masked", True),
        ("cross", "released_cross", False),
    ],
)
def test_the_three_normalisers_of_the_released_code(golden, name, clamp, padded, dtype):
    case = golden("rfa_released_code", dtype)
    q, k, v = (case[f"in.{x}"].permute(1, 2, 0, 3) for x in "qkv")
    module = with_directions(case, q.shape[1], q.shape[3], norm_eps=1e-3, clamp=clamp)
    module.load_state_dict({"sigma": case["w.sigma"]}, strict=False)
    mask = ~case["in.key_padding_mask"] if padded else None
    out = module(q, k, v, key_mask=mask, causal=name != "cross")
    case.close(out.permute(2, 0, 1, 3), f"out.y_{name}")
    if name == "causal_recurrent":
        _, state = module.extend(q, k, v)
        case.close(0.1 * state["S"], "out.S")
        case.close(0.1 * state["z"], "out.z")


def qkv(tokens=9, heads=2, dim=4, **options):
    draw = torch.Generator().manual_seed(tokens)
    return [torch.randn(1, heads, tokens, dim, generator=draw, **options) for _ in range(3)]


def test_it_estimates_softmax_of_unit_vectors():
    q, k, v = qkv(40, dtype=torch.float64)
    module = RandomFourier(2, 4, features=20_000).double().eval()
    unit = torch.nn.functional.normalize
    want = torch.softmax(unit(q, dim=-1) @ unit(k, dim=-1).transpose(-2, -1), -1) @ v
    assert (module(q, k, v) - want).abs().max() < 0.05
    q, k = q / 2, k / 2
    module = RandomFourier(2, 4, features=20_000, lengths="weigh").double().eval()
    want = torch.softmax(q @ k.transpose(-2, -1), -1) @ v
    assert (module(q, k, v) - want).abs().max() < 0.05


def test_the_pool_is_gone_through_in_training_and_evaluation_stays():
    inputs = qkv()
    module = RandomFourier(2, 4, pool=3)
    fixed = module.eval()(*inputs)
    module.train()
    calls = [module(*inputs) for _ in range(7)]
    assert torch.equal(calls[0], fixed)
    for n in range(7):
        for m in range(n):
            assert torch.equal(calls[n], calls[m]) == (n % 3 == m % 3)
    assert torch.equal(module.eval()(*inputs), fixed)
    still = RandomFourier(2, 4, redraw=False)
    assert not still.capability.stochastic
    assert torch.equal(still.train()(*inputs), fixed)
    assert not RandomFourier(2, 4, pool=1).capability.stochastic


def test_two_calls_in_training_before_one_backward_pass():
    q, k, v = qkv(requires_grad=True)
    module = RandomFourier(2, 4).train()
    (module(q, k, v) + module(q, k, v)).sum().backward()
    assert module.sigma.grad.any()


def test_a_seed_makes_a_pool():
    a, b, c = RandomFourier(2, 4, seed=1), RandomFourier(2, 4, seed=2), RandomFourier(2, 4)
    assert not torch.equal(a.projection, b.projection)
    c.reseed(2)
    assert torch.equal(b.projection, c.projection)
    assert a.sigma.shape == (2, 1, 4)
    assert not RandomFourier(2, 4, learn_sigma=False).sigma.requires_grad


def test_a_denominator_near_zero_is_kept_away_from_it_with_its_sign():
    q, k, v = qkv(300, dtype=torch.float64)
    options = {"features": 4, "lengths": "keep", "sigma_init": 3.0}
    exact = RandomFourier(2, 4, eps=0.0, **options).double().eval().matrix(q, k, causal=True)
    clamped = RandomFourier(2, 4, eps=0.3, **options).double().eval().matrix(q, k, causal=True)
    torch.testing.assert_close(exact.sum(-1), torch.ones_like(exact.sum(-1)))
    sums = clamped.sum(-1)
    inside = (sums - 1).abs() < 1e-9
    assert 0.1 < inside.double().mean() < 0.9
    assert ((sums > -1e-9) & (sums <= 1 + 1e-9)).all()  # smaller by the clamp, of the same sign
    torch.testing.assert_close(clamped[inside], exact[inside])
    assert clamped.abs().max() < exact.abs().max()


def test_a_query_that_no_direction_is_near_gives_zero_with_zero_gradient():
    q, k, v = qkv(dtype=torch.float64, requires_grad=True)
    module = RandomFourier(2, 4, features=1, kernel="arccos").double().eval()
    assert module.capability.normalised
    for causal in (False, True):
        out = module(q, k, v, causal=causal)
        empty = (q * module.projection).sum(-1) <= 0
        assert empty.any()
        assert not out[empty].any()
        (grad,) = torch.autograd.grad(out.sum(), q)
        assert grad.isfinite().all()
        assert not grad[empty].any()


@pytest.mark.parametrize("causal", [False, True])
def test_long_keys_do_not_overflow_and_weigh_the_past_alone(causal):
    q, k, v = qkv(200, dtype=torch.float32)
    k = k * torch.linspace(1.0, 60.0, 200)[:, None]  # exp(|k|^2 / 2) is beyond float64
    module = RandomFourier(2, 4, lengths="weigh").eval()
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    out = module(q, k, v, causal=causal)
    grads = torch.autograd.grad(out.sum(), (q, k, v, module.sigma))
    assert out.isfinite().all()
    assert all(x.isfinite().all() for x in grads)
    if causal:
        short = module(q[:, :, :9], k[:, :, :9], v[:, :, :9], causal=True)
        torch.testing.assert_close(out[:, :, :9], short, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("lengths", ["unit", "weigh"])
def test_cost_over_several_blocks(lengths):
    module = RandomFourier(1, 2, features=2, chunk=50, lengths=lengths).eval()
    q, k, v = (torch.randn(1, 1, n, 2, requires_grad=True) for n in (2300, 1100, 1100))
    said = module.cost(Shape(1, 1, 2300, 1100, 2, 2), causal=True)

    def call():
        return module(q, k, v, causal=True)

    assert count_flops(call) == (said.forward_flops, said.backward_flops)
    assert saved_bytes(call, exclude=module.parameters()) == said.saved_bytes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": 0}, "features >= 1 and pool >= 1, got features=0, pool=500"),
        ({"pool": 0}, "got features=64, pool=0"),
        ({"kernel": "laplace"}, "kernel must be 'gaussian' or 'arccos', got 'laplace'"),
        ({"norm_eps": -1.0}, "norm_eps must not be negative .* got norm_eps=-1.0"),
        ({"eps": 1.0}, r"eps must be in \[0, 1\); got norm_eps=0.0, eps=1.0"),
        ({"clamp": "max"}, "clamp must be one of relative, released, .* got 'max'"),
        ({"lengths": "short"}, "lengths must be one of unit, keep, weigh, got 'short'"),
        ({"norm_eps": 0.1, "lengths": "keep"}, "norm_eps=0.1 is of lengths='unit'"),
        ({"kernel": "arccos", "clamp": "released"}, "has no clamp, no eps .* got clamp='released'"),
        ({"kernel": "arccos", "eps": 0.1}, "has no clamp, no eps .* eps=0.1"),
        ({"kernel": "arccos", "lengths": "weigh"}, "no lengths='weigh'"),
        ({"clamp": "released", "eps": 0.1}, "eps=0.1 is of clamp='relative'"),
        ({"clamp": "released", "lengths": "weigh"}, "only known up to a factor. Use clamp="),
        ({"chunk": 0}, "chunk must be a whole number of tokens, at least 1; got 0"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        RandomFourier(2, 4, **options)


def test_print_shows_the_options():
    assert repr(RandomFourier(2, 4)).splitlines()[1:2] == [
        "  heads=2, head_dim=4, features=64, kernel='gaussian', lengths='unit', norm_eps=0.0, "
        "clamp='relative', eps=0.01, pool=500, redraw=True, chunk=64"
    ]
