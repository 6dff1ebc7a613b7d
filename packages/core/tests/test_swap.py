"""Swapping the attention of any module that holds one."""

import pytest
import torch
from torch import nn

from isoattn.core import (
    Favor,
    Mean,
    MultiHead,
    Softmax,
    Zero,
    replaced_attention,
    swap_attention,
    swappable_layers,
)


class TwoInOne(nn.Module):
    """A layer with two attentions, as a decoder has."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.own = Softmax(2, 4)
        self.other = Softmax(2, 4)


def test_layers_are_named_by_what_holds_the_attention():
    model = nn.ModuleDict({"first": MultiHead(8, 2, "Softmax"), "both": TwoInOne()})
    assert list(swappable_layers(model)) == ["first", "both.own", "both.other"]
    assert list(swappable_layers(TwoInOne())) == ["own", "other"]
    assert list(swappable_layers(MultiHead(8, 2, "Softmax"))) == [""]


def test_a_swap_of_a_multi_head_layer_keeps_its_projections():
    layer = MultiHead(8, 2, "Softmax").double()
    before = {k: v.clone() for k, v in layer.state_dict().items()}
    swap_attention(layer, Favor)
    assert type(layer.attention) is Favor
    assert all(torch.equal(layer.state_dict()[k], v) for k, v in before.items())
    assert layer(torch.randn(1, 5, 8, dtype=torch.float64)).dtype == torch.float64


def test_draws_of_swapped_layers_differ_and_follow_the_seed():
    def rows(seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        model = nn.Sequential(MultiHead(8, 2, "Softmax"), MultiHead(8, 2, "Softmax"))
        swap_attention(model, Favor)
        return [site.core.projection.rows for site in swappable_layers(model).values()]

    first, second = rows(0)
    assert not torch.equal(first, second)
    assert torch.equal(first, rows(0)[0])
    assert not torch.equal(first, rows(1)[0])


def test_a_loan_ends_with_its_block():
    model = nn.ModuleDict({"both": TwoInOne()})
    own = model["both"].own
    with replaced_attention(model, Mean, layers=[0]):
        assert type(model["both"].own) is Mean
        assert type(model["both"].other) is Softmax
    assert model["both"].own is own


def test_a_model_without_attention():
    with pytest.raises(ValueError, match="Linear has no swappable attention"):
        swap_attention(nn.Linear(2, 2), Zero)
