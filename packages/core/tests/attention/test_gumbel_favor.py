"""GumbelFavor: official numbers, noise, edges, neighbours."""

import pytest
import torch

from isoattn.core import GumbelFavor, Shape, UnsupportedAttention
from isoattn.core.testing import Sizes
from isoattn.core.testing.measure import count_flops, saved_bytes
from isoattn.core.testing.suite import Draw

BOTH = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
OPS = pytest.mark.parametrize("name", ["nodeformer_ops", "nodeformer_ops_tau1_d8"])


def nodeformer(case, dtype):
    """The module of a case, with its projection (one for all heads) copied in."""
    options, rows = case.entry["options"], case["noise.projection"]
    module = GumbelFavor(
        options["H"],
        options["d"],
        features=rows.shape[0],
        tau=options["tau"],
        draws=options["K"],
        fidelity="released",
    ).to(dtype)
    module.projection.rows.copy_(rows)
    return module


def per_key(x):
    """From the official layout (N, B, H, K)."""
    return x.permute(1, 2, 0, 3)


@BOTH
@OPS
def test_without_noise(golden, name, dtype):
    case = golden(name, dtype)
    inputs, (q, k, v) = case.qkv(token_major=True)
    out = nodeformer(case, dtype).eval()(q, k, v).transpose(1, 2)
    case.close(out, "out.y_softmax")
    case.grads_close(out, inputs, ("softmax_q", "softmax_k", "softmax_v"))


@BOTH
@OPS
def test_with_noise(golden, name, dtype):
    case = golden(name, dtype)
    inputs, (q, k, v) = case.qkv(token_major=True)
    module = nodeformer(case, dtype)
    out = module(q, k, v, noise=per_key(case["noise.gumbel"])).transpose(1, 2)
    case.close(out, "out.y_gumbel")
    case.grads_close(out, inputs, ("gumbel_q", "gumbel_k", "gumbel_v"))


@BOTH
@OPS
def test_edges(golden, name, dtype):
    case = golden(name, dtype)
    _, (q, k, _) = case.qkv(token_major=True)
    edges = case["in.edge_index"]
    log_prob = nodeformer(case, dtype).edge_log_prob(q, k, edges)
    case.close(log_prob.exp().transpose(1, 2), "out.edge_weight")
    indegree = torch.bincount(edges[1], minlength=q.shape[2])
    case.close((log_prob / indegree[edges[1]]).mean(), "out.link_loss")


@BOTH
def test_noise_that_overflows_the_released_code(golden, dtype):
    case = golden("nodeformer_gumbel_overflow", dtype)
    _, (q, k, v) = case.qkv(token_major=True)
    noise = per_key(-case["noise.exponential"].log())
    out = nodeformer(case, dtype)(q, k, v, noise=noise).transpose(1, 2)
    case.close(out, "out.y_gumbel")


def graph(nodes=40, *, heads=2, dim=5, batch=2, dtype=torch.float64):
    q, k, v = (x.to(dtype) for x in Draw(0).qkv(Sizes(heads, dim, nodes, batch)))
    return q, k, v


@pytest.mark.parametrize("fidelity", ["paper", "released"])
@pytest.mark.parametrize("masked", [False, True])
def test_training_equals_the_oracle_with_its_noise(fidelity, masked):
    module = GumbelFavor(2, 5, fidelity=fidelity, draws=3).double()
    mask = Draw(1).mask(2, 40) if masked else None
    again = GumbelFavor(2, 5, fidelity=fidelity, draws=3)
    noise = again.draw_noise(2, 40)
    assert noise.shape == (2, 2, 40, 3)
    grads = []
    for call in (module, lambda *x, key_mask: module.reference(*x, key_mask=mask, noise=noise)):
        inputs = [x.clone().requires_grad_() for x in graph()]
        out = call(*inputs, key_mask=mask)
        grads.append((out, *torch.autograd.grad(out.sin().sum(), inputs)))
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


def test_many_blocks_are_as_one(monkeypatch):
    inputs = [x.requires_grad_() for x in graph(200)]
    grads = []
    for numbers in (2**18, 2**8):
        monkeypatch.setattr("isoattn.core.ops.favor_blocks.NUMBERS", numbers)
        out = GumbelFavor(2, 5, fidelity="released").double()(*inputs)
        grads.append((out, *torch.autograd.grad(out.sin().sum(), inputs)))
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-11)


