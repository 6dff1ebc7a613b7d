"""Swapping and lending the attention of an XCiT or a ViT."""

import functools

import pytest
import torch
from torch import nn

from isoattn.core import (
    CosineSoftmax,
    CrossCovariance,
    Identity,
    Mean,
    Softmax,
    replaced_attention,
    swap_attention,
    swappable_layers,
)
from isoattn.vision.models import ViT, XCiT


def model(attention=CrossCovariance, network=XCiT) -> nn.Module:
    torch.manual_seed(0)
    built = network(attention, 1, 10, embed_dim=16, depth=3, heads=2)
    with torch.no_grad():
        for layer in swappable_layers(built).values():
            if hasattr(layer.core, "temperature"):
                layer.core.temperature.fill_(2.5)
    return built


def weights(built: nn.Module) -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in built.state_dict().items()}


@pytest.mark.parametrize("network", [XCiT, ViT])
def test_swap_leaves_the_other_weights_alone(network):
    built = model(network=network)
    before = weights(built)
    report = swap_attention(built, Softmax)
    after = built.state_dict()
    assert report.layers == [f"blocks.{i}.attn" for i in range(3)]
    assert report.lost == {f"blocks.{i}.attn.temperature": 2 for i in range(3)}
    assert report.gained == {}
    assert report.parameter_change == -6
    assert set(before) - set(after) == set(report.lost)
    assert all(torch.equal(after[k], before[k]) for k in after)
    assert "lost 3 (6 values)" in str(report)


def test_swap_of_some_layers():
    built = model()
    swap_attention(built, Softmax, layers=[1])
    cores = [type(block.attn.core) for block in built.blocks]
    assert cores == [CrossCovariance, Softmax, CrossCovariance]
    with pytest.raises(ValueError, match=r"\[3\] do not exist: the model has layers 0 to 2"):
        swap_attention(built, Softmax, layers=[3])


def test_swap_to_the_same_attention_changes_nothing():
    built = model()
    before = weights(built)
    report = swap_attention(built, CrossCovariance)
    assert report.gained == report.lost == {}
    assert all(torch.equal(v, before[k]) for k, v in built.state_dict().items())


def test_shared_parameters_are_kept_or_not():
    built = model()
    report = swap_attention(built, CosineSoftmax)
    assert report.kept == [f"blocks.{i}.attn.temperature" for i in range(3)]
    assert (built.blocks[0].attn.core.temperature == 2.5).all()
    report = swap_attention(built, CrossCovariance, keep=False)
    assert report.kept == []
    assert report.gained == report.lost
    assert (built.blocks[0].attn.core.temperature == 1).all()


def test_a_temperature_that_is_not_trained_is_not_overruled():
    built = model()
    fixed = functools.partial(CosineSoftmax, temperature_init=10.0, learn_temperature=False)
    report = swap_attention(built, fixed)
    assert report.kept == []
    assert (built.blocks[0].attn.core.temperature == 10).all()


def test_a_factory_that_fails_leaves_the_model_as_it_was():
    built = model()
    cores = [block.attn.core for block in built.blocks]
    made = []

    def failing(heads: int, head_dim: int) -> Softmax:
        made.append(heads)
        if len(made) == 2:
            raise RuntimeError("no more")
        return Softmax(heads, head_dim)

    with pytest.raises(RuntimeError, match="no more"):
        swap_attention(built, failing)
    assert all(b.attn.core is c for b, c in zip(built.blocks, cores, strict=True))


def test_swap_takes_dtype_and_mode_and_leaves_the_generator():
    built = model(Softmax).double().eval()
    state = torch.get_rng_state()
    swap_attention(built, CosineSoftmax)
    assert torch.equal(state, torch.get_rng_state())
    core = built.blocks[0].attn.core
    assert core.temperature.dtype == torch.float64
    assert not core.training


def test_replaced_attention_restores_the_same_objects():
    built = model().eval()
    image = torch.randn(2, 1, 28, 28)
    before = built(image)
    cores = [block.attn.core for block in built.blocks]
    with replaced_attention(built, Mean) as report:
        assert len(report.lost) == 3
        inside = built(image)
    assert not torch.equal(inside, before)
    assert all(b.attn.core is c for b, c in zip(built.blocks, cores, strict=True))
    assert torch.equal(built(image), before)


def test_replaced_attention_restores_after_an_error():
    built = model()
    with pytest.raises(RuntimeError, match="scoring failed"), replaced_attention(built, Identity):
        raise RuntimeError("scoring failed")
    assert isinstance(built.blocks[0].attn.core, CrossCovariance)


def test_replaced_attention_of_some_layers():
    built = model()
    with replaced_attention(built, Identity, layers=[0, 2]):
        cores = [type(block.attn.core) for block in built.blocks]
    assert cores == [Identity, CrossCovariance, Identity]


def test_a_wrapped_model_can_be_swapped():
    wrapper = nn.ModuleDict({"network": model()})
    assert swap_attention(wrapper, Mean).layers[0] == "network.blocks.0.attn"


def test_a_model_without_attention():
    with pytest.raises(ValueError, match="Linear has no swappable attention"):
        swap_attention(nn.Linear(2, 2), Softmax)
