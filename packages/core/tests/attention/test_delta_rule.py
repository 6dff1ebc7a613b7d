from functools import partial

import pytest
import torch
import torch.nn.functional as F

from isoattn.core import DeltaRule, MultiHead, Shape, UnsupportedAttention
from isoattn.core.ops.delta_rule import delta_rule
from isoattn.core.testing.measure import saved_bytes
from isoattn.core.testing.suite import Draw

BOTH = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
CASES = {"delta_rule": "none", "gated_delta_rule": "head", "kda": "channel"}


def inputs(tokens, groups=2, dtype=torch.float64):
    draw = Draw(tokens)
    q = draw.normal(2, 4, tokens, 5, dtype=dtype)
    k, v = (draw.normal(2, groups, tokens, d, dtype=dtype) for d in (5, 6))
    return q, k, v


@BOTH
@pytest.mark.parametrize("chunk", [1, 7, 64, None])
@pytest.mark.parametrize("name", CASES)
def test_official(golden, name, chunk, dtype):
    case = golden(name, dtype)
    (q, k, v), moved = case.qkv(token_major=True)
    beta = case["in.beta"].clone().requires_grad_()
    wanted, names = [q, k, v, beta], ["q", "k", "v", "beta"]
    gates = {"in_gate": beta.logit().transpose(1, 2)}
    if name != "delta_rule":
        log_gate = case["in.log_gate"].clone().requires_grad_()
        gates["log_decay"] = log_gate.transpose(1, 2)
        wanted, names = [*wanted, log_gate], [*names, "log_gate"]
    state = case["in.initial_state"] if case.entry["options"]["initial_state"] else None
    # The keys of the files have length 1 to float32 only, and gradients without the division.
    out, end = delta_rule(
        *moved,
        gates.get("log_decay"),
        gates["in_gate"],
        state,
        scale=case.entry["options"]["scale"],
        unit_keys=False,
        chunk=chunk,
    )
    case.close(out.transpose(1, 2), "out.y")
    case.close(end, "out.final_state")
    case.grads_close(out.transpose(1, 2), wanted, names)
    if dtype == torch.float32:
        module = DeltaRule(q.shape[2], q.shape[3], decay=CASES[name], chunk=chunk)
        out, end = module.extend(*moved, state if state is None else {"S": state}, **gates)
        case.close(out.transpose(1, 2), "out.y")
        case.close(end["S"], "out.final_state")


def test_equal_decays_of_all_channels_are_a_decay_of_the_head():
    q, k, v = inputs(70)
    log_decay = -F.softplus(Draw(1).normal(2, 2, 70))
    head = DeltaRule(4, 5)(q, k, v, causal=True, log_decay=log_decay)
    channel = log_decay.unsqueeze(-1).expand(k.shape)
    got = DeltaRule(4, 5, decay="channel")(q, k, v, causal=True, log_decay=channel)
    torch.testing.assert_close(got, head, rtol=1e-11, atol=1e-12)
    none = DeltaRule(4, 5, decay="none")(q, k, v, causal=True)
    torch.testing.assert_close(DeltaRule(4, 5)(q, k, v, causal=True), none)


def test_a_full_write_is_read_back():
    q, k, v = inputs(9, groups=4)
    gate = torch.full(k.shape[:3], torch.inf, dtype=torch.float64)  # b = 1
    module = DeltaRule(4, 5, scale=1.0)
    got = module(F.normalize(k, dim=-1), k, v, causal=True, in_gate=gate)
    torch.testing.assert_close(got, v)


def test_key_lengths_do_not_matter():
    q, k, v = inputs(40)
    length = Draw(3).normal(2, 2, 40, 1).exp()
    want = DeltaRule(4, 5)(q, k, v, causal=True)
    torch.testing.assert_close(DeltaRule(4, 5)(q, length * k, v, causal=True), want)
    kept, _ = delta_rule(q, length * k, v, None, None, scale=5**-0.5, unit_keys=False)
    assert not torch.allclose(kept, want)


def test_a_key_of_zeros_writes_nothing():
    q, k, v = inputs(6)
    k = k.index_fill(2, torch.tensor([2]), 0.0).requires_grad_()
    keep = torch.ones(2, 6, dtype=torch.bool)
    keep[:, 2] = False
    out = DeltaRule(4, 5)(q, k, v, causal=True)
    want = DeltaRule(4, 5)(q, k, v, causal=True, key_mask=keep)
    torch.testing.assert_close(out, want)
    (grad,) = torch.autograd.grad(out.sum(), k)
    assert grad.isfinite().all()


