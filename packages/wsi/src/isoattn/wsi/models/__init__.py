"""Bag networks: TransMIL with a swappable attention, and references without one."""

from isoattn.wsi.models.abmil import ABMIL
from isoattn.wsi.models.flops import Flops, attention_calls, count_flops
from isoattn.wsi.models.network import BagNetwork
from isoattn.wsi.models.pooling import MaxPooling, MeanPooling
from isoattn.wsi.models.ppeg import PPEG
from isoattn.wsi.models.transmil import RELEASED, ClassRows, TransMIL
from isoattn.wsi.models.weights import (
    KeyReport,
    WeightsError,
    from_published,
    load_weights,
    read_weights,
)

__all__ = [
    "ABMIL",
    "PPEG",
    "RELEASED",
    "BagNetwork",
    "ClassRows",
    "Flops",
    "KeyReport",
    "MaxPooling",
    "MeanPooling",
    "TransMIL",
    "WeightsError",
    "attention_calls",
    "count_flops",
    "from_published",
    "load_weights",
    "read_weights",
]
