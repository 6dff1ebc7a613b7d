"""Token mixers x -> y: blocks that own the projections around an attention or a recurrence."""

from isoattn.core.mixers.base import Mixer
from isoattn.core.mixers.gated_attention_unit import GatedAttentionUnit
from isoattn.core.mixers.mamba2 import Mamba2
from isoattn.core.mixers.multi_head import MultiHead
from isoattn.core.mixers.retention_block import MultiScaleRetention
from isoattn.core.mixers.rglru import RGLRU
from isoattn.core.mixers.s4d import S4D
from isoattn.core.mixers.selective_ssm import SelectiveSSM

__all__ = [
    "GatedAttentionUnit",
    "Mamba2",
    "Mixer",
    "MultiHead",
    "MultiScaleRetention",
    "RGLRU",
    "S4D",
    "SelectiveSSM",
]
