"""XCiT: options, twins, class-attention maps, gradients."""

import copy
import inspect
import itertools

import pytest
import torch

from isoattn.core import (
    Attention,
    CosineSoftmax,
    CrossCovariance,
    Identity,
    Linear,
    Mean,
    Softmax,
    Zero,
    attentions,
)
from isoattn.vision.models import XCiT, count_flops, xcit
from isoattn.vision.models.positions import LearnedPositions

ATTENTIONS = [CrossCovariance, Softmax, CosineSoftmax, Linear, Mean, Identity, Zero]


def simple() -> list[type[Attention]]:
    """What core offers that needs no option and sees both ways."""
    return [
        cls
        for cls in attentions().values()
        if cls.__module__.startswith("isoattn.core.")
        and cls.capability.bidirectional
        and all(
            p.default is not p.empty for p in list(inspect.signature(cls).parameters.values())[2:]
        )
    ]


SIMPLE = simple()


def small(attention=CrossCovariance, seed: int = 0, **options) -> XCiT:
    torch.manual_seed(seed)
    return XCiT(attention, 1, 10, **{"embed_dim": 16, "depth": 2, "heads": 2, **options})


def parameters(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("size", [(28, 28), (29, 41)])
def test_gradients_are_finite_and_reach_every_parameter(attention, size):
    model = small(attention)
    model(torch.randn(2, 1, *size)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize(
    ("lpi", "cls_layers", "stem", "positions"),
    list(
        itertools.product(
            ["dw3x3", "dw1x1", "none"],
            [0, 1, 2],
            ["conv", "patchify"],
            ["fourier", "learned", "none"],
        )
    ),
)
def test_every_combination_of_options(lpi, cls_layers, stem, positions):
    model = small(lpi=lpi, cls_layers=cls_layers, stem=stem, positions=positions, image_size=12)
    assert model(torch.randn(2, 1, 14, 22)).shape == (2, 10)
    expected = model.tokens((14, 22)) + (cls_layers > 0)
    assert model.forward_features(torch.randn(2, 1, 14, 22)).shape == (2, expected, 16)


@pytest.mark.parametrize("tokens_norm", [True, False])
@pytest.mark.parametrize("cls_layers", [0, 1, 3])
def test_logits_come_from_the_features(tokens_norm, cls_layers):
    """forward() leaves out what the head does not read; that must not change the result."""
    model = small(tokens_norm=tokens_norm, cls_layers=cls_layers).double().eval()
    image = torch.randn(2, 1, 28, 20, dtype=torch.float64)
    features = model.forward_features(image)
    pooled = features[:, 0] if cls_layers else features.mean(1)
    torch.testing.assert_close(model(image), model.head(pooled))


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_twins_of_one_seed_are_bit_equal_outside_the_attention(attention):
    reference = small(CrossCovariance).state_dict()
    twin = small(attention).state_dict()
    shared = {k for k in reference if not k.endswith("temperature")}
    assert shared <= set(twin)
    assert all(torch.equal(reference[k], twin[k]) for k in shared)


def test_building_an_attention_that_draws_does_not_shift_the_other_weights():
    class Drawing(Softmax):
        def __init__(self, heads: int, head_dim: int) -> None:
            super().__init__(heads, head_dim)
            self.extra = torch.nn.Linear(head_dim, head_dim)

    reference, twin = small(Softmax).state_dict(), small(Drawing).state_dict()
    assert all(torch.equal(reference[k], twin[k]) for k in reference)
    assert twin["blocks.0.attn.extra.weight"].std() > 0.1  # its own initial values, not ours


@pytest.mark.parametrize("stem", ["conv", "patchify"])
@pytest.mark.parametrize("in_chans", [1, 3])
@pytest.mark.parametrize("batch", [1, 2])
def test_gradients_are_those_of_finite_differences(stem, in_chans, batch):
    """In train mode and for a batch of one, where torch 2.14's BatchNorm can be led astray."""
    torch.manual_seed(0)
    model = XCiT(CrossCovariance, in_chans, 3, embed_dim=8, depth=1, heads=2, stem=stem).double()
    image = torch.randn(batch, in_chans, 8, 12, dtype=torch.double)
    model(image).square().sum().backward()
    step = 1e-5
    for name, parameter in model.named_parameters():
        direction = torch.randn_like(parameter)
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter.add_(direction, alpha=sign * step)
                values.append(model(image).square().sum().item())
                parameter.sub_(direction, alpha=sign * step)
        numeric = (values[0] - values[1]) / (2 * step)
        exact = (parameter.grad * direction).sum().item()
        assert exact == pytest.approx(numeric, rel=1e-5, abs=1e-7), name


@pytest.mark.parametrize("attention", SIMPLE)
def test_every_attention_of_core_fits(attention):
    model = small(attention)
    model(torch.randn(2, 1, 12, 20)).square().sum().backward()
    gradients = [p.grad for p in model.parameters() if p.requires_grad]
    assert all(g is not None and g.isfinite().all() for g in gradients)
    assert count_flops(model, (12, 20)).total > 0


def test_parameter_counts_of_the_published_small_model():
    with torch.device("meta"):
        counts = {a: parameters(xcit("small_12_p16", a)) for a in (*ATTENTIONS,)}
    assert counts[CrossCovariance] == counts[CosineSoftmax] == 26_253_304
    assert counts[Softmax] == 26_253_304 - 96


def test_lpi_parameters_of_the_published_small_model():
    with torch.device("meta"):
        full = xcit("small_12_p16")
        bare = XCiT(
            CrossCovariance, 3, 1000, embed_dim=384, depth=12, heads=8, patch_size=16, lpi="none"
        )
    assert parameters(full) - parameters(bare) == 115_200
    assert not any("norm3" in k or "gamma3" in k or "local_mp" in k for k in bare.state_dict())


@pytest.mark.parametrize(("lpi", "local"), [("dw3x3", True), ("dw1x1", False), ("none", False)])
def test_only_the_3x3_convolutions_mix_neighbours(lpi, local):
    model = small(Identity, lpi=lpi, depth=1).eval()
    tokens = torch.randn(1, 49, 16)
    moved = tokens.clone()
    moved[0, 0, 0] += 1.0  # one channel: LayerNorm takes out what all have in common
    block = model.blocks[0]
    changed = (block(tokens, (7, 7)) != block(moved, (7, 7))).any(-1)[0]
    expected = torch.zeros(7, 7, dtype=torch.bool)
    reach = 3 if local else 1
    expected[:reach, :reach] = True
    assert torch.equal(changed.view(7, 7), expected)


def test_rows_and_columns_are_not_exchanged():
    """A change of one pixel stays within the window that LPI spans around its place."""
    model = small(Identity, depth=1, stem="patchify").eval()
    image = torch.randn(1, 1, 12, 32)
    moved = image.clone()
    moved[0, 0, 9, 1] += 1.0  # row 2 of 3, column 0 of 8
    changed = (model.patch_tokens(image) != model.patch_tokens(moved)).any(-1).view(3, 8)
    expected = torch.zeros(3, 8, dtype=torch.bool)
    expected[0:3, 0:3] = True
    assert torch.equal(changed, expected)


def test_patchify_stem_of_the_marked_row_control():
    model = small(Softmax, stem="patchify", patch_size=7, positions="learned", image_size=(42, 28))
    assert model.grid((42, 28)) == (6, 4)
    assert model(torch.randn(2, 1, 42, 28)).shape == (2, 10)
    assert set(model.patch_embed.state_dict()) == {"proj.weight", "proj.bias"}


@pytest.mark.parametrize("stem", ["conv", "patchify"])
@pytest.mark.parametrize("patch_size", [2, 4, 8, 16])
def test_grid_rounds_up(stem, patch_size):
    model = small(stem=stem, patch_size=patch_size)
    height, width = 36, 52
    expected = (-(-height // patch_size), -(-width // patch_size))
    tokens, grid = model.patch_embed(torch.randn(1, 1, height, width))
    assert grid == model.grid((height, width)) == expected
    assert tokens.shape == (1, expected[0] * expected[1], 16)


def test_stem_of_patch_4_has_two_convolutions():
    model = small()
    widths = [m.out_channels for m in model.patch_embed.modules() if hasattr(m, "out_channels")]
    assert widths == [8, 16]


def test_learned_positions_resize():
    positions = LearnedPositions(8, (3, 4))
    assert torch.equal(positions((3, 4)), positions.table)
    assert positions((6, 5)).shape == (1, 30, 8)


def test_attention_layers():
    model = small(CrossCovariance, depth=3, attention_layers=[0, 2])
    cores = [type(block.attn.core) for block in model.blocks]
    assert cores == [CrossCovariance, Softmax, CrossCovariance]


def test_class_attention_maps():
    model = small(cls_layers=2).eval()
    image = torch.randn(3, 1, 20, 28)
    maps = model.class_attention_maps(image)
    assert maps.shape == (3, 2, 2, 5, 7)
    assert (maps >= 0).all()
    total = maps.sum((-2, -1))
    assert (total <= 1).all()
    assert (total > 0.5).all()  # what is missing is the weight of the class token on itself


def test_class_attention_maps_are_those_of_the_forward_pass():
    model = small(cls_layers=1, heads=1).double().eval()
    image = torch.randn(1, 1, 8, 8, dtype=torch.float64)
    block = model.cls_attn_blocks[0]
    tokens = block.norm1(model._with_class_token(model.patch_tokens(image)))
    weights = block.attn.weights(tokens)
    torch.testing.assert_close(block.attn(tokens), block.attn.proj(weights @ block.attn.v(tokens)))
    maps = model.class_attention_maps(image)
    torch.testing.assert_close(weights[..., 1:].reshape(1, 1, 1, 2, 2), maps)


def test_class_attention_maps_without_class_attention():
    with pytest.raises(ValueError, match="cls_layers=0.*Build it with cls_layers >= 1"):
        small(cls_layers=0).class_attention_maps(torch.randn(1, 1, 28, 28))


@pytest.mark.parametrize("tokens_norm", [True, False])
def test_both_forms_of_class_attention_train(tokens_norm):
    """The authors' code fails here with tokens_norm=False: it writes into a tensor in place."""
    model = small(tokens_norm=tokens_norm)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    image, label = torch.randn(8, 1, 12, 12), torch.arange(8)
    losses = []
    for _ in range(5):
        loss = torch.nn.functional.cross_entropy(model(image), label)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_drop_path_follows_the_seed_and_not_the_attention():
    image = torch.randn(4, 1, 12, 12)
    model = small(drop_path=0.5).train()
    outputs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outputs.append(copy.deepcopy(model)(image))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])
    states = []
    for attention in (CrossCovariance, Softmax, Linear):
        twin = small(attention, drop_path=0.5).train()
        torch.manual_seed(1)
        twin(image)
        states.append(torch.get_rng_state())
    assert all(torch.equal(states[0], state) for state in states)


def test_drop_path_is_off_in_eval_mode_and_keeps_the_mean():
    from isoattn.vision.models.layers import Residual

    residual, x = Residual(0.5), torch.zeros(20_000, 1, 1)
    torch.manual_seed(0)
    assert set(residual(x, x + 1).unique().tolist()) == {0.0, 2.0}
    assert abs(residual(x, x + 1).mean().item() - 1) < 0.05
    assert (residual.eval()(x, x + 1) == 1).all()


def test_no_weight_decay_names():
    model = small(CrossCovariance)
    assert model.no_weight_decay() == {
        "blocks.0.attn.core.temperature",
        "blocks.1.attn.core.temperature",
        "pos_embed.token_projection.weight",
        "pos_embed.token_projection.bias",
        "cls_token",
    }
    assert model.no_weight_decay() <= {name for name, _ in model.named_parameters()}
    assert "pos_embed.table" in small(positions="learned", image_size=8).no_weight_decay()


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_state_dict_round_trip(attention):
    model, other = small(attention), small(attention, seed=1)
    assert not any(".core." in key for key in model.state_dict())
    other.load_state_dict(model.state_dict(), strict=True)
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True)
    )