def test_second_derivatives_with_noise():
    module = GumbelFavor(1, 2, features=3, draws=2).double()
    noise = module.draw_noise(1, 3)
    inputs = [x.requires_grad_() for x in graph(3, heads=1, dim=2, batch=1)]
    assert torch.autograd.gradgradcheck(lambda *x: module(*x, noise=noise), inputs)


def test_one_draw_for_two_attentions():
    module = GumbelFavor(2, 5)
    q, k, v = graph()
    noise = module.draw_noise(2, 40)
    first = module.double()(q, k, v, noise=noise)
    assert torch.equal(first, module(q, k, v, noise=noise))
    assert not torch.equal(noise, module.draw_noise(2, 40))
    assert module.eval().draw_noise(2, 40) is None


def test_noise_in_evaluation_stays_the_same():
    module = GumbelFavor(2, 5, eval_draws=4).double().eval()
    q, k, v = graph()
    out = module(q, k, v)
    assert torch.equal(out, module(q, k, v))
    assert not torch.allclose(out, GumbelFavor(2, 5).double().eval()(q, k, v))


def test_noise_is_gumbel():
    noise = GumbelFavor(4, 5).draw_noise(5, 1000).double()
    assert abs(noise.mean().item() - 0.5772) < 0.02
    assert abs(noise.var().item() - torch.pi**2 / 6) < 0.05


def test_packed_graphs_with_noise_are_each_alone():
    module = GumbelFavor(2, 5, draws=3).double()
    q, k, v = (x[:1] for x in graph(12))
    noise = module.draw_noise(1, 12)
    ids = torch.tensor([[0] * 5 + [3] * 7])
    out = module(q, k, v, noise=noise, segments=ids)
    for n in (slice(0, 5), slice(5, 12)):
        alone = module(*(x[:, :, n] for x in (q, k, v)), noise=noise[:, :, n])
        torch.testing.assert_close(out[:, :, n], alone)


@pytest.mark.parametrize("tau", [0.05, 0.01])
def test_any_tau_is_finite_and_right(tau):
    exact = []
    for dtype in (torch.float32, torch.float64):
        module = GumbelFavor(2, 5, tau=tau).to(dtype)
        q, k, v = graph(dtype=dtype)
        noise = torch.full((2, 2, 40, 2), -2.0)
        noise[:, :, 3], noise[:, :, 7] = 14.0, 87.0
        q = q.detach().requires_grad_()
        out = module(0.1 * q, 0.1 * k, v, noise=noise)
        exact.append((out, *torch.autograd.grad(out.sum(), q)))
    for a, b in zip(*exact, strict=True):
        assert a.isfinite().all()
        torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4)


def dense(module, q, k, **form):
    """Weights (B, H, N, M) of the same kernel without noise."""
    return module.eval().matrix(q, k, **form)


@pytest.mark.parametrize("masked", [False, True])
def test_edges_are_entries_of_the_matrix(masked):
    module = GumbelFavor(2, 5).double()
    q, k, _ = graph()
    mask = Draw(1).mask(2, 40) if masked else None
    edges = torch.randint(40, (2, 60), generator=torch.Generator().manual_seed(0))
    q, k = q.requires_grad_(), k.requires_grad_()
    got = module.edge_log_prob(q, k, edges, key_mask=mask).exp()
    want = dense(module, q, k, key_mask=mask)[:, :, edges[1], edges[0]]
    torch.testing.assert_close(got, want)
    a, b = (torch.autograd.grad(x.square().sum(), (q, k)) for x in (got, want))
    torch.testing.assert_close(a, b)
    assert module.edge_log_prob(q, k, edges[:, :0]).shape == (2, 2, 0)


