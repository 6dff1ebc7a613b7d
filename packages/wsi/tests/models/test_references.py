"""The references without attention: what they compute, and that order and padding are nothing."""

import pytest
import torch

from isoattn.wsi.models import ABMIL, MaxPooling, MeanPooling

NETWORKS = pytest.mark.parametrize("network", [ABMIL, MeanPooling, MaxPooling])


def build(network, **options):
    torch.manual_seed(0)
    return network(None, 5, 3, dim=8, **options).double().eval()


def bag(n, seed=0):
    return torch.randn(1, n, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tiles(model, x):
    return torch.relu(x[0] @ model.input.weight.T + model.input.bias)


@NETWORKS
@pytest.mark.parametrize("n", [1, 2, 17])
def test_the_order_of_the_tiles_does_not_matter(network, n):
    model, x = build(network), bag(n)
    turn = torch.randperm(n, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model(x), model(x[:, turn]))
    weights = model.tile_weights(x[0])
    assert weights.shape == (n,)
    torch.testing.assert_close(weights[turn], model.tile_weights(x[0, turn]))


def test_abmil_is_equation_9():
    model, x = build(ABMIL, gate_dim=4), bag(6)
    h = tiles(model, x)
    gated = torch.tanh(model.value(h)) * torch.sigmoid(model.gate(h))
    a = torch.softmax(gated @ model.score.weight[0], 0)
    torch.testing.assert_close(model(x)[0], model.head(a @ h))
    torch.testing.assert_close(model.tile_weights(x[0]), a)
    torch.testing.assert_close(a.sum(), torch.ones_like(a.sum()))


def test_pooling():
    x = bag(6)
    mean, most = build(MeanPooling), build(MaxPooling)
    torch.testing.assert_close(mean(x)[0], mean.head(tiles(mean, x).mean(0)))
    torch.testing.assert_close(most(x)[0], most.head(tiles(most, x)).max(0).values)
    assert mean.tile_weights(x[0]).tolist() == [1 / 6] * 6


def test_the_strongest_tile_of_max_pooling_leads_its_heat_map():
    model, x = build(MaxPooling), bag(30)
    logits = model.head(tiles(model, x))
    shown = model.tile_weights(x[0])
    torch.testing.assert_close(shown, logits.softmax(1)[:, model(x)[0].argmax()])


@NETWORKS
def test_dropout_and_norm_are_taken(network):
    model = build(network, dropout=0.5, norm="layer").train()
    x = bag(9)
    assert not torch.equal(model(x), model(x))
    model.tile_weights(x[0])
    assert model.training


@NETWORKS
def test_messages(network):
    with pytest.raises(ValueError, match="needs dim >= 1, got 0"):
        network(None, 5, 3, dim=0)
    with pytest.raises(ValueError, match="the bag has no tiles"):
        build(network)(bag(0))
    with pytest.raises(ValueError, match=r"got \(1, 2, 4\)"):
        build(network)(torch.randn(1, 2, 4))


def test_the_gate_has_a_width():
    with pytest.raises(ValueError, match="ABMIL needs gate_dim >= 1, got 0"):
        ABMIL(None, 5, 3, gate_dim=0)
