"""Bags of tile features: files, labels, splits, made data, and the Lightning data module."""

from isoattn.wsi.bags.bag import UNLABELLED, Bag, BagBatch, BagError, grid_cells
from isoattn.wsi.bags.dataset import BagDataset
from isoattn.wsi.bags.files import FeatureFolder
from isoattn.wsi.bags.labels import LabelTable, read_labels
from isoattn.wsi.bags.module import BagData
from isoattn.wsi.bags.split import SplitOptions, class_weights, split_slides
from isoattn.wsi.bags.synthetic import Difficulty, MeetingBags, NeedleBags
from isoattn.wsi.bags.task import BagReader, BagSource, BagTask, Split

__all__ = [
    "UNLABELLED",
    "Bag",
    "BagBatch",
    "BagData",
    "BagDataset",
    "BagError",
    "BagReader",
    "BagSource",
    "BagTask",
    "Difficulty",
    "FeatureFolder",
    "LabelTable",
    "MeetingBags",
    "NeedleBags",
    "Split",
    "SplitOptions",
    "class_weights",
    "grid_cells",
    "read_labels",
    "split_slides",
]