def test_missing_keys_are_named_as_in_the_file():
    model = small(CrossCovariance)
    weights = {k: v for k, v in model.state_dict().items() if "temperature" not in k}
    result = model.load_state_dict(weights, strict=False)
    assert result.missing_keys == ["blocks.0.attn.temperature", "blocks.1.attn.temperature"]


def test_unexpected_keys_are_named_as_in_the_file():
    result = small(Softmax).load_state_dict(small(CrossCovariance).state_dict(), strict=False)
    assert result.unexpected_keys == ["blocks.0.attn.temperature", "blocks.1.attn.temperature"]


def test_a_core_with_the_names_of_its_layer_survives_a_round_trip():
    class Inner(Softmax):
        def __init__(self, heads: int, head_dim: int) -> None:
            super().__init__(heads, head_dim)
            self.proj = torch.nn.Linear(2, 2)
            self.core = torch.nn.Linear(2, 2)
            self.scale = torch.nn.Parameter(torch.randn(3))

    model, other = small(Inner), small(Inner, seed=1)
    keys = {k for k in model.state_dict() if k.startswith("blocks.0.attn.")}
    assert {"blocks.0.attn.scale", "blocks.0.attn.core.proj.weight"} <= keys
    other.load_state_dict(copy.deepcopy(model).state_dict(), strict=True)
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True)
    )


