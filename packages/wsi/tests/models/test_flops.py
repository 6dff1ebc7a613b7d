"""FLOPs of a forward pass: counted without data, equal to what torch counts with them."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from isoattn.core import Linear, Nystrom, Softmax, Zero, replaced_attention
from isoattn.wsi.models import (
    ABMIL,
    MaxPooling,
    MeanPooling,
    TransMIL,
    attention_calls,
    count_flops,
)


def counted(network, tiles):
    counter = FlopCounterMode(display=False)
    cells = torch.stack([torch.arange(tiles), torch.zeros(tiles, dtype=torch.long)], 1)
    with torch.no_grad(), counter:
        network.eval()(torch.randn(1, tiles, 8), cells[None])
    return counter.get_total_flops()


@pytest.mark.parametrize("attention", [Softmax, Linear, Nystrom])
@pytest.mark.parametrize(
    "options", [{}, {"ppeg": "off"}, {"value_conv": False}, {"cls_only": True}, {"depth": 3}]
)
def test_what_is_not_attention_is_what_torch_counts(attention, options):
    network = TransMIL(attention, 8, 2, dim=16, heads=2, **options)
    flops = count_flops(network, 10)
    with replaced_attention(network, Zero):
        network.cls_only = network.cls_only and attention is not Nystrom
        assert flops.total - flops.attention == counted(network, 10)
    assert 0 < flops.attention < flops.total


def test_neighbours_by_place_cost_as_many_taps():
    square = TransMIL(Softmax, 8, 2, dim=16, heads=2)
    places = TransMIL(Softmax, 8, 2, dim=16, heads=2, ppeg="coords")
    assert count_flops(square, 16) == count_flops(places, 16)  # 16 tiles are a square


def test_calls_have_the_tokens_of_the_network():
    network = TransMIL(Softmax, 8, 2, dim=16, heads=2, cls_only=True)
    (_, first), (_, last) = attention_calls(network, 10)
    assert (first.queries, first.keys) == (17, 17)  # class token, ten tiles, six of them again
    assert (last.queries, last.keys) == (1, 17)
    assert (first.heads, first.head_dim) == (2, 8)


@pytest.mark.parametrize("network", [ABMIL, MeanPooling, MaxPooling])
def test_references_have_no_attention(network):
    built = network(None, 8, 2, dim=16)
    assert attention_calls(built, 10) == []
    assert count_flops(built, 10).total == counted(built, 10) > 0


def test_a_bag_of_any_size_costs_nothing_to_count():
    flops = count_flops(TransMIL(Linear, 1024, 2), 1_000_000)
    assert flops.total > 1e12
