"""XCiT and ViT on any attention of ``isoattn.core``; weights, swaps and costs."""

from isoattn.vision.models.flops import Flops, attention_calls, count_flops
from isoattn.vision.models.network import ImageNetwork
from isoattn.vision.models.self_attention import SelfAttention
from isoattn.vision.models.variants import VARIANTS, Variant, xcit
from isoattn.vision.models.vit import ViT
from isoattn.vision.models.weight_names import WeightsError
from isoattn.vision.models.weights import KeyReport, load_weights
from isoattn.vision.models.xcit import XCiT

__all__ = [
    "VARIANTS",
    "Flops",
    "ImageNetwork",
    "KeyReport",
    "SelfAttention",
    "Variant",
    "ViT",
    "WeightsError",
    "XCiT",
    "attention_calls",
    "count_flops",
    "load_weights",
    "xcit",
]
