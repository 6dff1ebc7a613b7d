"""The decay engine and its presets against the official numbers, and their options."""

import pytest
import torch
import torch.nn.functional as F

from isoattn.core import (
    HGRN2,
    RWKV6,
    GatedLinear,
    GatedRandomFourier,
    RandomFourier,
    Retention,
    StateSpaceDual,
    UnsupportedAttention,
)
from isoattn.core.attention.hgrn2 import forget_gate

BOTH = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
CHUNKS = pytest.mark.parametrize("chunk", [1, 5, 16, 64, None])


def heads_first(case, *names):
    leaves = [case[f"in.{name}"].clone().requires_grad_() for name in names]
    return leaves, [x.transpose(1, 2) for x in leaves]


def in_two(module, tokens, state, *inputs, **gates):
    """Outputs, and the states after ``tokens`` and after all."""
    out, states = [], []
    for part in (slice(0, tokens), slice(tokens, None)):
        given = {name: x[:, :, part] for name, x in gates.items()}
        y, state = module.extend(*(x[:, :, part] for x in inputs), state, **given)
        out.append(y)
        states.append(state["S"])
    return torch.cat(out, 2), *states


def given_state(case, *, transpose=False):
    if "in.initial_state" not in case.stored:
        return None
    state = case["in.initial_state"]
    return {"S": state.transpose(-2, -1) if transpose else state}


@BOTH
@CHUNKS
@pytest.mark.parametrize("name", ["ssd_chunked", "ssd_chunked_state_strong_decay"])
def test_state_space_dual(golden, name, chunk, dtype):
    case = golden(name, dtype)
    leaves, (x, log_decay, b, c) = heads_first(case, "X", "logA", "B", "C")
    module = StateSpaceDual(c.shape[1], c.shape[3], chunk=chunk)
    state = given_state(case, transpose=True)
    out, at_cut, end = in_two(
        module, case.entry["options"]["cut"], state, c, b, x, log_decay=log_decay
    )
    case.close(out.transpose(1, 2), "out.y")
    case.close(at_cut.transpose(-2, -1), "out.state_at_cut")
    case.close(end.transpose(-2, -1), "out.final_state")
    case.grads_close(out.transpose(1, 2), leaves, ("X", "logA", "B", "C"))


