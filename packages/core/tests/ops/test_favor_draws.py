"""Several draws of noise on positive features: both ways to keep exponents in range agree."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from isoattn.core import GumbelFavor
from isoattn.core.ops import favor
from isoattn.core.ops.favor_draws import find_shifts
from isoattn.core.testing import Sizes
from isoattn.core.testing.suite import Draw


def gradients(module, q, k, v, dtype=torch.float64, **form):
    """The output, and the gradients of q, k and v."""
    inputs = [x.detach().to(dtype).requires_grad_() for x in (q, k, v)]
    out = module.to(dtype)(*inputs, **form)
    return out, *torch.autograd.grad(out.sin().sum(), inputs)


def decline(monkeypatch):
    """No shifts are found any more."""
    monkeypatch.setattr(favor, "find_shifts", lambda *inputs: None)


@pytest.fixture
def found(monkeypatch):
    """Whether shifts were found, call by call."""
    calls = []

    def find(*inputs):
        shifts = find_shifts(*inputs)
        calls.append(shifts is not None)
        return shifts

    monkeypatch.setattr(favor, "find_shifts", find)
    return calls


@pytest.mark.parametrize("fidelity", ["paper", "released"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("groups", "queries"), [(4, 60), (2, 60), (4, 17)])
def test_both_ways_agree(fidelity, masked, groups, queries, found, monkeypatch):
    q, k, v = Draw(0).qkv(Sizes(4, 5, 60, 2))
    q, k, v = q[:, :, :queries], k[:, :groups], v[:, :groups]
    mask = Draw(1).mask(2, 60) if masked else None
    module = GumbelFavor(4, 5, draws=3, fidelity=fidelity)
    form = {"noise": module.draw_noise(2, 60), "key_mask": mask}
    one = gradients(module, q, k, v, **form)
    assert found == [True]
    decline(monkeypatch)
    for a, b in zip(one, gradients(module, q, k, v, **form), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("tau", [1.0, 0.25, 0.05])
@pytest.mark.parametrize("spread", [0.3, 1.0, 4.0])
def test_float32_is_right_in_ranges_that_underflow(tau, spread, found, monkeypatch):
    # Features and noise reach e^-100 and less of their largest; only their products are of use.
    q, k, v = Draw(0).qkv(Sizes(2, 32, 500, 1))
    long = torch.linspace(0.1, 1.0, 500).unsqueeze(-1)
    q, k = spread * q, spread * long * k
    module = GumbelFavor(2, 32, tau=tau)
    noise = module.draw_noise(1, 500)
    rows = gradients(module, q, k, torch.ones_like(v), torch.float32, noise=noise)[0]
    torch.testing.assert_close(rows, torch.ones_like(rows), rtol=1e-5, atol=0.0)
    got = gradients(module, q, k, v, torch.float32, noise=noise)
    decline(monkeypatch)
    joint = gradients(module, q, k, v, torch.float32, noise=noise)
    want = gradients(module, q, k, v, noise=noise)
    # the exponents carry rounding errors of their own size, whichever way is taken
    for a, b, right in zip(got, joint, want, strict=True):
        size = right.abs().max()
        assert (a - right).abs().max() <= 3 * (b - right).abs().max() + 1e-5 * size
    assert found == [found[0]] * 2  # the values do not matter


def test_shifts_are_found_for_standard_normal_keys(found):
    q, k, v = Draw(0).qkv(Sizes(2, 64, 400, 1))
    for tau in (1.0, 0.25, 0.1):
        gradients(GumbelFavor(2, 64, tau=tau), q, k, v, torch.float32)
    assert found == [True] * 3


def far_apart():
    """Two long keys, each the largest of one feature, and noise that favours one by e^1000."""
    k = torch.zeros(1, 1, 6, 2, dtype=torch.float64)
    k[0, 0, :2] = torch.tensor([[40.0, 0.0], [0.0, 40.0]])
    noise = torch.zeros(1, 1, 6, 2)
    noise[0, 0, 0, 0] = noise[0, 0, 1, 1] = 1000.0
    q, _, v = Draw(0).qkv(Sizes(1, 2, 6, 1))
    module = GumbelFavor(1, 2, features=2, tau=1.0, draws=2).double()
    module.projection.rows.copy_(40 * torch.eye(2))
    return module, (q, k, v), noise


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ranges_out_of_reach_are_right_too(dtype, found):
    module, (q, k, v), noise = far_apart()
    got = gradients(module, q, k, v, dtype, noise=noise)
    assert found == [False]
    exact = [x.clone().requires_grad_() for x in (q, k, v)]
    want = module.double().reference(*exact, noise=noise)
    torch.testing.assert_close(got[0].double(), want, rtol=1e-4, atol=1e-5)
    for x in got:
        assert x.isfinite().all()


def test_a_sample_without_keys_beside_others(found):
    module = GumbelFavor(2, 5).double()
    q, k, v = Draw(0).qkv(Sizes(2, 5, 40, 2))
    k[0], v[0] = torch.nan, torch.inf
    mask = torch.tensor([False, True]).unsqueeze(1).expand(2, 40)
    noise = module.draw_noise(2, 40)
    both = gradients(module, q, k, v, key_mask=mask, noise=noise)
    alone = gradients(module, q[1:], k[1:], v[1:], noise=noise[1:])
    assert found == [True, True]
    for a, b in zip(both, alone, strict=True):
        assert not a[0].any()
        torch.testing.assert_close(a[1], b[0], rtol=1e-12, atol=1e-12)


def test_noise_may_take_a_key_out(found):
    module = GumbelFavor(2, 5, draws=3).double()
    q, k, v = Draw(0).qkv(Sizes(2, 5, 40, 1))
    noise = module.draw_noise(1, 40)
    noise[:, :, 7] = -torch.inf
    left = torch.arange(40) != 7
    got = module(q, k, v, noise=noise)
    want = module(q, k[:, :, left], v[:, :, left], noise=noise[:, :, left])
    assert found == [True, True]
    torch.testing.assert_close(got, want)


def test_not_a_number_is_not_hidden(found):
    module = GumbelFavor(2, 5)
    q, k, v = (x.float() for x in Draw(0).qkv(Sizes(2, 5, 40, 1)))
    k[0, 0, 3, 1] = torch.nan
    out = module(q, k, v)
    assert found == [False]
    assert out[0, 0].isnan().all()
    assert out[0, 1].isfinite().all()


class Largest(TorchDispatchMode):
    """The most numbers any tensor of an operator has."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, torch.Tensor):
                self.numbers = max(self.numbers, x.numel())
        return out


@pytest.mark.parametrize("reached", [True, False])
def test_no_tensor_has_a_number_for_every_draw_feature_and_key(reached, monkeypatch):
    if not reached:
        decline(monkeypatch)
    monkeypatch.setattr("isoattn.core.ops.favor_blocks.NUMBERS", 2**12)
    heads, nodes, dim = 4, 3000, 16
    q, k, v = (x.float().requires_grad_() for x in Draw(0).qkv(Sizes(heads, dim, nodes, 1)))
    module = GumbelFavor(heads, dim, features=30, draws=10)
    with Largest() as seen:
        module(q, k, v).sum().backward()
    assert seen.numbers == heads * nodes * dim
