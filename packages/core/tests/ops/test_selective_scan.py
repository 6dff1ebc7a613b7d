import pytest
import torch

from isoattn.core.ops.selective_scan import selective_scan
from isoattn.core.testing.measure import saved_bytes
from isoattn.core.testing.suite import Draw, assert_close, leaves

BOTH = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])


def official(case):
    """Inputs of a case with gradients, and a call on them that cuts at the given tokens."""
    names = ("u", "delta", "A", "B", "C", "D", "delta_bias", "z")
    options = case.entry["options"]
    given = {n: case[f"in.{n}"].clone().requires_grad_() for n in names if f"in.{n}" in case.stored}

    def call(start, stop, state, block):
        u, delta = (given[n].transpose(1, 2)[:, start:stop] for n in ("u", "delta"))
        B, C = (given[n] if options["groups"] else given[n].unsqueeze(1) for n in "BC")
        B, C = (x.permute(0, 3, 1, 2)[:, start:stop] for x in (B, C))
        z = given["z"].transpose(1, 2)[:, start:stop] if options["z"] else None
        return selective_scan(
            u,
            delta,
            given["A"],
            B,
            C,
            given["D"],
            state,
            z_BNC=z,
            delta_bias_C=given.get("delta_bias"),
            softplus=options["delta_softplus"],
            block=block,
        )

    return given, call


@BOTH
@pytest.mark.parametrize("block", [1, 7, None])
@pytest.mark.parametrize("name", ["selective_scan", "selective_scan_groups"])
def test_official_scan(golden, name, block, dtype):
    case = golden(name, dtype)
    given, call = official(case)
    out, state = call(0, None, None, block)
    case.close(out.transpose(1, 2), "out.y")
    case.close(state, "out.last_state")
    wanted = ("u", "delta", "A", "B", "C")
    case.grads_close(out.transpose(1, 2), [given[n] for n in wanted], wanted)
    first, middle = call(0, 9, None, block)
    rest, last = call(9, None, middle, block)
    joined = torch.cat([first, rest], 1).transpose(1, 2)
    case.close(joined, "out.y")
    case.close(last, "out.last_state")
    case.grads_close(joined, [given[n] for n in wanted], wanted)


def plain(u, delta, A, B, C, D, z, mask):
    """The definition, token by token, masked tokens left out."""
    h, rows = torch.zeros(u.shape[0], *A.shape, dtype=u.dtype), []
    dt = torch.nn.functional.softplus(delta)
    repeats = u.shape[2] // B.shape[2]
    for t in range(u.shape[1]):
        b, c = (x[:, t].repeat_interleave(repeats, 1) for x in (B, C))
        new = (dt[:, t, :, None] * A).exp() * h + (dt[:, t] * u[:, t])[..., None] * b
        h = torch.where(mask[:, t, None, None], new, h)
        y = (h * c).sum(-1) + D * u[:, t]
        rows.append(torch.where(mask[:, t, None], y * torch.nn.functional.silu(z[:, t]), 0.0))
    return torch.stack(rows, 1), h


def draw(tokens, channels=6, states=3, groups=2):
    d = Draw(tokens)
    u, delta, z = (d.normal(2, tokens, channels) for _ in range(3))
    B, C = (d.normal(2, tokens, groups, states) for _ in range(2))
    return u, delta, -d.normal(channels, states).exp(), B, C, d.normal(channels), z


@pytest.mark.parametrize("block", [1, 4, 5, 16, 17, None])
@pytest.mark.parametrize("tokens", [1, 2, 5, 17, 33])
def test_any_block_is_the_recurrence_and_so_are_its_gradients(tokens, block):
    mask = Draw().mask(2, tokens)
    results = []
    for call in (plain, None):
        inputs = leaves(*draw(tokens))
        u, delta, A, B, C, D, z = inputs
        if call is None:
            found = selective_scan(u, delta, A, B, C, D, z_BNC=z, mask=mask, block=block)
        else:
            found = call(*inputs, mask)
        loss = (found[0] * Draw(1).normal(*u.shape)).sum() + found[1].sin().sum()
        results.append((*found, *torch.autograd.grad(loss, inputs)))
    for want, got in zip(*results, strict=True):
        assert_close(got, want, 1e-11, f"block={block}")


def test_first_and_second_derivatives():
    inputs = leaves(*(x[:1] if x.ndim > 2 else x for x in draw(5, 2, 2, 1)))
    state = leaves(Draw(3).normal(1, 2, 2))[0]

    def call(u, delta, A, B, C, D, z, h):
        return selective_scan(u, delta, A, B, C, D, h, z_BNC=z, block=2)

    assert torch.autograd.gradcheck(call, (*inputs, state))
    assert torch.autograd.gradgradcheck(call, (*inputs, state))


def test_a_tensor_given_twice_counts_once_in_second_derivatives():
    u, delta, A, B, C, *_ = leaves(*draw(4, 2, 2, 1))

    def call(B):
        return selective_scan(u.detach(), delta.detach(), A.detach(), B, B, block=2)[0]

    assert torch.autograd.gradgradcheck(call, (B,))


def test_strong_decay_is_finite_and_forgets():
    u, delta, A, B, C, D, z = draw(40)
    inputs = leaves(u, 1e4 * delta, 1e4 * A, B, C)
    y, h = selective_scan(*inputs, block=8)
    grads = torch.autograd.grad(y.sum() + h.sum(), inputs)
    assert all(x.isfinite().all() for x in (y, h, *grads))


def test_half_precision_keeps_a_float32_state():
    u, delta, A, B, C, *_ = draw(300)
    want, _ = selective_scan(u.half().double(), delta.half().double(), A, B.half().double(), C)
    y, h = selective_scan(u.half(), delta.half(), A.float(), B.half(), C.float())
    assert (y.dtype, h.dtype) == (torch.float16, torch.float32)
    assert ((y.double() - want).abs().max() / want.abs().max()) < 2e-3


def test_no_token_changes_nothing():
    u, delta, A, B, C, *_ = draw(3)
    state = Draw().normal(2, 6, 3)
    y, after = selective_scan(*(x[:, :0] for x in (u, delta)), A, B[:, :0], C[:, :0], None, state)
    assert y.shape == (2, 0, 6)
    assert torch.equal(after, state)


def test_what_is_kept_is_the_inputs_and_a_state_a_block():
    u, delta, A, B, C, *_ = leaves(*draw(64))
    kept = saved_bytes(lambda: selective_scan(u, delta, A, B, C, block=16)[0])
    inputs = sum(x.numel() * x.element_size() for x in (u, delta, A, B, C))
    assert kept == inputs + 4 * 2 * 6 * 3 * 8


def test_shapes_that_do_not_fit_are_named():
    u, delta, A, B, C, *_ = draw(4)
    with pytest.raises(ValueError, match=r"selective_scan takes .* got .*B \(2, 4, 4, 3\)"):
        selective_scan(u, delta, A, torch.cat([B, B], 2), torch.cat([C, C], 2))
    with pytest.raises(ValueError, match=r"got u \(2, 4, 6\), delta \(2, 4, 5\)"):
        selective_scan(u, delta[..., :5], A, B, C)
