import pytest
import torch
import torch.nn.functional as F

from isoattn.core import MLSTM, UnsupportedAttention
from isoattn.core.testing.suite import Draw, Sizes

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
