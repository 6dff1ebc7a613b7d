"""LoFTR-style matching of image pairs, with an attention that can be exchanged."""

from isoattn.matching.matches import Matches
from isoattn.matching.models import (
    VARIANTS,
    Matcher,
    layers_at,
    make_matcher,
)
from isoattn.matching.weights import load_weights

__all__ = [
    "VARIANTS",
    "Matcher",
    "Matches",
    "load_weights",
    "layers_at",
    "make_matcher",
]
