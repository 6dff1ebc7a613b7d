"""Token mixers x -> y: blocks that own the projections around an attention or a recurrence."""

from isoattn.core.mixers.base import Mixer
from isoattn.core.mixers.multi_head import MultiHead

__all__ = ["Mixer", "MultiHead"]
