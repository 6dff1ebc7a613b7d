import pytest
import torch
import torch.nn.functional as F

from isoattn.core import MLSTM, Shape, UnsupportedAttention
from isoattn.core.testing.measure import saved_bytes
from isoattn.core.testing.suite import Draw

BOTH = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
CELLS = ["mlstm_cell", "mlstm_cell_initial_state", "mlstm_cell_large_gates_dv"]


def cell(golden, name, dtype):
    """The case, its five inputs with gradients, and the state it begins with."""
    case = golden(name, dtype)
    names = ("q", "k", "v", "igate_preact", "fgate_preact")
    inputs = [case[f"in.{n}"].clone().requires_grad_() for n in names]
    (batch, heads, _, dim), width = inputs[0].shape, inputs[2].shape[3]
    if case.entry["options"]["initial_state"]:
        state = {"C": case["in.C0"], "n": case["in.n0"], "m": case["in.m0"][..., 0]}
    else:  # the official code begins with m = 0
        state = {
            "C": torch.zeros(batch, heads, dim, width, dtype=dtype),
            "n": torch.zeros(batch, heads, dim, dtype=dtype),
            "m": torch.zeros(batch, heads, dtype=dtype),
        }
    return case, inputs, state


def run(module, inputs, state, cut=slice(None)):
    q, k, v, igate, fgate = (x[:, :, cut] for x in inputs)
    return module.extend(q, k, v, state, log_decay=F.logsigmoid(fgate), in_gate=igate)


@BOTH
@pytest.mark.parametrize("chunk", [1, 7, 8, None])
@pytest.mark.parametrize("name", CELLS)
def test_official_cell(golden, name, chunk, dtype):
    case, inputs, state = cell(golden, name, dtype)
    module = MLSTM(inputs[0].shape[1], inputs[0].shape[3], eps=1e-6, chunk=chunk)
    cut = case.entry["options"]["cut"]
    out, middle = run(module, inputs, state, slice(0, cut))
    rest, last = run(module, inputs, middle, slice(cut, None))
    out = torch.cat([out, rest], 2)
    case.close(out, "out.h")
    for found, when in ((middle, "at_cut"), (last, "last")):
        case.close(found["C"], f"out.C_{when}")
        case.close(found["n"], f"out.n_{when}")
        case.close(found["m"].unsqueeze(-1), f"out.m_{when}")


@BOTH
@pytest.mark.parametrize("chunk", [1, 7, 64, None])
@pytest.mark.parametrize("name", ["mlstm_cell", "mlstm_cell_large_gates_dv"])
def test_official_parallel_form(golden, name, chunk, dtype):
    # its row maximum begins at -inf, as ours does; the official gradients are those of this form
    case, inputs, _ = cell(golden, name, dtype)
    module = MLSTM(inputs[0].shape[1], inputs[0].shape[3], eps=1e-6, chunk=chunk)
    out, state = run(module, inputs, None)
    case.close(out, "out.h_parallel")
    case.grads_close(out, inputs, ("q", "k", "v", "igate", "fgate"))
    last = case.stored["out.rowmax_m_parallel"][:, :, -1]
    torch.testing.assert_close(state["m"].double(), last, atol=1e-5, rtol=1e-5)


@BOTH
@pytest.mark.parametrize("name", CELLS)
def test_official_cell_without_eps(golden, name, dtype):
    case, inputs, state = cell(golden, name, dtype)
    module = MLSTM(inputs[0].shape[1], inputs[0].shape[3])
    out, _ = run(module, inputs, state)
    case.close(out, "out.h_exact_no_eps")
    if not case.entry["options"]["initial_state"]:  # and where m begins does not matter
        case.close(run(module, inputs, None)[0], "out.h_exact_no_eps")


@BOTH
def test_official_cell_module(golden, dtype):
    case = golden("mlstm_cell_module", dtype)
    q, k, v = (case[f"in.{n}"] for n in "qkv")
    heads = case.entry["options"]["H"]
    gates = torch.cat([q, k, v], -1)
    igate, fgate = (
        F.linear(gates, case[f"w.{n}.weight"], case[f"w.{n}.bias"]).transpose(1, 2)
        for n in ("igate", "fgate")
    )
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v))
    module = MLSTM(heads, q.shape[3], eps=1e-6)
    out = module(q, k, v, causal=True, log_decay=F.logsigmoid(fgate), in_gate=igate)
    out = F.layer_norm(out, out.shape[-1:], eps=1e-5).transpose(1, 2).flatten(2)
    case.close(out * (1.0 + case["w.outnorm.weight"]), "out.y")


