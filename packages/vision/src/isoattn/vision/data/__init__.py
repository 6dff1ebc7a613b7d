"""Image data: decoding, folders, real images that need no download, and the seeded loaders."""

from isoattn.vision.data.builtin import DigitsData, MarkedRowData, MnistData
from isoattn.vision.data.decode import DecodeError, decode
from isoattn.vision.data.folder_module import ImageFolderData
from isoattn.vision.data.module import ImageDataModule
from isoattn.vision.data.pictures import PredictFolder

__all__ = [
    "DecodeError",
    "DigitsData",
    "ImageDataModule",
    "ImageFolderData",
    "MarkedRowData",
    "MnistData",
    "PredictFolder",
    "decode",
]
