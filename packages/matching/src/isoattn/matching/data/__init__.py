"""Pairs of images with ground truth: sources, padded batches, and the data module."""

from isoattn.matching.data.batch import Pair, PairBatch, collate
from isoattn.matching.data.decode import DecodeError, decode_grey
from isoattn.matching.data.frames import ResizeOptions
from isoattn.matching.data.megadepth import MegaDepth
from isoattn.matching.data.module import PairData
from isoattn.matching.data.pairs_file import PairsFile
from isoattn.matching.data.planar import HPatches, OxfordSequence, read_homography
from isoattn.matching.data.sampling import HomographyOptions, PhotometricOptions
from isoattn.matching.data.scannet import ScanNet
from isoattn.matching.data.source import PairSource
from isoattn.matching.data.stereo import Aloe, Motorcycle
from isoattn.matching.data.synthetic import BuiltinPairs, FolderPairs

__all__ = [
    "Aloe",
    "BuiltinPairs",
    "DecodeError",
    "FolderPairs",
    "HPatches",
    "HomographyOptions",
    "MegaDepth",
    "Motorcycle",
    "OxfordSequence",
    "Pair",
    "PairBatch",
    "PairData",
    "PairSource",
    "PairsFile",
    "PhotometricOptions",
    "ResizeOptions",
    "ScanNet",
    "collate",
    "decode_grey",
    "read_homography",
]
