"""The same weights give the same outputs as timm's models, at odd and non-square sizes too."""

import pytest
import timm
import torch

from isoattn.core import CrossCovariance, Softmax
from isoattn.vision.models import VARIANTS, ViT, XCiT, xcit

HEAVY = [name for name in VARIANTS if name.startswith("large")]
CASES = [pytest.param(n, marks=pytest.mark.slow if n in HEAVY else ()) for n in VARIANTS]


def close(ours: torch.Tensor, theirs: torch.Tensor, tolerance: float = 1e-5) -> None:
    scale = theirs.detach().abs().max().item()
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance * scale)


def twins(variant: str, randomise, dtype: torch.dtype = torch.float32):
    """timm's model with random scales and biases, and ours with the same weights."""
    torch.manual_seed(0)
    theirs = timm.create_model(f"xcit_{variant}_224", num_classes=7).to(dtype)
    randomise(theirs)
    with torch.device("meta"):
        ours = xcit(variant, num_classes=7)
    ours.load_state_dict({k: v.clone() for k, v in theirs.state_dict().items()}, assign=True)
    return ours, theirs


@pytest.mark.parametrize("variant", CASES)
def test_eval_output_of_every_variant(variant, randomise):
    ours, theirs = (m.eval() for m in twins(variant, randomise))
    size = (36, 52) if variant.endswith("p8") else (48, 80)
    image = torch.randn(2, 3, *size)
    with torch.no_grad():
        close(ours(image), theirs(image))
        close(ours.forward_features(image), theirs.forward_features(image))


@pytest.mark.parametrize("size", [(36, 52), (48, 80), (80, 48), (17, 33), (64, 64)])
@pytest.mark.parametrize("variant", ["nano_12_p8", "tiny_12_p16"])
def test_any_image_size(variant, size, randomise):
    """Case: https://github.com/facebookresearch/dinov2/issues/506 (non-square images)."""
    ours, theirs = (m.eval() for m in twins(variant, randomise))
    image = torch.randn(1, 3, *size)
    with torch.no_grad():
        close(ours(image), theirs(image))


@pytest.mark.parametrize("variant", ["nano_12_p16", "nano_12_p8", "tiny_12_p8"])
def test_train_mode_gradients_and_statistics(variant, randomise):
    ours, theirs = (m.train() for m in twins(variant, randomise, torch.float64))
    image = torch.randn(3, 3, 36, 52, dtype=torch.float64)
    label = torch.tensor([0, 3, 6])
    for model in (ours, theirs):
        torch.nn.functional.cross_entropy(model(image), label).backward()
    gradients = {n.replace(".core.", "."): p.grad for n, p in ours.named_parameters()}
    for name, parameter in theirs.named_parameters():
        # atol: the gradient of a key bias is 0 but for rounding
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-8, atol=1e-12)
    for name, value in theirs.state_dict().items():
        close(ours.state_dict()[name].double(), value.double(), 1e-12)


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_state_dict_has_the_keys_and_shapes_of_timm(variant):
    with torch.device("meta"):
        theirs = timm.create_model(f"xcit_{variant}_224").state_dict()
        ours = xcit(variant).state_dict()
    assert {k: v.shape for k, v in ours.items()} == {k: v.shape for k, v in theirs.items()}


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_parameter_counts(variant):
    with torch.device("meta"):
        model = xcit(variant)
    assert sum(p.numel() for p in model.parameters()) == VARIANTS[variant].parameters


def test_weights_load_both_ways_strictly():
    ours = xcit("nano_12_p16", num_classes=7)
    theirs = timm.create_model("xcit_nano_12_p16_224", num_classes=7)
    theirs.load_state_dict(ours.state_dict(), strict=True)
    ours.load_state_dict(theirs.state_dict(), strict=True)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "deit_tiny_patch16_224"])
@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_vit(name, pool, randomise):
    options = {} if pool == "cls" else {"global_pool": "avg", "class_token": False}
    theirs = randomise(timm.create_model(name, num_classes=7, **options)).eval()
    ours = ViT(
        Softmax,
        3,
        7,
        image_size=224,
        embed_dim=192,
        depth=12,
        heads=3,
        patch_size=16,
        pool=pool,
    ).eval()
    ours.load_state_dict(theirs.state_dict(), strict=True)
    image = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        close(ours(image), theirs(image))


@pytest.mark.parametrize("size", [(64, 96), (48, 48)])
def test_vit_positions_resize_as_in_timm(size, randomise):
    options = {"embed_dim": 48, "depth": 2, "num_heads": 4, "patch_size": 16, "img_size": 96}
    theirs = timm.models.VisionTransformer(**options, num_classes=7, dynamic_img_size=True)
    randomise(theirs).eval()
    ours = ViT(Softmax, 3, 7, image_size=96, embed_dim=48, depth=2, heads=4, patch_size=16).eval()
    ours.load_state_dict(theirs.state_dict(), strict=True)
    image = torch.randn(2, 3, *size)
    with torch.no_grad():
        close(ours(image), theirs(image))


def test_mean_pooled_head_without_class_attention(randomise):
    """timm's average pooling of an Xcit without class attention, token by token."""
    torch.manual_seed(0)
    theirs = timm.models.xcit.Xcit(
        img_size=32,
        patch_size=8,
        embed_dim=32,
        depth=2,
        num_heads=4,
        num_classes=7,
        cls_attn_layers=0,
    )
    randomise(theirs).eval()
    ours = XCiT(
        CrossCovariance, 3, 7, embed_dim=32, depth=2, heads=4, patch_size=8, cls_layers=0
    ).eval()
    weights = {k: v for k, v in theirs.state_dict().items() if k != "cls_token"}
    ours.load_state_dict(weights, strict=True)
    image = torch.randn(2, 3, 32, 40)
    with torch.no_grad():
        tokens = theirs.forward_features(image)[:, 1:]
        close(ours(image), theirs.head(tokens.mean(1)))
