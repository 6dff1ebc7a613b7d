"""The matcher and its parts."""

from isoattn.matching.models.backbone import PatchStem, ResidualStem, ResNetFPN
from isoattn.matching.models.coarse import ImageFeatures
from isoattn.matching.models.fine import Refinement
from isoattn.matching.models.flops import Flops, attention_calls, count_flops
from isoattn.matching.models.matcher import Matcher
from isoattn.matching.models.nearest import CellMatches
from isoattn.matching.models.swap import layers_at
from isoattn.matching.models.transformer import EncoderLayer, PairTransformer
from isoattn.matching.models.variants import VARIANTS, Variant, make_matcher

__all__ = [
    "VARIANTS",
    "CellMatches",
    "EncoderLayer",
    "Flops",
    "ImageFeatures",
    "Matcher",
    "PairTransformer",
    "PatchStem",
    "Refinement",
    "ResNetFPN",
    "ResidualStem",
    "Variant",
    "attention_calls",
    "count_flops",
    "layers_at",
    "make_matcher",
]