def test_cross_covariance_weights_load_into_the_cosine_twin():
    source, target = small(CrossCovariance), small(CosineSoftmax, seed=1)
    target.load_state_dict(source.state_dict(), strict=True)
    with pytest.raises(RuntimeError, match="attn.temperature"):
        small(Softmax).load_state_dict(source.state_dict(), strict=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 3}, "heads must divide the embedding: got heads=3, dim=16"),
        ({"patch_size": 7}, "one of .2, 4, 8, 16., got 7. stem='patchify'"),
        ({"embed_dim": 18, "patch_size": 8}, "embed_dim=18 is not divisible by 4"),
        ({"positions": "learned"}, "needs image_size"),
        ({"positions": "sine"}, "'fourier', 'learned' or 'none', got 'sine'"),
        ({"lpi": "dw5x5"}, "'dw3x3', 'dw1x1' or 'none', got 'dw5x5'"),
        ({"stem": "linear"}, "'conv' or 'patchify', got 'linear'"),
        ({"attention_layers": [0, 2]}, r"\[2\] do not exist: the model has layers 0 to 1"),
        ({"drop_path": 1.0}, "in .0, 1., got 1.0"),
    ],
)
def test_options_that_cannot_be_built(options, message):
    with pytest.raises(ValueError, match=message):
        small(**options)


def test_unknown_variant_names_near_ones():
    with pytest.raises(
        ValueError, match="no XCiT variant 'smal_12_p16'. Did you mean small_12_p16"
    ):
        xcit("smal_12_p16")


@pytest.mark.parametrize("attention", [CrossCovariance, Softmax, CosineSoftmax])
def test_traces_into_one_graph(attention):
    model = small(attention).eval()
    image = torch.randn(2, 1, 28, 28)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(image), model(image), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("attention", [CrossCovariance, Softmax])
def test_compiles_forward_and_backward(attention):
    model = small(attention).train()
    other = copy.deepcopy(model)
    image = torch.randn(2, 1, 28, 28)
    for network in (torch.compile(model), other):
        network(image).square().sum().backward()
    for mine, eager in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, eager.grad, rtol=1e-3, atol=1e-4)
