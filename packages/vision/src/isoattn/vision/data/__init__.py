"""Image data: decoding, folders, real images that need no download, and the seeded loaders."""

from isoattn.vision.data.builtin import DigitsData, MarkedRowData, MnistData
from isoattn.vision.data.module import ImageDataModule

__all__ = ["DigitsData", "ImageDataModule", "MarkedRowData", "MnistData"]
