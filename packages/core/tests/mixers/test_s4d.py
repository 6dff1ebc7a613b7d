"""S4D: official numbers, the convolution it is, and its options."""

import pytest
import torch

from isoattn.core.mixers import S4D
from isoattn.core.ops.s4d import diagonal_state_space, kernel
from isoattn.core.testing.suite import Draw

BOTH = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])


@BOTH
def test_released_layer(golden, dtype):
    case = golden("s4d_layer", dtype)
    options = case.entry["options"]
    module = S4D(options["H"], state_dim=options["d_state"]).to(dtype)
    module.load_state_dict({n[2:]: case[n] for n in case.stored if n.startswith("w.")})
    u = case["in.u"].clone().requires_grad_()
    x = u.transpose(1, 2)
    y = module(x, causal=True).transpose(1, 2)
    case.close(y, "out.y")
    case.grads_close(y, [u], "u")
    system = module.kernel.system()
    case.close(kernel(system, options["L"]), "mid.kernel")
    mixed, state = diagonal_state_space(system, x)
    case.close((mixed + module.D * x).transpose(1, 2), "mid.ssm_plus_skip")
    case.close(state, "out.final_state_re_im")
    for cuts in ([13, 27], [1, 39], [1] * 40):
        state, pieces = None, []
        for piece in x.split(cuts, 1):
            out, state = module.extend(piece, state)
            pieces.append(out)
        case.close(torch.cat(pieces, 1).transpose(1, 2), "out.y")
        case.close(state["x"], "out.final_state_re_im")


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 200])
def test_it_is_a_convolution(n):
    module = S4D(3, state_dim=6).double()
    u = Draw().normal(2, n, 3)
    k = kernel(module.kernel.system(), n)
    i, j = torch.arange(n)[:, None], torch.arange(n)
    matrix = k[:, (i - j).clamp(min=0)].masked_fill(i < j, 0.0)
    want = torch.einsum("hij,bjh->bih", matrix, u)
    got, _ = diagonal_state_space(module.kernel.system(), u)
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-12)


def test_two_kernels_meet_at_the_token_itself():
    module = S4D(3, state_dim=4, bidirectional=True).double()
    n, u = 70, Draw().normal(1, 70, 3)
    ahead = kernel(module.kernel.system(), n)
    behind = kernel(module.kernel.system(module.backward_kernel.C), n)
    i, j = torch.arange(n)[:, None], torch.arange(n)
    matrix = torch.where(
        i >= j, ahead[:, (i - j).clamp(min=0)], behind[:, (j - i - 1).clamp(min=0)]
    )
    mixed = torch.einsum("hij,bjh->bih", matrix, u)
    want = module._out(mixed, u, u, None)
    torch.testing.assert_close(module(u), want, rtol=1e-11, atol=1e-12)


def test_a_large_number_leaves_the_past_alone():
    module, u = S4D(3), Draw().normal(1, 200, 3, dtype=torch.float32)
    want = module(u, causal=True)[:, :100]
    u[:, 100:] = 1e30
    assert torch.equal(module(u, causal=True)[:, :100], want)


def test_long_sequences_in_float32():
    # the angle l dt w reaches 1e5, where float32 counts in steps of 0.008
    module = S4D(2, dt_range=(0.1, 0.1))
    u = Draw().normal(1, 8192, 2)
    want, _ = diagonal_state_space(module.kernel.system(), u)
    got, _ = diagonal_state_space(module.kernel.system(), u.float())
    assert (got - want).abs().max() < 1e-5 * want.abs().max()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"state_dim": 5}, "even and at least 2, got 5"),
        ({"state_dim": 0}, "even and at least 2, got 0"),
        ({"dt_range": (0.2, 0.1)}, r"0 < low <= high, got \(0.2, 0.1\)"),
    ],
)
def test_refuses_impossible_options(options, message):
    with pytest.raises(ValueError, match=message):
        S4D(4, **options)


def test_says_what_it_is():
    assert "dim=4, state_dim=6, bidirectional=True" in repr(S4D(4, state_dim=6, bidirectional=True))
    parameters = dict(S4D(4).named_parameters())
    assert S4D.no_weight_decay <= parameters.keys()


def test_no_tokens():
    y, state = S4D(4, state_dim=2).extend(torch.zeros(2, 0, 4))
    assert y.shape == (2, 0, 4)
    assert not state["x"].any()
