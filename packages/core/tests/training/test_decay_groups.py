"""Every trainable parameter is in exactly one group, and the right ones carry no decay."""

import pytest
import torch
from torch import Tensor, nn

from isoattn.core import CrossCovariance
from isoattn.core.training import weight_decay_groups


class Mixer(nn.Module):
    """Declares its temperature, as an attention does."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(4, 1, 1))
        self.qkv = nn.Linear(8, 24)

    def no_weight_decay(self) -> set[str]:
        return {"temperature"}


class Model(nn.Module):
    """One of everything that matters for decay."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 8, 3, bias=False), nn.BatchNorm2d(8))
        self.cls_token = nn.Parameter(torch.zeros(1, 1, 8))
        self.pos_embed = nn.Conv2d(4, 8, 1)
        self.mixer = Mixer()
        self.norm = nn.LayerNorm(8)
        self.group = nn.GroupNorm(2, 8)
        self.gamma = nn.Parameter(torch.ones(8))
        self.relative_bias = nn.Parameter(torch.zeros(2, 2))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return x


def names(groups: list[dict[str, object]], kind: str) -> set[str]:
    return {n for g in groups if g["name"] == kind for n in g["param_names"]}  # type: ignore[attr-defined]


def test_partition_by_rule_declaration_and_name() -> None:
    model = Model()
    groups = weight_decay_groups(model, 0.05, exempt=["cls_token", "pos_embed"])
    assert names(groups, "decay") == {"stem.0.weight", "mixer.qkv.weight", "head.weight"}
    everything = {name for name, _ in model.named_parameters()}
    assert names(groups, "no_decay") == everything - names(groups, "decay")
    assert [g["weight_decay"] for g in groups] == [0.05, 0.0]
    for group in groups:
        pairs = zip(group["param_names"], group["params"], strict=True)
        assert all(model.get_parameter(name) is parameter for name, parameter in pairs)


def test_a_last_component_exempts_it_everywhere() -> None:
    model = nn.ModuleList([Model(), Model()])
    free = names(weight_decay_groups(model, 0.1, exempt=["cls_token"]), "no_decay")
    assert {"0.cls_token", "1.cls_token"} <= free
    assert "0.pos_embed.weight" not in free


def test_the_optimiser_takes_the_groups_and_decays_only_the_first() -> None:
    model = Model()
    start = {n: p.detach().clone() for n, p in model.named_parameters()}
    groups = weight_decay_groups(model, 0.5)
    optimizer = torch.optim.AdamW(groups, lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    moved = {n for n, p in model.named_parameters() if not torch.equal(p, start[n])}
    assert moved == {n for n in names(groups, "decay") if bool((start[n] != 0).any())}


def test_shared_parameters_are_grouped_once_and_frozen_ones_nowhere() -> None:
    model = Model()
    model.tied = model.head  # type: ignore[assignment]
    model.mixer.qkv.weight.requires_grad_(False)
    groups = weight_decay_groups(model, 0.1, exempt=["tied"])
    assert "head.weight" in names(groups, "no_decay")
    assert "mixer.qkv.weight" not in names(groups, "decay") | names(groups, "no_decay")
    parameters = [id(p) for g in groups for p in g["params"]]
    assert len(parameters) == len(set(parameters))


def test_a_name_that_fits_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="'clss_token', which fits no parameter.*cls_token"):
        weight_decay_groups(Model(), 0.1, exempt=["clss_token"])
    model = Model()
    model.mixer.no_weight_decay = lambda: {"tau"}  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="Mixer.no_weight_decay at mixer names 'tau'"):
        weight_decay_groups(model, 0.1)


def test_nothing_to_train_and_negative_decay_are_errors() -> None:
    with pytest.raises(ValueError, match="no parameter that requires a gradient"):
        weight_decay_groups(nn.Identity(), 0.1)
    with pytest.raises(ValueError, match="must not be negative"):
        weight_decay_groups(Model(), -1.0)


def test_an_attention_declares_by_a_class_attribute() -> None:
    """Attentions have a set where networks have a method."""
    groups = weight_decay_groups(CrossCovariance(2, 4), 0.1)
    assert names(groups, "no_decay") == {"temperature"}
    assert names(groups, "decay") == set()
