"""Image classifiers with a swappable attention."""

from isoattn.vision.data import (
    DecodeError,
    DigitsData,
    ImageDataModule,
    ImageFolderData,
    MarkedRowData,
    MnistData,
    PredictFolder,
)
from isoattn.vision.models import (
    VARIANTS,
    ViT,
    XCiT,
    attention_calls,
    count_flops,
    load_weights,
    xcit,
)

__all__ = [
    "VARIANTS",
    "DecodeError",
    "DigitsData",
    "ImageDataModule",
    "ImageFolderData",
    "MarkedRowData",
    "MnistData",
    "PredictFolder",
    "ViT",
    "XCiT",
    "attention_calls",
    "count_flops",
    "load_weights",
    "xcit",
]
