"""RG-LRU and Griffin's recurrent block: official numbers, resets, and options."""

import pytest
import torch
from torch.nn.functional import softplus

from isoattn.core.mixers import RGLRU
from isoattn.core.ops.rglru import block_diagonal, bounded_sqrt, rg_lru
from isoattn.core.testing.suite import Draw

BOTH = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])


@BOTH
@pytest.mark.parametrize("name", ["rglru", "rglru_state"])
def test_released_recurrence(golden, name, dtype):
    case = golden(name, dtype)
    x = case["in.x"].clone().requires_grad_()
    gates = [
        block_diagonal(x, case[f"w.{n}.w"], case[f"w.{n}.b"]) for n in ("a_gate", "input_gate")
    ]
    h0 = case["in.h0"] if "in.h0" in case.stored else None
    reset = case.stored["in.segment_pos"] == 0
    y, last = rg_lru(x, *gates, case["w.a_param"], h0, reset_BN=reset)
    case.close(y, "out.y")
    case.close(last, "out.last_h")
    case.grads_close(y, [x], "x")


@BOTH
def test_released_block(golden, dtype):
    case = golden("griffin_recurrent_block", dtype)
    options = case.entry["options"]
    module = RGLRU(options["width"], width=options["lru_width"], heads=options["heads"]).to(dtype)
    module.load_state_dict({n[2:]: case[n] for n in case.stored if n.startswith("w.")})
    x = case["in.x"]
    case.close(module(x, causal=True), "out.y")
    for cuts in ([14], [3, 11], [1] * 14):
        state, pieces = None, []
        for piece in x.split(cuts, 1):
            out, state = module.extend(piece, state)
            pieces.append(out)
        case.close(torch.cat(pieces, 1), "out.y")
        case.close(state["conv"], "out.conv_cache")
        case.close(state["h"], "out.h_cache")


def test_each_segment_begins_anew():
    module = RGLRU(6, heads=2).double()
    lengths = (5, 1, 9, 4)
    samples = [Draw(n).normal(1, n, 6) for n in lengths]
    ids = torch.repeat_interleave(torch.arange(4), torch.tensor(lengths))[None]
    x = torch.cat(samples, 1)
    packed = module(x, causal=True, segments=ids)
    want = torch.cat([module(sample, causal=True) for sample in samples], 1)
    torch.testing.assert_close(packed, want, rtol=1e-11, atol=1e-12)
    mask = Draw().mask(1, 19)
    packed = module(x, causal=True, segments=ids, mask=mask)
    pieces = zip(samples, mask.split(lengths, 1), strict=True)
    want = torch.cat([module(sample, causal=True, mask=kept) for sample, kept in pieces], 1)
    torch.testing.assert_close(packed, want, rtol=1e-11, atol=1e-12)
    with pytest.raises(ValueError, match="segments"):
        module(x, causal=True, segments=ids[:, 1:])


def test_the_first_kept_token_begins_the_sequence():
    # also where a first piece held nothing but padding
    module, x = RGLRU(6).double(), Draw().normal(1, 8, 6)
    _, state = module.extend(x, mask=torch.zeros(1, 8, dtype=torch.bool))
    torch.testing.assert_close(module.extend(x, state)[0], module(x, causal=True))


def test_the_slope_of_the_root_is_bounded():
    x = torch.tensor([0.0, 1e-12, 0.25], dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(bounded_sqrt(x).sum(), x)
    torch.testing.assert_close(grad, torch.tensor([1000.0, 1000.0, 1.0], dtype=torch.float64))


def test_a_closed_gate_in_half_precision():
    # a is 1 there, and 1 - a^2 is nothing but the rounding of a
    x = torch.ones(1, 50, 2, dtype=torch.float16, requires_grad=True)
    closed = torch.full((1, 50, 2), -9.0, dtype=torch.float16, requires_grad=True)
    y, last = rg_lru(x, closed, torch.zeros_like(closed), torch.full((2,), -5.0))
    assert y.dtype == last.dtype == torch.float32
    want, _ = rg_lru(
        x.double(), closed.double(), torch.zeros(1, 50, 2), torch.full((2,), -5.0).double()
    )
    torch.testing.assert_close(y.double(), want, rtol=1e-5, atol=1e-7)
    assert all(g.isfinite().all() for g in torch.autograd.grad(y.sum(), (x, closed)))


def test_the_radius_at_the_start():
    radius = torch.exp(-softplus(RGLRU(4000, width=4000, heads=4000).rg_lru.a_param))
    assert radius.min() >= 0.9 - 1e-5
    assert radius.max() <= 0.999 + 1e-5
    assert abs(radius.square().mean() - (0.81 + 0.998) / 2) < 5e-3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 3}, "heads that divide the width; got width=8, heads=3"),
        ({"width": 0}, "at least 1.*got width=0"),
        ({"conv_width": 0}, "at least 1.*conv_width=0"),
        ({"radius": (0.9, 1.0)}, r"0 < low <= high < 1, got \(0.9, 1.0\)"),
    ],
)
def test_refuses_impossible_options(options, message):
    with pytest.raises(ValueError, match=message):
        RGLRU(8, **options)


def test_says_what_it_is():
    assert "dim=8, width=12, heads=3, conv_width=4" in repr(RGLRU(8, width=12, heads=3))
    parameters = dict(RGLRU(4).named_parameters())
    assert RGLRU.no_weight_decay <= parameters.keys()