@BOTH
@CHUNKS
def test_state_space_dual_with_the_parameters_of_mamba2(golden, chunk, dtype):
    case = golden("ssd_mamba2_param", dtype)
    heads, groups = (case.entry["options"][n] for n in ("heads", "groups"))
    dt = F.softplus(case["in.dt"] + case["w.dt_bias"]).transpose(1, 2)
    b, c = (
        case[f"in.{n}"].transpose(1, 2).repeat_interleave(heads // groups, 1) for n in ("B", "C")
    )
    x = case["in.x"].transpose(1, 2)
    module = StateSpaceDual(heads, c.shape[3], chunk=chunk)
    decay = -case["w.A_log"].exp()[:, None] * dt
    out, state = module.extend(c, b, dt.unsqueeze(-1) * x, log_decay=decay)
    out = (out + case["w.D"][:, None, None] * x).transpose(1, 2)
    case.close(out, "out.y")
    case.close(out * F.silu(case["in.z"]), "out.y_gated")
    case.close(state["S"].transpose(-2, -1), "out.final_state")


@BOTH
@CHUNKS
def test_retention(golden, chunk, dtype):
    case = golden("retention", dtype)
    inputs, (q, k, v) = case.qkv(token_major=False)
    module = Retention(q.shape[1], q.shape[3], chunk=chunk)
    out, state = module.extend(q, k, v)
    case.close(out, "out.y")
    case.close(state["S"], "out.final_state")
    case.grads_close(out, inputs, "qkv")


@BOTH
@CHUNKS
def test_one_gate_a_head_with_the_scale_of_flash_linear_attention(golden, chunk, dtype):
    case = golden("simple_gla", dtype)
    _, (q, k, v, gate) = heads_first(case, "q", "k", "v", "log_gate")
    module = StateSpaceDual(q.shape[1], q.shape[3], chunk=chunk)
    state = given_state(case)
    out, state = module.extend(q * q.shape[3] ** -0.5, k, v, state, log_decay=gate)
    case.close(out.transpose(1, 2), "out.y")
    case.close(state["S"], "out.final_state")


@BOTH
@CHUNKS
@pytest.mark.parametrize("name", ["gla_recurrent", "gla_recurrent_state", "hgrn2_recurrent"])
def test_gated_linear(golden, name, chunk, dtype):
    case = golden(name, dtype)
    leaves, (q, k, v, gate) = heads_first(case, "q", "k", "v", "log_gate")
    module = GatedLinear(q.shape[1], q.shape[3], chunk=chunk)
    out, state = module.extend(q, k, v, given_state(case), log_decay=gate)
    case.close(out.transpose(1, 2), "out.y")
    case.close(state["S"], "out.final_state")
    case.grads_close(out.transpose(1, 2), leaves, ("q", "k", "v", "log_gate"))
    if name == "hgrn2_recurrent":
        plain = GatedLinear(q.shape[1], q.shape[3], chunk=chunk, scale=1.0)
        out = plain(q, k, v, causal=True, log_decay=gate)
        case.close(out.transpose(1, 2), "out.y_no_scale")


def test_hgrn2_maps_q_and_k(golden):
    case = golden("hgrn2_recurrent", torch.float64)
    # The pre-activation of the stored gate, and any q: the layer's swish is the module's part.
    f = case["in.log_gate"].exp()
    x = torch.log(f) - torch.log1p(-f)
    log_f, rest = forget_gate(x, 0.0)
    torch.testing.assert_close(log_f, case["in.log_gate"], rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(rest, case["in.k"], rtol=1e-6, atol=1e-7)
    q, x, v = (y.transpose(1, 2) for y in (case["in.q"], x, case["in.v"]))
    out = HGRN2(q.shape[1], q.shape[3])(q, x, v, causal=True)
    plain = GatedLinear(q.shape[1], q.shape[3])
    gate = case["in.log_gate"].transpose(1, 2)
    want = plain(F.silu(q), -torch.expm1(gate), v, causal=True, log_decay=gate)
    torch.testing.assert_close(out, want, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("bound", [0.0, 1e-3, 0.5, 0.99])
def test_the_forget_gate_is_right_where_it_saturates(bound):
    x = torch.tensor([-800.0, -90.0, -1.0, 0.0, 1.0, 30.0, 90.0, 800.0])
    x = x.double().requires_grad_()
    log_f, rest = forget_gate(x, bound)
    torch.testing.assert_close(log_f.exp() + rest, torch.ones_like(x))
    assert (rest[:-1] > 0).all()  # 1 - f would be 0 from 40 on
    assert torch.autograd.gradcheck(
        lambda x: forget_gate(x, bound), x[1:-1].detach().requires_grad_()
    )
    for y in (log_f, rest):
        (grad,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
        assert grad.isfinite().all()


@BOTH
@CHUNKS
def test_rwkv6(golden, chunk, dtype):
    case = golden("rwkv6", dtype)
    r, k, v, decay = (
        case[f"in.{n}"].clone().requires_grad_() for n in ("r", "k", "v", "log_decay")
    )
    module = RWKV6(r.shape[1], r.shape[3], chunk=chunk).to(dtype)
    module.load_state_dict({"bonus": case["in.u"]})
    out, state = module.extend(r, k, v, given_state(case), log_decay=decay)
    case.close(out, "out.y")
    case.close(state["S"], "out.final_state")
    case.grads_close(out, (r, k, v, decay, module.bonus), ("r", "k", "v", "log_decay", "u"))


def test_options_are_checked():
    with pytest.raises(ValueError, match=r"chunk must be at least 1 or None .* got 0"):
        GatedLinear(1, 2, chunk=0)
    with pytest.raises(ValueError, match=r"lower_bound must be in \[0, 1\), got 1.0"):
        HGRN2(1, 2, lower_bound=1.0)


def test_gates_that_an_attention_does_not_take_are_refused():
    x = torch.randn(1, 2, 4, 3)
    with pytest.raises(UnsupportedAttention, match="Retention has no log_decay: its decay is its"):
        Retention(2, 3)(x, x, x, causal=True, log_decay=x[..., 0])
    with pytest.raises(UnsupportedAttention, match="GatedLinear has no in_gate: its input gate"):
        GatedLinear(2, 3)(x, x, x, causal=True, in_gate=x[..., 0])
    with pytest.raises(ValueError, match="log_decay must be floating point .*head_dim"):
        GatedLinear(2, 3)(x, x, x, causal=True, log_decay=x[..., 0])


def test_a_state_that_does_not_fit_is_named():
    x = torch.randn(1, 2, 4, 3)
    _, state = StateSpaceDual(2, 3).extend(x, x, x)
    with pytest.raises(ValueError, match=r"= \(1, 1, 3, 3\), got \(1, 2, 3, 3\)"):
        StateSpaceDual(2, 3).extend(x, x[:, :1], x[:, :1], state)
    with pytest.raises(ValueError, match=r"state must hold 'S', got \['C'\]"):
        StateSpaceDual(2, 3).extend(x, x, x, {"C": state["S"]})


@BOTH
@CHUNKS
def test_gated_random_fourier(golden, chunk, dtype):
    case = golden("rfa_gauss_causal_gated", dtype)
    names = ("q", "k", "v", "gate_logit")
    leaves = [case[f"in.{n}"].clone().requires_grad_() for n in names]
    q, k, v, gate = leaves
    options = case.entry["options"]
    module = GatedRandomFourier(
        q.shape[1], q.shape[3], features=options["random_features"], lengths="keep", chunk=chunk
    ).to(dtype)
    module.projection.copy_(case["noise.W"])
    out, state = module.extend(q, k, v, log_decay=F.logsigmoid(gate))
    case.close(out, "out.y")
    root = options["random_features"] ** -0.5  # left out of phi here, as it cancels
    case.close(root * state["S"], "out.S")
    case.close(root * state["z"], "out.z")
    case.grads_close(out, leaves, names)


def test_a_gate_of_one_forgets_nothing_and_no_gate_is_random_feature_attention():
    x = torch.randn(3, 1, 2, 9, 4, generator=torch.Generator().manual_seed(0)).double()
    gated, plain = GatedRandomFourier(2, 4, eps=0.0).double(), RandomFourier(2, 4, eps=0.0).double()
    plain.projection.copy_(gated.projection)
    want = plain.eval()(*x, causal=True)
    torch.testing.assert_close(gated(*x, causal=True), want)
    zero = torch.zeros(1, 2, 9, dtype=torch.float64)
    assert not gated(*x, causal=True, log_decay=zero).any()  # and lets nothing in


def test_options_of_the_gated_features_are_checked():
    for options, message in (
        ({"features": 0}, "features must be at least 1, got 0"),
        ({"lengths": "weigh"}, "lengths must be 'unit' or 'keep', got 'weigh'"),
        ({"eps": 1.0}, r"eps must be in \[0, 1\), got 1.0"),
        ({"chunk": 0}, r"chunk must be at least 1 or None .*got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            GatedRandomFourier(1, 2, **options)
    x = torch.randn(1, 1, 3, 2)
    with pytest.raises(ValueError, match=r"state must hold 'S', 'z' and 'n', got \['S'\]"):
        GatedRandomFourier(1, 2).extend(x, x, x, {"S": x})
