"""The latent graph: the strongest nodes of the dense matrix, edges or not."""

import pytest
import torch

from isoattn.core import Favor, GumbelFavor, GumbelSoftmax, Mean, Softmax
from isoattn.graph.graph import Graph
from isoattn.graph.models import NodeFormer, latent_graph

ARMS = pytest.mark.parametrize("attention", [GumbelFavor, GumbelSoftmax, Favor, Softmax])


@ARMS
def test_case_6_it_is_the_top_k_of_the_rows(graph, attention):
    # qitianwu/NodeFormer#23, #21: six nodes, and non-edges are among the strongest
    torch.manual_seed(0)
    model = NodeFormer(attention, 6, 3, hidden=8, heads=2).double().train()
    g = graph(6, 4)
    kept = []
    model.eval().states(g, lambda core, q, k: kept.append(core.matrix(q, k)[0]))
    model.train()
    found = list(latent_graph(model, g, 3))
    assert model.training
    assert [(e.layer, e.head) for e in found] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    observed = set(map(tuple, g.edge_index.T.tolist()))
    for edges in found:
        weight, source = kept[edges.layer][edges.head].topk(3, -1)
        assert torch.equal(edges.source, source.flatten())
        torch.testing.assert_close(edges.weight, weight.flatten())
        assert torch.equal(edges.target, torch.arange(6).repeat_interleave(3))
        pairs = zip(edges.source.tolist(), edges.target.tolist(), strict=True)
        assert edges.observed.tolist() == [pair in observed for pair in pairs]
    assert not all(edges.observed.all() for edges in found)


@ARMS
def test_several_graphs_look_at_their_own_nodes(graph, attention):
    model = NodeFormer(attention, 6, 3, hidden=8, heads=2).double()
    parts = [graph(3, 3), graph(7, 8, seed=1)]
    both = Graph(
        torch.cat([p.x for p in parts]),
        torch.cat([parts[0].edge_index, parts[1].edge_index + 3], 1),
        torch.tensor([0] * 3 + [1] * 7),
    )
    for edges in latent_graph(model, both, 5):
        assert len(edges.weight) == 3 * 3 + 7 * 5
        assert ((edges.source < 3) == (edges.target < 3)).all()


def test_messages(graph):
    with pytest.raises(ValueError, match="Mean has no strongest nodes: a latent graph needs"):
        list(latent_graph(NodeFormer(Mean, 6, 3), graph(), 2))
    for attention in (GumbelFavor, Softmax):
        with pytest.raises(ValueError, match="count must be from 1 to the 24 keys, got 25"):
            list(latent_graph(NodeFormer(attention, 6, 3), graph(), 25))