@pytest.mark.parametrize("decay", ["head", "channel"])
def test_a_decay_of_minus_infinity_forgets_all_before(decay):
    q, k, v = inputs(30)
    log_decay = -F.softplus(Draw(1).normal(*(k.shape if decay == "channel" else k.shape[:3])))
    log_decay[:, :, 11] = -torch.inf
    log_decay.requires_grad_()
    module = DeltaRule(4, 5, decay=decay)
    out = module(q, k, v, causal=True, log_decay=log_decay)
    late = [x[:, :, 11:] for x in (q, k, v)]
    want = module(*late, causal=True, log_decay=log_decay[:, :, 11:])
    torch.testing.assert_close(out[:, :, 11:], want)
    (grad,) = torch.autograd.grad(out.sum(), log_decay)
    assert grad.isfinite().all()


def test_twice_the_sigmoid_reflects():
    q, k, v = inputs(1, groups=4)
    state = {"S": Draw(5).normal(2, 4, 5, 6)}
    gate = torch.full(k.shape[:3], torch.inf, dtype=torch.float64)  # b = 2
    module = DeltaRule(4, 5, negative_eigenvalues=True)
    _, end = module.extend(q, k, torch.zeros_like(v), state, in_gate=gate)
    key = F.normalize(k[:, :, 0], dim=-1).unsqueeze(-2)
    torch.testing.assert_close(key @ end["S"], -(key @ state["S"]))
    torch.testing.assert_close(end["S"].norm(), state["S"].norm())


@pytest.mark.parametrize("decay", ["none", "head", "channel"])
def test_a_mixer_gives_its_gates(decay):
    torch.manual_seed(0)
    mixer = MultiHead(20, 4, partial(DeltaRule, decay=decay)).double()
    x = Draw().normal(2, 11, 20).requires_grad_()
    y = mixer(x, causal=True)
    y.sum().backward()
    assert mixer.in_gate.weight.grad.abs().sum() > 0
    assert (mixer.log_decay is None) == (decay == "none")


def test_long_sequences_keep_the_inputs_and_a_state_a_block():
    heads, dim = 2, 16
    for tokens in (1, 5000):
        tensors = [torch.randn(1, heads, tokens, dim, requires_grad=True) for _ in range(3)]
        gate = torch.randn(1, heads, tokens, requires_grad=True)
        module = DeltaRule(heads, dim, chunk=16, decay="none")
        kept = saved_bytes(lambda: module(*tensors, causal=True, in_gate=gate))  # noqa: B023
        assert kept == module.cost(Shape.square(1, heads, tokens, dim), causal=True).saved_bytes


def test_no_tokens_leave_the_state():
    q, k, v = (x[:, :, :0] for x in inputs(3))
    state = {"S": Draw(5).normal(2, 2, 5, 6)}
    out, end = DeltaRule(4, 5).extend(q, k, v, state)
    assert out.shape == (2, 4, 0, 6)
    torch.testing.assert_close(end["S"], state["S"])


def test_options_are_checked():
    with pytest.raises(ValueError, match="decay must be 'none', 'head' or 'channel', got 'both'"):
        DeltaRule(1, 2, decay="both")
    with pytest.raises(ValueError, match="chunk must be at least 1, or None .* got 0"):
        DeltaRule(1, 2, chunk=0)
    x = torch.randn(1, 1, 3, 2)
    with pytest.raises(UnsupportedAttention, match="bidirectional form: .*pass causal=True"):
        DeltaRule(1, 2)(x, x, x)
    with pytest.raises(UnsupportedAttention, match="log_decay: decay='none' .* decay='head'"):
        DeltaRule(1, 2, decay="none")(x, x, x, causal=True, log_decay=x[..., 0])
    assert repr(DeltaRule(1, 4)) == (
        "DeltaRule(heads=1, head_dim=4, decay='head', negative_eigenvalues=False, chunk=64, "
        "scale=0.5)"
    )


def test_a_state_of_another_shape_is_named():
    q, k, v = inputs(3)
    module = DeltaRule(4, 5)
    _, state = module.extend(q, k, v)
    with pytest.raises(ValueError, match=r"S .* = \(2, 2, 5, 12\); got S \(2, 2, 5, 6\)"):
        module.extend(q, k, torch.cat([v, v], -1), state)
    with pytest.raises(ValueError, match=r"must hold S .*; got C \(2, 2, 5, 6\)"):
        module.extend(q, k, v, {"C": state["S"]})
