"""Backbones: sizes, coordinates, folding of norms, what is left out without the fine map."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from isoattn.matching.models import PatchStem, ResidualStem, ResNetFPN
from isoattn.matching.models.backbone import conv_norm, make_backbone
from isoattn.matching.models.cells import grid_of

ALL = [ResNetFPN((8, 12, 16)), ResidualStem((8, 12, 16)), PatchStem((8, 12, 16))]
EACH = pytest.mark.parametrize("backbone", ALL, ids=lambda b: type(b).__name__)


def random_statistics(module: nn.Module, seed: int = 0) -> None:
    """BatchNorms as after training: their running values are not 0 and 1."""
    generator = torch.Generator().manual_seed(seed)
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm2d):
            for tensor, low, high in (
                (norm.running_mean, -0.3, 0.3),
                (norm.running_var, 0.5, 2.0),
                (norm.weight.data, 0.5, 1.5),
                (norm.bias.data, -0.3, 0.3),
            ):
                tensor.uniform_(low, high, generator=generator)


@EACH
@settings(deadline=None, max_examples=20)
@given(st.integers(1, 50), st.integers(1, 50))
def test_sizes_are_rounded_up(backbone, height, width):
    fine = backbone.has_fine
    with torch.no_grad():
        maps = backbone.eval()(torch.zeros(1, 1, height, width), fine=fine)
    assert maps.coarse.shape == (1, 16, *grid_of(height, width))
    assert maps.fine is None or maps.fine.shape == (1, 8, -(-height // 2), -(-width // 2))


@EACH
def test_folded_norms_give_the_same(backbone):
    random_statistics(backbone)
    image = torch.rand(2, 1, 41, 50, generator=torch.Generator().manual_seed(0))
    backbone = backbone.double().eval()
    want = backbone(image.double(), fine=backbone.has_fine)
    plain = _unfolded(backbone, image.double())
    torch.testing.assert_close(want.coarse, plain)


def _unfolded(backbone, image):
    """The coarse map by the modules themselves."""
    if isinstance(backbone, PatchStem):
        for conv, norm in zip(backbone.convs, backbone.norms, strict=True):
            image = norm(conv(image)).relu()
        return backbone.project(image)
    x = backbone.bn1(backbone.conv1(image)).relu()
    for block in (*backbone.layer1, *backbone.layer2, *backbone.layer3):
        y = block.bn2(block.conv2(block.bn1(block.conv1(x)).relu()))
        x = (y + (x if block.downsample is None else block.downsample(x))).relu()
    return backbone.layer3_outconv(x) if isinstance(backbone, ResNetFPN) else x


@EACH
def test_a_cell_sits_on_its_pixel(backbone):
    """Moving the image by 8 pixels moves the coarse map by one cell, away from the edges."""
    random_statistics(backbone)
    backbone = backbone.double().eval()
    image = torch.rand(1, 1, 160, 320, generator=torch.Generator().manual_seed(0)).double()
    whole = backbone(image).coarse
    moved = backbone(image[..., 8:]).coarse
    inner = slice(8, -8)
    torch.testing.assert_close(moved[0, :, 8:-8, inner], whole[0, :, 8:-8, 1:][..., inner])


def test_receptive_field_of_the_patch_stem_is_15_pixels():
    stem = PatchStem((4, 4, 4)).double().eval()
    image = torch.rand(1, 1, 80, 80, generator=torch.Generator().manual_seed(0)).double()
    image.requires_grad_()
    stem(image).coarse[0, :, 5, 5].square().sum().backward()
    rows = image.grad[0, 0].abs().sum(1).nonzero()[:, 0]
    assert (rows.min(), rows.max()) == (40 - 7, 40 + 7)


def test_sizes_of_the_stems():
    def count(module):
        return sum(p.numel() for p in module.parameters())

    assert count(PatchStem()) == 27_504
    assert count(ResidualStem()) == 174_960


@pytest.mark.parametrize("batch", [1, 2])
def test_gradients_agree_with_plain_layouts(batch):
    """A batch of one has strides that torch 2.14 may misread; float64 autograd is the judge."""
    backbone = ResNetFPN((4, 6, 8)).double().train()
    image = torch.rand(batch, 1, 24, 24, generator=torch.Generator().manual_seed(0)).double()

    def loss(x):
        maps = backbone(x, fine=True)
        return maps.coarse.square().mean() + maps.fine.square().mean()

    image.requires_grad_()
    loss(image).backward()
    step = 1e-6
    direction = torch.randn(image.shape, generator=torch.Generator().manual_seed(1)).double()
    with torch.no_grad():
        numeric = (loss(image + step * direction) - loss(image - step * direction)) / (2 * step)
    torch.testing.assert_close((image.grad * direction).sum(), numeric, rtol=1e-5, atol=1e-7)


def test_without_the_fine_map_its_parameters_are_left_out():
    slim, full = ResNetFPN((8, 12, 16), fine=False), ResNetFPN((8, 12, 16))
    left_out = set(full.state_dict()) - set(slim.state_dict())
    assert left_out and all(n.startswith(("layer1_outconv", "layer2_outconv")) for n in left_out)
    slim.load_state_dict({n: full.state_dict()[n] for n in slim.state_dict()})
    image = torch.rand(1, 1, 33, 40, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        got, want = (b.eval()(image).coarse for b in (slim, full))
    assert torch.equal(got, want)
    with pytest.raises(ValueError, match="This ResNetFPN has no fine map at 1/2: match with fine="):
        slim(image, fine=True)


def test_conv_norm_in_training_uses_and_updates_the_batch_statistics():
    conv, norm = nn.Conv2d(1, 3, 3, bias=False), nn.BatchNorm2d(3)
    x = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    out = conv_norm(x, conv, norm)
    torch.testing.assert_close(out.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    assert norm.num_batches_tracked == 1


def test_messages():
    with pytest.raises(ValueError, match="backbone must be 'resnet_fpn', 'residual' or 'patch', g"):
        make_backbone("vgg", (8, 8, 8), fine=False)
    with pytest.raises(ValueError, match="This PatchStem has no fine map at 1/2"):
        make_backbone("patch", (8, 8, 8), fine=True)
    with pytest.raises(ValueError, match=r"three numbers of 1 or more; got \(8, 8\)"):
        PatchStem((8, 8))