@BOTH
def test_official_sigmoid_gate(golden, dtype):
    case = golden("mlstm_siging", dtype)
    q, k, v, igate, fgate = (
        case[f"in.{n}"] for n in ("q", "k", "v", "igate_preact", "fgate_preact")
    )
    module = MLSTM(q.shape[1], q.shape[3], input_gate="sigmoid", eps=1e-6)
    out = module(q, k, v, causal=True, log_decay=F.logsigmoid(fgate), in_gate=igate)
    case.close(out, "out.h")


def gates(seed, *shape):
    draw = Draw(seed)
    return {"log_decay": F.logsigmoid(draw.normal(*shape) + 1), "in_gate": 2 * draw.normal(*shape)}


def inputs(tokens, heads=2, groups=2, dim=4, width=3):
    draw = Draw(tokens)
    shapes = ((heads, dim), (groups, dim), (groups, width))
    return [draw.normal(2, rows, tokens, last) for rows, last in shapes]


@pytest.mark.parametrize("gate", ["exponential", "sigmoid"])
def test_gradients_reach_a_state_and_all_of_its_entries(gate):
    q, k, v = inputs(5, heads=2, groups=1, dim=2, width=2)
    draw = Draw(3)
    module = MLSTM(2, 2, input_gate=gate, chunk=2)
    extra = gates(4, 2, 1, 5)
    C, n, m = draw.normal(2, 1, 2, 2), draw.normal(2, 1, 2), draw.normal(2, 1)
    names = ("C", "n", "m") if gate == "exponential" else ("C", "n")
    state = dict(zip(("C", "n", "m"), (C, n, m), strict=True))

    def call(*x):
        given = dict(zip(names, x[5:], strict=True))
        out, after = module.extend(*x[:3], given, log_decay=x[3], in_gate=x[4])
        scale = after["m"].exp() if gate == "exponential" else torch.ones_like(m)
        return out, after["C"] * scale[..., None, None], after["n"] * scale[..., None]

    leaves = [
        x.clone().requires_grad_() for x in (q, k, v, *extra.values(), *(state[x] for x in names))
    ]
    assert torch.autograd.gradcheck(call, leaves)


@pytest.mark.parametrize("eps", [1e-6, 0.3])
def test_eps_has_its_gradient_too(eps):
    tensors = [*inputs(6, dim=2, width=2), *gates(1, 2, 2, 6).values()]
    leaves = [x.clone().requires_grad_() for x in tensors]
    module = MLSTM(2, 2, eps=eps, chunk=4)

    def call(q, k, v, log_decay, in_gate):
        return module(q, k, v, causal=True, log_decay=log_decay, in_gate=in_gate)

    def oracle(q, k, v, log_decay, in_gate):
        return module.reference(q, k, v, log_decay=log_decay, in_gate=in_gate, causal=True)

    got, want = call(*leaves), oracle(*leaves)
    torch.testing.assert_close(got, want, atol=1e-12, rtol=1e-12)
    weight = Draw(5).normal(*got.shape)
    for a, b in zip(
        torch.autograd.grad(got, leaves, weight),
        torch.autograd.grad(want, leaves, weight),
        strict=True,
    ):
        torch.testing.assert_close(a, b, atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("level", [-1e4, -200.0, 80.0, 200.0, 1e4])
def test_no_level_of_the_input_gate_overflows(level, dtype):
    # 1 / max(|n.q|, 1): a gate far below 1 gives almost 0, one far above leaves a ratio of sums
    q, k, v = (x.to(dtype) for x in inputs(70))
    extra = gates(2, 2, 2, 70)
    extra = {"log_decay": extra["log_decay"], "in_gate": extra["in_gate"] + level}
    leaves = [x.to(dtype).requires_grad_() for x in (q, k, v, *extra.values())]
    module = MLSTM(2, 4, chunk=16)
    out, state = module.extend(*leaves[:3], log_decay=leaves[3], in_gate=leaves[4])
    grads = torch.autograd.grad(out.sum(), leaves)
    assert all(x.isfinite().all() for x in (out, *state.values(), *grads))
    if level < -100:
        assert out.abs().max() < 1e-30
    else:
        assert out.abs().max() > 0.1


@pytest.mark.parametrize("gate", ["exponential", "sigmoid"])
def test_a_query_of_zeros_reads_zero_and_nothing_is_lost(gate):
    q, k, v = (x.float().requires_grad_() for x in inputs(9))
    out = MLSTM(2, 4, input_gate=gate)(
        torch.zeros_like(q) * q, k, v, causal=True, in_gate=torch.full((2, 2, 9), 300.0)
    )
    grads = torch.autograd.grad(out.sum(), (q, k, v))
    assert not out.any()
    assert all(g.isfinite().all() for g in grads)


def test_decays_after_a_reset_are_exact_in_float32():
    # a float32 sum of logarithms would be blind to what follows exp(-1e4)
    q, k, v = inputs(64)
    extra = gates(7, 2, 2, 64)
    extra["log_decay"][:, :, 1] = -1e4
    extra["log_decay"][:, :, 20] = -torch.inf
    module = MLSTM(2, 4)
    want = module.reference(q, k, v, causal=True, **extra)
    narrow = {name: x.float() for name, x in extra.items()}
    got = module(q.float(), k.float(), v.float(), causal=True, **narrow)
    torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=1e-5)


