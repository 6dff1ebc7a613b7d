"""Orders of adjacency, their weights, their budget, and the edge loss on them."""

from pathlib import Path

import pytest
import torch

from isoattn.core import Favor, GumbelFavor, GumbelSoftmax, Mean, Softmax, Zero
from isoattn.graph.graph import Graph, tidy_edges
from isoattn.graph.models import NodeFormer
from isoattn.graph.models.adjacency import (
    Adjacencies,
    adjacency_orders,
    neighbour_sum,
    normalised,
    paths,
)
from isoattn.graph.models.edge_loss import edge_loss
from isoattn.graph.models.relational import RelationalBias


def dense(edges, nodes):
    out = torch.zeros(nodes, nodes, dtype=torch.float64)
    out[edges[1], edges[0]] = 1
    return out


@pytest.mark.parametrize(("mode", "powers"), [("hop", (1, 2, 3)), ("power2", (1, 2, 4))])
@pytest.mark.parametrize("directed", [False, True])
def test_orders_are_powers_of_the_dense_matrix(graph, mode, powers, directed):
    edges = graph().edge_index
    edges = edges[:, edges[0] < edges[1]] if directed else edges
    one = dense(edges, 24) + torch.eye(24)
    for found, power in zip(adjacency_orders(edges, 24, 3, mode=mode), powers, strict=True):
        want = (torch.linalg.matrix_power(one, power) > 0).double()
        assert torch.equal(dense(found, 24), want)
        assert found.shape[1] == want.sum()  # none twice


def test_published_counts_of_cora():
    file = Path(__file__).parents[5] / "shared" / "data" / "planetoid"
    if not file.is_dir():
        pytest.skip("the real data are not beside the repository")
    from isoattn.graph.data.planetoid import Planetoid

    task = Planetoid("cora", root=str(file)).load()
    edges = task.graph.edge_index
    counts = [x.shape[1] for x in adjacency_orders(edges, 2708, 3, mode="power2")]
    assert counts == [13_264, 99_596, 1_010_148]
    assert adjacency_orders(edges, 2708, 3, mode="hop")[2].shape[1] == 346_846


def test_weights_are_symmetric_degrees(graph):
    edges = adjacency_orders(graph().edge_index, 24, 1)[0]
    want = dense(edges, 24)
    root = want.sum(1).rsqrt()
    got = normalised(edges, 24, torch.float64).matrix.to_dense()
    torch.testing.assert_close(got, root[:, None] * want * root)


@pytest.mark.parametrize("directed", [False, True])
def test_sums_over_neighbours_and_their_gradients(graph, directed):
    edges = graph().edge_index
    edges = edges[:, edges[0] < edges[1]] if directed else edges
    both = normalised(adjacency_orders(edges, 24, 1)[0], 24, torch.float64)
    assert (both.matrix is both.transposed) == (not directed)
    assert torch.equal(both.transposed.to_dense(), both.matrix.to_dense().T)
    x = torch.randn(24, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(neighbour_sum(both, x), both.matrix.to_dense() @ x)
    x.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: neighbour_sum(both, x), x)
    assert torch.autograd.gradgradcheck(lambda x: neighbour_sum(both, x) ** 2, x)


@pytest.mark.parametrize("gate", ["sigmoid", "identity"])
def test_bias_is_its_formula(graph, gate):
    bias = RelationalBias(2, 3, gate=gate).double()
    start = torch.full_like(bias.gate, 0.1 if gate == "sigmoid" else 1.0)
    torch.testing.assert_close(bias.gate.detach(), start.detach(), atol=1e-7, rtol=0)
    with torch.no_grad():
        bias.gate.uniform_(-1, 1, generator=torch.Generator().manual_seed(0))
    matrices = Adjacencies(2, mode="hop", budget=10**6)(graph().edge_index, 24, torch.float64)
    v = torch.randn(24, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    strength = bias.gate.sigmoid() if gate == "sigmoid" else bias.gate
    stack = torch.stack([m.matrix.to_dense() for m in matrices])
    want = torch.einsum("rh,rnm,mhd->nhd", strength, stack, v)
    torch.testing.assert_close(bias(v, matrices), want)


def test_budget_is_looked_at_before_the_product():
    star = tidy_edges(torch.tensor([[0] * 1999, list(range(1, 2000))]), 2000)[0]
    assert paths(star, star, 2000) >= 1999**2
    with pytest.raises(ValueError, match=r"order 2 \(mode 'hop'\) may have .* relational_budget=1"):
        adjacency_orders(star, 2000, 2, budget=1000)
    with pytest.raises(ValueError, match="relational_mode must be 'hop' or 'power2', got 'x'"):
        adjacency_orders(star, 2000, 2, mode="x")


def test_a_graph_is_prepared_once_and_known_by_its_entries(graph):
    made = Adjacencies(2, mode="hop", budget=10**6, kept=2)
    edges = graph().edge_index
    first = made(edges, 24, torch.float32)
    assert made(edges.flip(1).clone(), 24, torch.float32) is first
    assert made(edges, 25, torch.float32) is not first
    assert made(edges, 24, torch.float64) is not first
    assert made(edges, 24, torch.float32) is not first  # two are kept


ARMS = [GumbelFavor, GumbelSoftmax, Favor, Softmax, Mean]


@pytest.mark.parametrize("attention", ARMS)
def test_edge_loss_is_the_mean_over_edges_and_heads(graph, attention):
    core = attention(2, 5).double().eval()
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 2, 24, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    edges = adjacency_orders(graph().edge_index, 24, 1)[0]
    pi = core.matrix(q, k)[0, :, edges[1], edges[0]]
    indegree = torch.bincount(edges[1], minlength=24)[edges[1]]
    want = (pi.log() / indegree).mean()
    torch.testing.assert_close(edge_loss(core, q, k, edges), want)
    assert edge_loss(core, q, k, edges[:, :0]) == 0


def test_zero_has_no_term(graph):
    q = torch.randn(1, 2, 24, 5, generator=torch.Generator().manual_seed(0))
    assert edge_loss(Zero(2, 5), q, q, graph().edge_index) is None
    out = NodeFormer(Zero, 6, 3, hidden=5, heads=2)(graph(), return_extras=True)
    assert out.edge_loss is None


def test_an_empty_graph_has_no_messages():
    graph = Graph(torch.ones(3, 6), torch.zeros(2, 0, dtype=torch.int64))
    assert adjacency_orders(graph.edge_index, 3, 2)[1].shape == (2, 3)  # self loops alone