def test_edges_of_packed_graphs():
    module = GumbelFavor(2, 5).double()
    q, k, _ = (x[:1] for x in graph(12))
    ids = torch.tensor([[0] * 5 + [3] * 7])
    edges = torch.tensor([[0, 4, 6, 11, 0], [1, 4, 11, 5, 7]])
    got = module.edge_log_prob(q, k, edges, segments=ids).exp()
    first = dense(module, q[:, :, :5], k[:, :, :5])
    second = dense(module, q[:, :, 5:], k[:, :, 5:])
    want = [first[:, :, 1, 0], first[:, :, 4, 4], second[:, :, 6, 1], second[:, :, 0, 6]]
    torch.testing.assert_close(got[:, :, :4], torch.stack(want, -1))
    assert not got[:, :, 4].any()  # between two graphs


def test_edge_gradients():
    module = GumbelFavor(1, 3, features=4).double()
    q, k, _ = (x.requires_grad_() for x in graph(5, heads=1, dim=3, batch=1))
    edges = torch.tensor([[0, 1, 1, 4], [0, 2, 2, 1]])
    assert torch.autograd.gradcheck(lambda q, k: module.edge_log_prob(q, k, edges), (q, k))


@pytest.mark.parametrize("masked", [False, True])
def test_the_strongest_keys_are_those_of_the_matrix(masked):
    module = GumbelFavor(2, 5).double()
    q, k, _ = graph()
    mask = Draw(1).mask(2, 40) if masked else None
    weights, places = module.top_k(q, k, 6, key_mask=mask)
    want = dense(module, q, k, key_mask=mask)
    torch.testing.assert_close(weights, want.topk(6, -1).values)
    torch.testing.assert_close(want.gather(-1, places), weights)


def test_cost_of_training():
    module = GumbelFavor(2, 5, draws=3)
    inputs = [x.requires_grad_() for x in graph(dtype=torch.float32)]
    said = module.cost(Shape.square(2, 2, 40, 5))
    assert (said.forward_flops, said.backward_flops) == count_flops(lambda: module(*inputs))
    assert said.saved_bytes == saved_bytes(lambda: module(*inputs))


def test_causal_is_refused():
    with pytest.raises(UnsupportedAttention, match="nodes of a graph have no order"):
        GumbelFavor(2, 5)(*graph(dtype=torch.float32), causal=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tau": 0.0}, "tau must be > 0, got 0.0"),
        ({"draws": -1}, "draws and eval_draws must be 0 .no noise. or more, got draws=-1"),
        ({"fidelity": "code"}, "fidelity must be 'paper' or 'released', got 'code'"),
        ({"features": 0}, "features and dim >= 1, got heads=2, features=0, dim=5"),
    ],
)
def test_messages_of_options(options, words):
    with pytest.raises(ValueError, match=words):
        GumbelFavor(2, 5, **options)


def test_messages_of_calls():
    module = GumbelFavor(2, 5).double()
    q, k, v = graph()
    with pytest.raises(ValueError, match=r"noise must be .* = \(2, 2, 40\) .* got \(2, 40, 3\)"):
        module(q, k, v, noise=torch.zeros(2, 40, 3))
    with pytest.raises(
        ValueError, match=r"edge_index must be int64 \(2, edges\).*got torch.float32"
    ):
        module.edge_log_prob(q, k, torch.zeros(2, 3))
    with pytest.raises(ValueError, match="the end of an edge must be from 0 to 39, got 0 to 40"):
        module.edge_log_prob(q, k, torch.tensor([[0, 1], [0, 40]]))
    with pytest.raises(ValueError, match=r"segments must be .* = \(2, 40\), got \(1, 40\)"):
        module.edge_log_prob(q, k, torch.zeros(2, 0).long(), segments=torch.zeros(1, 40).long())
    with pytest.raises(ValueError, match="count must be from 1 to the 40 keys, got 41"):
        module.top_k(q, k, 41)


@pytest.mark.parametrize("draws", [0, 3])
def test_many_features_and_no_keys(draws):
    """So many that heads are taken apart; without keys each piece has nothing to add."""
    module = GumbelFavor(4, 32, features=1000, draws=draws)
    q, k, v = (torch.randn(2, 4, n, 32, requires_grad=True) for n in (128, 0, 0))
    out = module(q, k, v)
    assert out.shape == q.shape and not out.any()
    (grad,) = torch.autograd.grad(out.sum(), q)
    assert not grad.any()
