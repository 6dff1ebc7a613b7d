"""GumbelSoftmax: noise shared with GumbelFavor, edges, neighbours."""

from functools import partial

import pytest
import torch

from isoattn.core import GumbelFavor, GumbelSoftmax, Shape, Softmax, UnsupportedAttention
from isoattn.core.ops.blocks import NUMBERS
from isoattn.core.streams import seed_attentions
from isoattn.core.testing import Sizes, check_attention
from isoattn.core.testing.measure import count_flops, saved_bytes
from isoattn.core.testing.suite import Draw

FIDELITIES = pytest.mark.parametrize("fidelity", ["paper", "released"])
MASKED = pytest.mark.parametrize("masked", [False, True])


def graph(nodes=40, *, heads=2, dim=5, batch=2, dtype=torch.float64, groups=None):
    sizes = Sizes(heads, dim, nodes, batch)
    return tuple(x.to(dtype) for x in Draw(0).qkv(sizes, groups=groups))


def dense(module, q, k, **form):
    """Weights (B, H, N, M) without noise."""
    eye = torch.eye(k.shape[2], dtype=torch.float64).expand(*k.shape[:3], -1)
    return module.reference(q, k, eye, **form)


@FIDELITIES
@MASKED
@pytest.mark.parametrize("groups", [None, 1])
def test_training_equals_the_oracle_with_its_noise(fidelity, masked, groups):
    module = GumbelSoftmax(2, 5, fidelity=fidelity, draws=3)
    mask = Draw(1).mask(2, 40) if masked else None
    noise = GumbelSoftmax(2, 5, draws=3).draw_noise(2, 40)
    grads = []
    for call in (module, lambda *x, key_mask: module.reference(*x, key_mask=mask, noise=noise)):
        inputs = [x.clone().requires_grad_() for x in graph(groups=groups)]
        out = call(*inputs, key_mask=mask)
        grads.append((out, *torch.autograd.grad(out.sin().sum(), inputs)))
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


def test_without_noise_it_is_softmax():
    q, k, v = graph()
    module = GumbelSoftmax(2, 5, tau=0.5, fidelity="released").eval()
    want = Softmax(2, 5)(q / 0.5, k, v)
    torch.testing.assert_close(module(q, k, v), want)


@pytest.mark.parametrize("width", [1, 6, 9])
def test_values_of_any_width(width):
    q, k, v = graph()
    v = torch.cat([v, v], -1)[..., :width]
    module = GumbelSoftmax(2, 5, draws=2)
    noise = module.draw_noise(2, 40)
    torch.testing.assert_close(module(q, k, v, noise=noise), module.reference(q, k, v, noise=noise))


def test_it_has_the_noise_of_its_partner_also_after_reseeding():
    pair = (
        torch.nn.ModuleDict({"a": GumbelFavor(2, 5)}),
        torch.nn.ModuleDict({"a": GumbelSoftmax(2, 5)}),
    )
    for seed in (None, 7):
        for model in pair:
            if seed is not None:
                seed_attentions(model, seed)
        first, second = (model["a"].draw_noise(2, 9) for model in pair)
        assert torch.equal(first, second)
        assert not torch.equal(first, pair[1]["a"].draw_noise(2, 9))
        pair[0]["a"].draw_noise(2, 9)
    a, b = (set(model["a"].state_dict()) for model in pair)
    assert b < a
    assert a - b == {"projection.rows", "projection.stream.seed", "projection.stream.count"}


def test_its_partner_comes_nearer_with_more_features():
    q, k, v = graph(60, dtype=torch.float32)
    q, k = 0.3 * q, 0.3 * k
    exact = GumbelSoftmax(2, 5, tau=1.0, draws=4)
    noise = exact.draw_noise(2, 60)
    want = exact(q, k, v, noise=noise)
    errors = []
    for features in (30, 300, 3000):
        square = torch.zeros(())
        for seed in range(8):
            linear = GumbelFavor(2, 5, tau=1.0, draws=4, features=features, seed=seed)
            square += (linear(q, k, v, noise=noise) - want).square().mean()
        errors.append(square.sqrt())
    for few, many in zip(errors, errors[1:], strict=False):
        assert 0.2 * few < many < 0.5 * few  # sqrt(1 / 10) = 0.32


