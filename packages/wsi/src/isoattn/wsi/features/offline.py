"""Encoders that need no weights, for work without a network, for tests and for demonstrations.

They are what they are called, no stand-ins for a trained encoder: on real slides a pathology
foundation model is far better. Both tell the textures of :mod:`isoattn.wsi.synthetic` apart.

Shape suffixes: B tiles, H, W pixels, P = H x W, D features.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from isoattn.core.training import derive_seed
from isoattn.wsi.features.encoder import Encoder, Prepare

QUANTILES = (0.1, 0.9)


class HedStatistics(Encoder):
    """Mean, deviation, 10 % and 90 % quantile of haematoxylin, eosin and DAB: 12 numbers a tile.

    Stains by colour deconvolution (Ruifrok and Johnston, 2001) with scikit-image's matrix, in units
    of optical density.
    """

    density: Tensor
    unmix: Tensor

    def __init__(self) -> None:
        super().__init__("hed_statistics", 12)
        from skimage.color import hed_from_rgb

        table = -torch.log10((torch.arange(256.0) + 1) / 256)
        self.register_buffer("density", table, persistent=False)
        unmix = torch.tensor(hed_from_rgb, dtype=torch.float32)
        self.register_buffer("unmix", unmix, persistent=False)

    def encode(self, tiles_BHW3: Tensor) -> Tensor:
        """(B, 12): mean, deviation and quantiles, each of H, E, D."""
        density_BP3 = self.density[tiles_BHW3.flatten(1, 2).long()]
        stain_B3P = (density_BP3 @ self.unmix).transpose(1, 2).contiguous()
        pixels = stain_B3P.shape[-1]
        ranks = [max(1, round(q * pixels)) for q in QUANTILES]
        parts = [stain_B3P.mean(-1), stain_B3P.std(-1, correction=0)]
        parts += [stain_B3P.kthvalue(rank, -1).values for rank in ranks]
        return torch.cat(parts, 1)


class RandomMobileNet(Encoder):
    """mobilenetv3_small_050 with random weights: 1,024 features, 268 images of 224 px a CPU second.

    Weights are drawn by a generator of their own from ``seed`` (He initialisation), layer by layer,
    so they depend neither on torch's global state nor on timm's initialisation.

    Args:
        seed: of the weights.
        input_size: side to which tiles are resized; ``None``: the tile's own.
    """

    def __init__(self, seed: int = 0, input_size: int | None = None) -> None:
        super().__init__("random_mobilenetv3_small_050", 1024)
        self.seed = seed
        self.prepare = Prepare(input_size, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
        import timm  # takes seconds

        with torch.device("meta"):  # draws nothing
            network = timm.create_model("mobilenetv3_small_050", pretrained=False, num_classes=0)
        self.network = network.to_empty(device="cpu")
        _draw(self.network, torch.Generator().manual_seed(derive_seed(seed, "random encoder")))
        self.eval().requires_grad_(False)

    def encode(self, tiles_BHW3: Tensor) -> Tensor:
        """(B, 1024)."""
        features: Tensor = self.network(self.prepare(tiles_BHW3))
        return features

    def facts(self) -> dict[str, Any]:
        """With seed and input."""
        return super().facts() | {"seed": self.seed} | self.prepare.facts()


def _draw(network: nn.Module, generator: torch.Generator) -> None:
    """He initialisation of convolutions and linear layers, identity of normalisations."""
    for module in network.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            fan_in = module.weight[0].numel()
            nn.init.normal_(module.weight, 0.0, math.sqrt(2 / fan_in), generator=generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm2d):
            module.reset_parameters()
