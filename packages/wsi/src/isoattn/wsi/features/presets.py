"""Published encoders by name: what timm must be told to build each, and the licence of its weights.

Facts from the model cards of the repositories named in ``hub``; no weights are included. Most are
gated: read the card, accept its terms, log in with ``hf auth login``; or hand over a downloaded
file as ``checkpoint``. Licences were read in 2026 and may have changed: the card counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Pool = Literal["model", "class", "class_and_mean"]
"""What of a transformer's tokens is kept: what timm's model returns, the class token, or the class
token beside the mean of the patch tokens."""

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
H_OPTIMUS_MEAN = (0.707223, 0.578729, 0.703617)
H_OPTIMUS_STD = (0.211883, 0.230117, 0.177517)

SWIGLU = {"mlp_layer": "SwiGLUPacked", "act_layer": "SiLU"}
"""Names instead of classes, so that a preset is plain data."""


@dataclass(frozen=True)
class Preset:
    """How to build a published encoder.

    Args:
        hub: name for timm with its weights, ``hf-hub:OWNER/REPOSITORY`` or a timm tag.
        architecture: name for timm without weights, to load a file into.
        licence: of the weights.
        dim: number of features; ``None``: what the network says.
        arguments: for ``timm.create_model`` with ``architecture``.
        hub_arguments: the same with ``hub``, whose configuration holds the rest.
        input_size: pixels of the input; ``"tile"``: the tile's own; ``"network"``: what timm's
            configuration says.
        resize: see :class:`isoattn.wsi.features.encoder.Prepare`.
        mean, std: normalisation; ``None``: what timm's configuration says.
        pool: which tokens are kept.
        out_index: feature map of ``features_only``, averaged over its pixels; ``None``: the
            network's own output.
        mpp: micrometres per pixel that the authors recommend, where the card says so.
    """

    hub: str
    architecture: str
    licence: str
    dim: int | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    hub_arguments: Mapping[str, Any] = field(default_factory=dict)
    input_size: int | Literal["tile", "network"] = 224
    resize: int | None = None
    mean: tuple[float, ...] | None = IMAGENET_MEAN
    std: tuple[float, ...] | None = IMAGENET_STD
    pool: Pool = "model"
    out_index: int | None = None
    mpp: float | None = None


_VIRCHOW = {"img_size": 224, "init_values": 1e-5, "mlp_ratio": 5.3375, **SWIGLU}
_H_OPTIMUS = {"img_size": 224, "init_values": 1e-5, "global_pool": "token"}
_UNI2 = {
    "img_size": 224,
    "patch_size": 14,
    "depth": 24,
    "num_heads": 24,
    "init_values": 1e-5,
    "embed_dim": 1536,
    "mlp_ratio": 2.66667 * 2,
    "no_embed_class": True,
    "reg_tokens": 8,
    "dynamic_img_size": True,
    **SWIGLU,
}

PRESETS: Mapping[str, Preset] = {
    "resnet50_layer3": Preset(
        hub="resnet50.tv_in1k",
        architecture="resnet50",
        dim=1024,
        licence="BSD-3-Clause (torchvision), trained on ImageNet",
        input_size="tile",
        out_index=3,
        mpp=0.5,
    ),
    "uni": Preset(
        hub="hf-hub:MahmoodLab/UNI",
        architecture="vit_large_patch16_224",
        dim=1024,
        licence="CC-BY-NC-ND-4.0, gated",
        arguments={"img_size": 224, "init_values": 1e-5, "dynamic_img_size": True},
        hub_arguments={"init_values": 1e-5, "dynamic_img_size": True},
        mpp=0.5,
    ),
    "uni2_h": Preset(
        hub="hf-hub:MahmoodLab/UNI2-h",
        architecture="vit_giant_patch14_224",
        dim=1536,
        licence="CC-BY-NC-ND-4.0, gated",
        arguments=_UNI2,
        hub_arguments=_UNI2,
        mpp=0.5,
    ),
    "virchow": Preset(
        hub="hf-hub:paige-ai/Virchow",
        architecture="vit_huge_patch14_224",
        dim=2560,
        licence="Apache-2.0 with additional terms, gated",
        arguments=_VIRCHOW,
        hub_arguments=SWIGLU,
        pool="class_and_mean",
        mpp=0.5,
    ),
    "virchow2": Preset(
        hub="hf-hub:paige-ai/Virchow2",
        architecture="vit_huge_patch14_224",
        dim=2560,
        licence="CC-BY-NC-ND-4.0, gated",
        arguments={**_VIRCHOW, "reg_tokens": 4},
        hub_arguments=SWIGLU,
        pool="class_and_mean",
        mpp=0.5,
    ),
    "h_optimus_0": Preset(
        hub="hf-hub:bioptimus/H-optimus-0",
        architecture="vit_giant_patch14_reg4_dinov2",
        dim=1536,
        licence="Apache-2.0, gated",
        arguments=_H_OPTIMUS,
        hub_arguments={"init_values": 1e-5, "dynamic_img_size": False},
        mean=H_OPTIMUS_MEAN,
        std=H_OPTIMUS_STD,
        mpp=0.5,
    ),
    "h_optimus_1": Preset(
        hub="hf-hub:bioptimus/H-optimus-1",
        architecture="vit_giant_patch14_reg4_dinov2",
        dim=1536,
        licence="CC-BY-NC-ND-4.0, gated",
        arguments=_H_OPTIMUS,
        hub_arguments={"init_values": 1e-5, "dynamic_img_size": False},
        mean=H_OPTIMUS_MEAN,
        std=H_OPTIMUS_STD,
        mpp=0.5,
    ),
    "gigapath": Preset(
        hub="hf-hub:prov-gigapath/prov-gigapath",
        architecture="vit_giant_patch14_dinov2",
        dim=1536,
        licence="Apache-2.0 with restrictions on use, gated",
        arguments={
            "img_size": 224,
            "patch_size": 16,
            "embed_dim": 1536,
            "depth": 40,
            "num_heads": 24,
            "mlp_ratio": 5.33334,
        },
        resize=256,
        mpp=0.5,
    ),
    "phikon": Preset(
        hub="hf-hub:1aurent/vit_base_patch16_224.owkin_pancancer",
        architecture="vit_base_patch16_224",
        dim=768,
        licence="Owkin non-commercial",
        mpp=0.5,
    ),
}
"""Phikon is the conversion for timm of ``owkin/phikon``."""