@pytest.mark.parametrize("tau", [0.05, 0.01])
def test_any_tau_is_finite_and_right(tau):
    exact = []
    for dtype in (torch.float32, torch.float64):
        module = GumbelSoftmax(2, 5, tau=tau)
        q, k, v = graph(dtype=dtype)
        noise = torch.full((2, 2, 40, 2), -2.0)
        noise[:, :, 3], noise[:, :, 7] = 14.0, 87.0
        q = q.detach().requires_grad_()
        out = module(0.1 * q, 0.1 * k, v, noise=noise)
        exact.append((out, *torch.autograd.grad(out.sum(), q)))
    for a, b in zip(*exact, strict=True):
        assert a.isfinite().all()
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_keeps_the_noise_exact(dtype):
    q, k, v = graph(dtype=dtype)
    module = GumbelSoftmax(2, 5, tau=0.05)
    noise = module.draw_noise(2, 40)
    out = module(q, k, v, noise=noise)
    assert out.dtype == dtype
    want = module.reference(q, k, v, noise=noise)
    bound = {torch.float16: 1e-3, torch.bfloat16: 1e-2}[dtype]
    torch.testing.assert_close(out.double(), want, rtol=bound, atol=bound)


def test_packed_graphs_with_noise_are_each_alone():
    module = GumbelSoftmax(2, 5, draws=3)
    q, k, v = (x[:1] for x in graph(12))
    noise = module.draw_noise(1, 12)
    ids = torch.tensor([[0] * 5 + [3] * 7])
    out = module(q, k, v, noise=noise, segments=ids)
    for n in (slice(0, 5), slice(5, 12)):
        alone = module(*(x[:, :, n] for x in (q, k, v)), noise=noise[:, :, n])
        torch.testing.assert_close(out[:, :, n], alone)


@pytest.mark.parametrize("cls", [GumbelFavor, GumbelSoftmax])
def test_noise_kept_for_some_calls(cls):
    two = cls(2, 5, noise_every=2)
    draws = [two.draw_noise(1, 6) for _ in range(4)]
    assert torch.equal(draws[0], draws[1])
    assert torch.equal(draws[2], draws[3])
    assert not torch.equal(draws[0], draws[2])
    never = cls(2, 5, noise_every=0)
    assert torch.equal(never.draw_noise(1, 6), never.draw_noise(1, 6))
    assert torch.equal(never.draw_noise(1, 6), cls(2, 5).draw_noise(1, 6))


@pytest.mark.parametrize(
    "options",
    [{"draws": 0}, {"noise_every": 0}, {"noise_every": 2}, {"draws": 0, "tau_eval": 1.0}, {}],
    ids=str,
)
@pytest.mark.parametrize("cls", [GumbelFavor, GumbelSoftmax])
def test_what_is_drawn_is_declared(cls, options):
    """No noise, noise that stays and another temperature are not failures of the laws."""
    results = {law.name: law for law in check_attention(partial(cls, **options), 2, 8, 12)}
    assert [law.detail for law in results.values() if not law.passed] == []
    assert cls(2, 8, **options).capability.stochastic == (not options)
    assert ("draws" in cls(2, 8, **options).deviations) == (options not in ({}, {"draws": 0}))


@pytest.mark.parametrize("cls", [GumbelFavor, GumbelSoftmax])
def test_another_temperature_in_evaluation(cls):
    q, k, v = graph()
    edges = torch.tensor([[0, 1], [2, 1]])
    both, one = cls(2, 5, draws=0, tau_eval=1.0).double(), cls(2, 5, draws=0, tau=1.0).double()
    quarter = cls(2, 5, draws=0).double()
    assert torch.equal(both(q, k, v), quarter(q, k, v))
    both.eval(), one.eval(), quarter.eval()
    assert torch.equal(both(q, k, v), one(q, k, v))
    assert not torch.allclose(both(q, k, v), quarter(q, k, v))
    assert torch.equal(both.edge_log_prob(q, k, edges), one.edge_log_prob(q, k, edges))
    assert "tau_eval=1.0" in repr(both)


