"""Image classifiers with a swappable attention."""

from isoattn.vision.data import DigitsData, ImageDataModule, MarkedRowData, MnistData
from isoattn.vision.models import (
    VARIANTS,
    ViT,
    XCiT,
    attention_calls,
    count_flops,
    load_weights,
    replaced_attention,
    swap_attention,
    xcit,
)

__all__ = [
    "VARIANTS",
    "DigitsData",
    "ImageDataModule",
    "MarkedRowData",
    "MnistData",
    "ViT",
    "XCiT",
    "attention_calls",
    "count_flops",
    "load_weights",
    "replaced_attention",
    "swap_attention",
    "xcit",
]
