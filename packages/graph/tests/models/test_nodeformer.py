"""NodeFormer's laws: symmetries, noise, arms, several graphs, refusals."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from isoattn.core import (
    Favor,
    GumbelFavor,
    GumbelSoftmax,
    Linear,
    Mean,
    Softmax,
    Zero,
    seed_attentions,
)
from isoattn.graph.graph import Graph
from isoattn.graph.models import GCN, MLP, NodeFormer

ARMS = [GumbelFavor, GumbelSoftmax, Favor, Softmax, Mean, Zero]
OPTIONS = {"hidden": 8, "heads": 2, "relational_order": 2}


def build(attention=GumbelFavor, network=NodeFormer, seed=0, **options):
    torch.manual_seed(seed)
    model = network(attention, 6, 3, **options).double()
    seed_attentions(model, seed)
    return model


def moved(graph, order):
    """The same graph with its nodes in another order, and its edges too."""
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    return Graph(graph.x[order], place[graph.edge_index].flip(1))


@pytest.mark.parametrize("attention", ARMS)
@pytest.mark.parametrize("jk", [False, True])
def test_permuted_nodes_give_permuted_outputs(graph, attention, jk):
    model, g = build(attention, jk=jk, **OPTIONS).eval(), graph()
    order = torch.randperm(24, generator=torch.Generator().manual_seed(3))
    out, other = model(g, return_extras=True), model(moved(g, order), return_extras=True)
    torch.testing.assert_close(other.logits, out.logits[order])
    torch.testing.assert_close(other.embeddings, out.embeddings[order])
    if out.edge_loss is None:
        assert attention is Zero
    else:
        torch.testing.assert_close(other.edge_loss, out.edge_loss)


@pytest.mark.parametrize("network", [GCN, MLP])
def test_references_too(graph, network):
    model, g = build(None, network, layers=3, norm="layer", residual=True), graph()
    order = torch.randperm(24, generator=torch.Generator().manual_seed(3))
    out, other = model(g), model(moved(g, order))
    torch.testing.assert_close(other.logits, out.logits[order])
    assert out.edge_loss is None
    assert out.embeddings.shape == (24, 32)
    alone = model(replace(g, edge_index=g.edge_index[:, :0]))
    assert torch.allclose(alone.logits, out.logits) == (network is MLP)


def test_gcn_is_its_formula(graph):
    model, g = build(None, GCN), graph()
    dense = torch.eye(24).double()
    dense[g.edge_index[1], g.edge_index[0]] = 1
    root = dense.sum(1).rsqrt()
    dense = root[:, None] * dense * root
    z = (dense @ g.x.double() @ model.layers[0].weight.T + model.layers[0].bias).relu()
    want = dense @ z @ model.layers[1].weight.T + model.layers[1].bias
    torch.testing.assert_close(model(g).logits, want)


def test_softmax_is_the_dense_softmax_with_the_same_noise(graph):
    torch.manual_seed(0)
    attention = partial(GumbelSoftmax, draws=3, fidelity="released")
    model = NodeFormer(attention, 6, 3, hidden=8, heads=2)
    seed_attentions(model, 0)
    noise = [layer.core.draw_noise(1, 24) for layer in model.layers]
    seed_attentions(model, 0)
    g = graph()

    def dense(q, k, v, *, segments, given):
        logits = (q @ k.mT)[:, :, None] / (0.25 * 8**0.5)
        logits = logits + given.permute(0, 1, 3, 2)[:, :, :, None] / 0.25
        return (logits.softmax(-1) @ v[:, :, None]).mean(2)

    got = model(g).logits
    for layer, given in zip(model.layers, noise, strict=True):
        layer.core.forward = partial(dense, given=given)
    torch.testing.assert_close(got, model(g).logits, rtol=1e-5, atol=1e-5)


def test_the_linear_arm_comes_nearer_with_more_features(graph):
    g, errors = graph(), []
    exact = build(partial(GumbelSoftmax, tau=4.0), **OPTIONS).eval()
    with torch.no_grad():
        want = exact(g).logits
        for features in (10, 100, 1000):
            square = torch.zeros((), dtype=torch.float64)
            for seed in range(6):
                model = build(partial(GumbelFavor, tau=4.0, features=features), **OPTIONS).eval()
                seed_attentions(model, seed)
                square += (model(g).logits - want).square().mean()
            errors.append(square.sqrt())
    assert errors[1] < 0.55 * errors[0]
    assert errors[2] < 0.55 * errors[1]


def test_arms_have_equal_parameters_and_exchange_them():
    models = [build(attention, **OPTIONS) for attention in ARMS]
    first = dict(models[0].named_parameters())
    for model in models[1:]:
        named = dict(model.named_parameters())
        assert named.keys() == first.keys()
        assert all(torch.equal(named[n], first[n]) for n in first)


def test_arms_see_the_same_noise():
    linear, exact = build(GumbelFavor, **OPTIONS), build(GumbelSoftmax, **OPTIONS)
    seen = []
    for model in (linear, exact):
        seen.append([layer.core.draw_noise(1, 24) for layer in model.layers])
    for a, b in zip(*seen, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("attention", [GumbelFavor, GumbelSoftmax])
def test_noise_is_fresh_and_the_global_generator_is_left_alone(graph, attention):
    model, g = build(attention, **OPTIONS).train(), graph()
    drawn = []
    for layer in model.layers:
        inner = layer.core.draw_noise
        layer.core.draw_noise = lambda b, k, inner=inner: drawn.append(inner(b, k)) or drawn[-1]
    before = torch.get_rng_state()
    first, second = model(g).logits, model(g).logits
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(first, second)
    other = build(attention, seed=1, **OPTIONS).layers[0].core.draw_noise(1, 24)
    drawn.append(other)
    for i, a in enumerate(drawn):  # two layers, two steps, two seeds
        for b in drawn[:i]:
            assert not torch.equal(a, b)


@pytest.mark.parametrize("attention", [GumbelFavor, GumbelSoftmax])
def test_case_10_a_small_temperature_with_large_noise_is_finite(graph, attention):
    # qitianwu/NodeFormer#20: g = 14 at tau = 0.05, against float64
    torch.manual_seed(0)
    model = NodeFormer(partial(attention, tau=0.05, draws=2), 6, 3, **OPTIONS)
    for layer in model.layers:
        noise = torch.zeros(1, 2, 24, 2)
        noise[:, :, 5] = 14.0
        layer.core.draw_noise = lambda _b, _k, g=noise: g
    g = graph()
    grads = []
    for dtype in (torch.float32, torch.float64):
        model.to(dtype).zero_grad()
        out = model(g, return_extras=True)
        (out.logits.square().sum() - out.edge_loss).backward()
        grads.append([out.logits, *(p.grad.clone() for p in model.parameters())])
    for a, b in zip(*grads, strict=True):
        assert a.isfinite().all()
        scale = b.abs().max().clamp(min=1.0)
        torch.testing.assert_close(a.double() / scale, b / scale, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("attention", [GumbelFavor, GumbelSoftmax])
def test_case_10_noise_in_evaluation_is_a_choice(graph, attention):
    g = graph()
    plain = build(attention, **OPTIONS).eval()
    without = build(partial(attention, draws=0), **OPTIONS).train()
    torch.testing.assert_close(plain(g).logits, without(g).logits)  # none unless asked for
    asked = build(partial(attention, eval_draws=2), **OPTIONS).eval()
    assert not torch.equal(asked(g).logits, plain(g).logits)
    assert torch.equal(asked(g).logits, asked(g).logits)  # and then the same ones


@pytest.mark.parametrize("attention", ARMS)
def test_several_graphs_equal_one_by_one(graph, attention):
    model = build(attention, hidden=8, heads=2, relational_order=1).eval()
    parts = [graph(n, 2 * n, seed=n) for n in (7, 12, 5)]
    shift, edges, ids = 0, [], []
    for number, part in enumerate(parts):
        edges.append(part.edge_index + shift)
        ids.append(torch.full((part.num_nodes,), number))
        shift += part.num_nodes
    x = torch.cat([part.x for part in parts])
    together = model(Graph(x, torch.cat(edges, 1), torch.cat(ids)), return_extras=True)
    alone = [model(part, return_extras=True) for part in parts]
    torch.testing.assert_close(together.logits, torch.cat([a.logits for a in alone]))
    if attention is not Zero:
        counts = torch.tensor([part.num_edges + part.num_nodes for part in parts]).double()
        losses = torch.stack([a.edge_loss for a in alone])
        torch.testing.assert_close(together.edge_loss, (losses * counts).sum() / counts.sum())


@pytest.mark.parametrize("attention", ARMS)
@pytest.mark.parametrize("order", [0, 2])
def test_case_7_no_edges(graph, attention, order):
    # qitianwu/NodeFormer#4, #16, #2: the edge term is 0, gradients are finite
    model = build(attention, hidden=8, heads=2, relational_order=order).train()
    g = graph()
    out = model(replace(g, edge_index=g.edge_index[:, :0]), return_extras=True)
    assert out.edge_loss == 0
    (out.logits.square().sum() - out.edge_loss).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name


def test_the_edge_loss_is_left_out_unless_asked_for(graph):
    model, g = build(Linear, **OPTIONS).eval(), graph()
    assert model(g).edge_loss is None
    with pytest.raises(ValueError, match="Linear gives no probability of an edge: set edge_reg"):
        model(g, return_extras=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"norm": "batch"}, "norm must be 'layer' or 'none', got 'batch'"),
        ({"relational_order": -1}, "relational_order must be 0 .no bias. or more, got -1"),
        ({"relational_mode": "walk"}, "relational_mode must be 'hop' or 'power2', got 'walk'"),
        (
            {"relational_order": 1, "relational_gate": "tanh"},
            "relational_gate must be 'sigmoid' or 'identity', got 'tanh'",
        ),
        ({"layers": 0}, "NodeFormer needs layers >= 1, got 0"),
    ],
)
def test_messages_of_options(options, words):
    with pytest.raises(ValueError, match=words):
        NodeFormer(GumbelFavor, 6, 3, **options)


def test_a_graph_with_other_features_is_refused(graph):
    with pytest.raises(ValueError, match="NodeFormer was built for 6 features .* has 4"):
        build(**OPTIONS)(graph(features=4))
