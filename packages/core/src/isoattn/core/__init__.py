"""isoattn.core: every attention with one contract. Needs torch alone."""

from isoattn.core.contract import Attention, Capability, UnsupportedAttention
from isoattn.core.cost import Cost, Shape
from isoattn.core.registry import (
    AttentionFactory,
    attention_factory,
    attention_spec,
    attentions,
    find_attention,
)

__all__ = [
    "Attention",
    "AttentionFactory",
    "Capability",
    "Cost",
    "Shape",
    "UnsupportedAttention",
    "attention_factory",
    "attention_spec",
    "attentions",
    "find_attention",
]
