"""isoattn.core: every attention with one contract. Needs torch alone."""

from isoattn.core.attention.big_bird import BigBird
from isoattn.core.attention.controls import Identity, Mean, Zero
from isoattn.core.attention.cross_covariance import CrossCovariance
from isoattn.core.attention.decay import GatedLinear, Retention, StateSpaceDual
from isoattn.core.attention.delta_rule import DeltaRule
from isoattn.core.attention.favor import Favor
from isoattn.core.attention.gated_random_fourier import GatedRandomFourier
from isoattn.core.attention.gumbel_favor import GumbelFavor
from isoattn.core.attention.gumbel_softmax import GumbelSoftmax
from isoattn.core.attention.hgrn2 import HGRN2
from isoattn.core.attention.linear import Linear
from isoattn.core.attention.linformer import Linformer
from isoattn.core.attention.mlstm import MLSTM
from isoattn.core.attention.nystrom import Nystrom
from isoattn.core.attention.random_fourier import RandomFourier
from isoattn.core.attention.rwkv6 import RWKV6
from isoattn.core.attention.sliding_window import SlidingWindow
from isoattn.core.attention.softmax import CosineSoftmax, Softmax
from isoattn.core.contract import Attention, Capability, State, UnsupportedAttention
from isoattn.core.cost import Cost, Shape
from isoattn.core.mixers.gated_attention_unit import GatedAttentionUnit
from isoattn.core.mixers.mamba2 import Mamba2
from isoattn.core.mixers.multi_head import MultiHead
from isoattn.core.mixers.retention_block import MultiScaleRetention
from isoattn.core.mixers.rglru import RGLRU
from isoattn.core.mixers.s4d import S4D
from isoattn.core.mixers.selective_ssm import SelectiveSSM
from isoattn.core.registry import (
    AttentionFactory,
    attention_factory,
    attention_spec,
    attentions,
    find_attention,
)
from isoattn.core.streams import seed_attentions
from isoattn.core.swap import SwapReport, replaced_attention, swap_attention, swappable_layers

__all__ = [
    "Attention",
    "AttentionFactory",
    "BigBird",
    "Capability",
    "CosineSoftmax",
    "Cost",
    "CrossCovariance",
    "DeltaRule",
    "Favor",
    "GatedAttentionUnit",
    "GatedLinear",
    "GatedRandomFourier",
    "GumbelFavor",
    "GumbelSoftmax",
    "HGRN2",
    "Identity",
    "Linear",
    "Linformer",
    "MLSTM",
    "Mamba2",
    "Mean",
    "MultiHead",
    "MultiScaleRetention",
    "Nystrom",
    "RGLRU",
    "RWKV6",
    "RandomFourier",
    "Retention",
    "S4D",
    "SelectiveSSM",
    "Shape",
    "SlidingWindow",
    "Softmax",
    "State",
    "StateSpaceDual",
    "SwapReport",
    "UnsupportedAttention",
    "Zero",
    "attention_factory",
    "attention_spec",
    "attentions",
    "find_attention",
    "replaced_attention",
    "seed_attentions",
    "swap_attention",
    "swappable_layers",
]