@MASKED
@pytest.mark.parametrize("blocks", [NUMBERS, 64])
def test_edges_are_those_of_the_matrix(masked, blocks, monkeypatch):
    monkeypatch.setattr("isoattn.core.ops.softmax_pairs.NUMBERS", blocks)
    module = GumbelSoftmax(2, 5).double()
    q, k, _ = (x.requires_grad_() for x in graph(groups=1))
    mask = None
    if masked:
        mask = Draw(1).mask(2, 40)
        mask[1] = False
    edges = torch.randint(0, 40, (2, 300), generator=torch.Generator().manual_seed(0))
    got = module.edge_log_prob(q, k, edges, key_mask=mask).exp()
    want = dense(module, q, k, key_mask=mask)[:, :, edges[1], edges[0]]
    torch.testing.assert_close(got, want)
    a, b = (torch.autograd.grad(x.square().sum(), (q, k)) for x in (got, want))
    torch.testing.assert_close(a, b)
    assert module.edge_log_prob(q, k, edges[:, :0]).shape == (2, 2, 0)


def test_edges_of_packed_graphs():
    module = GumbelSoftmax(2, 5)
    q, k, _ = (x[:1].requires_grad_() for x in graph(12))
    ids = torch.tensor([[0] * 5 + [3] * 7])
    edges = torch.tensor([[0, 4, 6, 11, 0], [1, 4, 11, 5, 7]])
    got = module.edge_log_prob(q, k, edges, segments=ids).exp()
    first = dense(module, q[:, :, :5], k[:, :, :5])
    second = dense(module, q[:, :, 5:], k[:, :, 5:])
    want = [first[:, :, 1, 0], first[:, :, 4, 4], second[:, :, 6, 1], second[:, :, 0, 6]]
    torch.testing.assert_close(got[:, :, :4], torch.stack(want, -1))
    assert not got[:, :, 4].any()  # between two graphs
    assert all(g.isfinite().all() for g in torch.autograd.grad(got.sum(), (q, k)))


@MASKED
@pytest.mark.parametrize("blocks", [NUMBERS, 64])
def test_the_strongest_keys_are_those_of_the_matrix(masked, blocks, monkeypatch):
    monkeypatch.setattr("isoattn.core.ops.softmax_pairs.NUMBERS", blocks)
    module = GumbelSoftmax(2, 5).double()
    q, k, _ = graph()
    mask = None
    if masked:
        mask = Draw(1).mask(2, 40)
        mask[1] = False
    weights, places = module.top_k(q, k, 6, key_mask=mask)
    want = dense(module, q, k, key_mask=mask)
    torch.testing.assert_close(weights, want.topk(6, -1).values)
    torch.testing.assert_close(want.gather(-1, places), weights)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("width", [5, 9])
def test_cost_of_training(dtype, width):
    module = GumbelSoftmax(2, 5, draws=3)
    q, k, v = graph(dtype=dtype)
    v = torch.cat([v, v], -1)[..., :width].contiguous()
    inputs = [x.requires_grad_() for x in (q, k, v)]
    said = module.cost(Shape(2, 2, 40, 40, 5, width, dtype.itemsize))
    assert (said.forward_flops, said.backward_flops) == count_flops(lambda: module(*inputs))
    assert said.saved_bytes == saved_bytes(lambda: module(*inputs))


def test_messages():
    with pytest.raises(ValueError, match="tau_eval must be > 0, got -1"):
        GumbelSoftmax(2, 5, tau_eval=-1)
    with pytest.raises(ValueError, match=r"noise_every must be 0 \(never\) or more, got -2"):
        GumbelFavor(2, 5, noise_every=-2)
    with pytest.raises(UnsupportedAttention, match="nodes of a graph have no order"):
        GumbelSoftmax(2, 5)(*graph(), causal=True)
    q, k, v = graph()
    with pytest.raises(ValueError, match=r"noise must be .* = \(2, 2, 40\) .* got \(2, 40, 3\)"):
        GumbelSoftmax(2, 5)(q, k, v, noise=torch.zeros(2, 40, 3))
