"""Backbones: a grey image -> a coarse map at 1/8 and, from the FPN, a fine map at 1/2.

ResNet-FPN 8/2 of LoFTR (Sun et al. 2021, section 3.1; zju3dv/LoFTR ``resnet_fpn.py``), with its
parameter names, and two small stems for studies on the CPU. Sizes are rounded up, so images may
have any. Entry (i, j) of a map of stride s sits on pixel (s j, s i).

Outside training a BatchNorm is folded into the convolution before it, and maps are channels-last:
on the CPU both together save about a fifth of the time.

Shape suffixes: B batch, H image rows, W image columns, C channels, Y and X rows and columns of
the coarse map, V and U those of the fine map.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BackboneName = Literal["resnet_fpn", "residual", "patch"]

Widths = tuple[int, int, int]
"""Channels at 1/2, 1/4 and 1/8 of the image."""


class Maps(NamedTuple):
    """What a backbone sees.

    Args:
        coarse: (B, C, Y, X) at 1/8.
        fine: (B, c, V, U) at 1/2; ``None`` where it was not asked for.
    """

    coarse: Tensor
    fine: Tensor | None

    def halves(self) -> tuple[Maps, Maps]:
        """Those of the first and of the second half of the images."""
        coarse = self.coarse.chunk(2)
        fine = (None, None) if self.fine is None else self.fine.chunk(2)
        return Maps(coarse[0], fine[0]), Maps(coarse[1], fine[1])


class Backbone(nn.Module, ABC):
    """A grey image in [0, 1] -> maps.

    Args:
        widths: channels at 1/2, 1/4, 1/8; the first are those of the fine map, the last those of
            the coarse one.

    Raises:
        ValueError: widths below 1.
    """

    has_fine: bool = False

    def __init__(self, widths: Widths) -> None:
        super().__init__()
        if len(widths) != 3 or min(widths) < 1:
            raise ValueError(
                f"widths are the channels at 1/2, 1/4 and 1/8 of the image, three numbers of 1 or "
                f"more; got {tuple(widths)}"
            )
        self.widths: Widths = (widths[0], widths[1], widths[2])

    @abstractmethod
    def forward(self, image_B1HW: Tensor, *, fine: bool = False) -> Maps:
        """The coarse map and, with ``fine``, the fine one."""


def conv_norm(x: Tensor, conv: nn.Module, norm: nn.Module) -> Tensor:
    """``norm(conv(x))``; outside training as one convolution with scaled weights."""
    assert isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d)
    if norm.training:
        out: Tensor = norm(conv(x))
        return out
    wide = torch.promote_types(conv.weight.dtype, torch.float32)
    mean, variance = norm.running_mean, norm.running_var
    assert mean is not None and variance is not None
    scale_C = norm.weight.to(wide) * (variance.to(wide) + norm.eps).rsqrt()
    shift_C = norm.bias.to(wide) - mean.to(wide) * scale_C
    weight = (conv.weight.to(wide) * scale_C[:, None, None, None]).to(conv.weight.dtype)
    return F.conv2d(x, weight, shift_C.to(weight.dtype), conv.stride, conv.padding)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with BatchNorm beside a shortcut (He et al. 2016, figure 2).

    Args:
        before: channels of the input.
        after: channels of the output.
        stride: of the first convolution. With 1 the shortcut is the identity, with 2 a strided
            1x1 convolution.
    """

    def __init__(self, before: int, after: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = _conv(before, after, 3, stride)
        self.conv2 = _conv(after, after, 3)
        self.bn1 = nn.BatchNorm2d(after)
        self.bn2 = nn.BatchNorm2d(after)
        self.downsample: nn.Sequential | None = None
        if stride != 1:
            self.downsample = nn.Sequential(_conv(before, after, 1, stride), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        """(B, before, h, w) -> (B, after, ceil(h / stride), ceil(w / stride))."""
        y = conv_norm(x, self.conv1, self.bn1).relu_()
        y = conv_norm(y, self.conv2, self.bn2)
        if self.downsample is not None:
            conv, norm = self.downsample
            x = conv_norm(x, conv, norm)
        return y.add_(x).relu_()


class ResidualStem(Backbone):
    """The residual trunk alone: conv7x7 stride 2, then two blocks each at 1/2, 1/4, 1/8; no FPN.

    Its receptive field is about 100 pixels: on small images the transformer behind it has little
    left to add. For a usable small matcher, not for a comparison of attentions.
    """

    def __init__(self, widths: Widths = (16, 32, 64)) -> None:
        super().__init__(widths)
        half, quarter, eighth = self.widths
        self.conv1 = _conv(1, half, 7, 2)
        self.bn1 = nn.BatchNorm2d(half)
        self.layer1 = nn.Sequential(BasicBlock(half, half), BasicBlock(half, half))
        self.layer2 = nn.Sequential(BasicBlock(half, quarter, 2), BasicBlock(quarter, quarter))
        self.layer3 = nn.Sequential(BasicBlock(quarter, eighth, 2), BasicBlock(eighth, eighth))
        _init_convolutions(self)

    def trunk(self, image_B1HW: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Maps at 1/2, 1/4 and 1/8, channels-last."""
        x = conv_norm(image_B1HW, self.conv1, self.bn1).relu_()
        # here and not at the image, whose single channel has no order to be last in
        half = self.layer1(x.contiguous(memory_format=torch.channels_last))
        quarter = self.layer2(half)
        return half, quarter, self.layer3(quarter)

    def forward(self, image_B1HW: Tensor, *, fine: bool = False) -> Maps:
        """The map at 1/8; there is no fine one."""
        _refuse_fine(self, fine)
        return Maps(self.trunk(image_B1HW)[2], None)


class ResNetFPN(ResidualStem):
    """ResNet-FPN 8/2: the trunk, a 1x1 convolution to the coarse map, and the way up to 1/2.

    Each step up: a 1x1 lateral convolution, the coarser map enlarged bilinearly between its corner
    entries and added, then conv3x3, BatchNorm, leaky ReLU, conv3x3.

    Args:
        widths: channels at 1/2, 1/4, 1/8.
        fine: False leaves the way up out, with its parameters.
    """

    def __init__(self, widths: Widths = (128, 196, 256), *, fine: bool = True) -> None:
        super().__init__(widths)
        half, quarter, eighth = self.widths
        self.has_fine = fine
        self.layer3_outconv = _conv(eighth, eighth, 1)
        if fine:
            self.layer2_outconv = _conv(quarter, eighth, 1)
            self.layer2_outconv2 = _fusion(eighth, quarter)
            self.layer1_outconv = _conv(half, quarter, 1)
            self.layer1_outconv2 = _fusion(quarter, half)
        _init_convolutions(self)

    def forward(self, image_B1HW: Tensor, *, fine: bool = False) -> Maps:
        """The coarse map and, with ``fine``, the fine one, which costs as much again."""
        _refuse_fine(self, fine)
        half, quarter, eighth = self.trunk(image_B1HW)
        coarse = self.layer3_outconv(eighth)
        if not fine:
            return Maps(coarse, None)
        up = _fuse(self.layer2_outconv2, _onto(coarse, self.layer2_outconv(quarter)))
        return Maps(coarse, _fuse(self.layer1_outconv2, _onto(up, self.layer1_outconv(half))))


class PatchStem(Backbone):
    """Three conv3x3 of stride 2 with BatchNorm and ReLU, then conv1x1; no FPN.

    An entry sees 15 pixels: what lies further must come from attention, which makes this the stem
    of comparisons.
    """

    def __init__(self, widths: Widths = (16, 32, 64)) -> None:
        super().__init__(widths)
        steps = zip((1, *self.widths), self.widths, strict=False)
        self.convs = nn.ModuleList(_conv(before, after, 3, 2) for before, after in steps)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in self.widths)
        self.project = _conv(self.widths[2], self.widths[2], 1)
        _init_convolutions(self)

    def forward(self, image_B1HW: Tensor, *, fine: bool = False) -> Maps:
        """The map at 1/8; there is no fine one."""
        _refuse_fine(self, fine)
        x = image_B1HW
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = conv_norm(x, conv, norm).relu_().contiguous(memory_format=torch.channels_last)
        return Maps(self.project(x), None)


def make_backbone(name: BackboneName, widths: Widths, *, fine: bool) -> Backbone:
    """The backbone of a name.

    Raises:
        ValueError: unknown name, or a fine map from a stem that has none.
    """
    if name == "resnet_fpn":
        return ResNetFPN(widths, fine=fine)
    stems: dict[str, type[ResidualStem] | type[PatchStem]] = {
        "residual": ResidualStem,
        "patch": PatchStem,
    }
    if name not in stems:
        raise ValueError(f"backbone must be 'resnet_fpn', 'residual' or 'patch', got {name!r}")
    backbone = stems[name](widths)
    _refuse_fine(backbone, fine)
    return backbone


def _refuse_fine(backbone: Backbone, fine: bool) -> None:
    if fine and not backbone.has_fine:
        raise ValueError(
            f"This {type(backbone).__name__} has no fine map at 1/2: match with fine=False, or "
            "build the matcher with backbone='resnet_fpn', fine=True"
        )


def _conv(before: int, after: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False)


def _fusion(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(
        _conv(before, before, 3), nn.BatchNorm2d(before), nn.LeakyReLU(), _conv(before, after, 3)
    )


def _fuse(layers: nn.Sequential, x: Tensor) -> Tensor:
    first, norm, _, second = layers
    out: Tensor = second(F.leaky_relu_(conv_norm(x, first, norm)))
    return out


def _onto(coarser: Tensor, lateral: Tensor) -> Tensor:
    """The coarser map enlarged to the finer one and added.

    Enlarged to twice its size and cropped where a side is odd: entry i then reads the coarser map
    at i (n - 1) / (2n - 1) for any size, which is what the published weights were trained with.
    """
    rows, columns = lateral.shape[-2:]
    up = F.interpolate(coarser, scale_factor=2.0, mode="bilinear", align_corners=True)
    return lateral + up[..., :rows, :columns]


def _init_convolutions(root: nn.Module) -> None:
    for module in root.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
