"""ViT: options, pooling, learned positions."""

import pytest
import torch

from isoattn.core import CrossCovariance, Identity, Softmax
from isoattn.vision.models import ViT


def small(attention=Softmax, **options) -> ViT:
    torch.manual_seed(0)
    return ViT(attention, 1, 10, **{"embed_dim": 16, "depth": 3, "heads": 2, **options})


@pytest.mark.parametrize("pool", ["cls", "mean"])
@pytest.mark.parametrize("size", [(28, 28), (30, 41)])
def test_gradients_are_finite_and_reach_every_parameter(pool, size):
    model = small(CrossCovariance, pool=pool)
    model(torch.randn(2, 1, *size)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_features_and_tokens(pool):
    model = small(pool=pool)
    assert model.tokens((28, 40)) == 70 + (pool == "cls")
    assert model.forward_features(torch.randn(2, 1, 28, 40)).shape == (
        2,
        model.tokens((28, 40)),
        16,
    )


def test_twins_of_one_seed_are_bit_equal_outside_the_attention():
    reference, twin = small(Softmax).state_dict(), small(CrossCovariance).state_dict()
    assert all(torch.equal(reference[k], twin[k]) for k in reference)


def test_without_attention_the_class_token_sees_nothing():
    model = small(Identity).eval()
    a, b = model(torch.randn(2, 1, 28, 28)), model(torch.randn(2, 1, 28, 28))
    assert torch.equal(a, b)


def test_drop_path_rises_with_depth():
    rates = [block.residual.drop_path for block in small(drop_path=0.2).blocks]
    assert rates == [0.0, 0.1, 0.2]


def test_attention_layers():
    model = small(CrossCovariance, attention_layers=[1])
    cores = [type(block.attn.core) for block in model.blocks]
    assert cores == [Softmax, CrossCovariance, Softmax]


def test_no_weight_decay_names():
    names = small(CrossCovariance, depth=1).no_weight_decay()
    assert names == {"pos_embed", "cls_token", "blocks.0.attn.core.temperature"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pool": "max"}, "'cls' or 'mean', got 'max'"),
        ({"heads": 5}, "heads must divide the embedding: got heads=5, dim=16"),
        ({"attention_layers": [7]}, "the model has layers 0 to 2"),
    ],
)
def test_options_that_cannot_be_built(options, message):
    with pytest.raises(ValueError, match=message):
        small(**options)


def test_numbers_that_make_no_network():
    with pytest.raises(ValueError, match="ViT needs num_classes >= 1, got 0"):
        ViT(Softmax, 1, 0)