def test_without_gates_nothing_decays_and_the_input_gate_is_that_of_zero():
    q, k, v = inputs(20)
    for gate in ("exponential", "sigmoid"):
        module = MLSTM(2, 4, input_gate=gate)
        zero = torch.zeros(2, 2, 20, dtype=torch.float64)
        want = module(q, k, v, causal=True, log_decay=zero, in_gate=zero)
        torch.testing.assert_close(module(q, k, v, causal=True), want)


def test_a_masked_token_leaves_the_state_alone():
    q, k, v = inputs(12)
    extra = gates(1, 2, 2, 12)
    mask = torch.ones(2, 12, dtype=torch.bool)
    mask[:, [0, 5, 6]] = False
    module = MLSTM(2, 4, chunk=5)
    _, want = module.extend(
        *(x[:, :, mask[0]] for x in (q, k, v)), **{n: x[:, :, mask[0]] for n, x in extra.items()}
    )
    for x in (k, v, *extra.values()):
        x[:, :, [0, 5, 6]] = torch.nan
    _, got = module.extend(q, k, v, key_mask=mask, **extra)
    for name in ("C", "n", "m"):
        torch.testing.assert_close(got[name], want[name])


def test_no_token_changes_nothing():
    module = MLSTM(2, 4)
    q, k, v = inputs(3)
    _, state = module.extend(q, k, v)
    out, after = module.extend(*(x[:, :, :0] for x in (q, k, v)), state)
    assert out.shape == (2, 2, 0, 3)
    for name, x in state.items():
        torch.testing.assert_close(after[name], x)


def test_options_are_checked():
    with pytest.raises(ValueError, match="input_gate must be 'exponential' or 'sigmoid', got 'e'"):
        MLSTM(1, 2, input_gate="e")
    with pytest.raises(ValueError, match="eps must not be negative, got -1"):
        MLSTM(1, 2, eps=-1)
    with pytest.raises(ValueError, match="chunk must be at least 1, or None .* got 0"):
        MLSTM(1, 2, chunk=0)
    x = torch.randn(1, 1, 3, 2)
    with pytest.raises(UnsupportedAttention, match="bidirectional form: .*pass causal=True"):
        MLSTM(1, 2)(x, x, x)
    assert repr(MLSTM(1, 2)) == (
        "MLSTM(heads=1, head_dim=2, input_gate='exponential', eps=0.0, chunk=64)"
    )


def test_a_state_of_another_shape_is_named():
    q, k, v = inputs(3)
    _, state = MLSTM(2, 4).extend(q, k, v)
    with pytest.raises(ValueError, match=r"state .* C \(2, 2, 4, 6\), n \(2, 2, 4\).*; got C"):
        MLSTM(2, 4).extend(q, k, torch.cat([v, v], -1), state)
    with pytest.raises(ValueError, match="MLSTM: the state must hold C, n, m; got C, n"):
        MLSTM(2, 4).extend(q, k, v, {"C": state["C"], "n": state["n"]})


def test_long_sequences_keep_the_inputs_and_a_state_a_block():
    heads, dim = 4, 64
    for tokens in (1024, 4096):
        tensors = [torch.randn(1, heads, tokens, dim, requires_grad=True) for _ in range(3)]
        extra = {n: x.float().requires_grad_() for n, x in gates(1, 1, heads, tokens).items()}
        module = MLSTM(heads, dim)
        kept = saved_bytes(lambda: module(*tensors, causal=True, **extra))  # noqa: B023
        assert kept == module.cost(Shape.square(1, heads, tokens, dim), causal=True).saved_bytes
        assert kept < 1.1 * 4 * sum(x.numel() for x in tensors)
