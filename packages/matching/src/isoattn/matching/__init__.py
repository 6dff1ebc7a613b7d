"""LoFTR-style matching of image pairs, with an attention that can be exchanged."""

from isoattn.matching.data import (
    Aloe,
    BuiltinPairs,
    FolderPairs,
    HomographyOptions,
    HPatches,
    MegaDepth,
    Motorcycle,
    OxfordSequence,
    Pair,
    PairBatch,
    PairData,
    PairsFile,
    PairSource,
    PhotometricOptions,
    ResizeOptions,
    ScanNet,
    collate,
)
from isoattn.matching.files import MatchWriter, read_matches, read_pair_list, write_pair_list
from isoattn.matching.losses import CoarseLossOptions, coarse_loss, fine_loss
from isoattn.matching.matcher_module import FineOptions, MatcherModule, OptimOptions
from isoattn.matching.matches import Matches
from isoattn.matching.metrics import MatchScore, RobustOptions
from isoattn.matching.models import (
    VARIANTS,
    Matcher,
    layers_at,
    make_matcher,
)
from isoattn.matching.supervision import Supervision, supervise
from isoattn.matching.weights import load_weights

__all__ = [
    "VARIANTS",
    "Aloe",
    "BuiltinPairs",
    "CoarseLossOptions",
    "FineOptions",
    "FolderPairs",
    "HPatches",
    "HomographyOptions",
    "MatchScore",
    "MatchWriter",
    "Matcher",
    "MatcherModule",
    "Matches",
    "MegaDepth",
    "Motorcycle",
    "OptimOptions",
    "OxfordSequence",
    "Pair",
    "PairBatch",
    "PairData",
    "PairSource",
    "PairsFile",
    "PhotometricOptions",
    "ResizeOptions",
    "RobustOptions",
    "ScanNet",
    "Supervision",
    "coarse_loss",
    "collate",
    "fine_loss",
    "layers_at",
    "load_weights",
    "make_matcher",
    "read_matches",
    "read_pair_list",
    "supervise",
    "write_pair_list",
]
