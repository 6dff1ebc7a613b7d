"""What a forward pass over a bag costs: closed forms where they exist, the rest counted.

FLOPs are matrix products and convolutions, a multiply-add as two.

Shape suffixes: n tiles, N = 1 + n + r tokens (class token, tiles, repeats), H heads.
"""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from isoattn.core import Attention, Shape, Zero, replaced_attention
from isoattn.wsi.models.network import BagNetwork
from isoattn.wsi.models.ppeg import SIDE
from isoattn.wsi.models.transmil import TransMIL, repeats


@dataclass(frozen=True)
class Flops:
    """Cost of a forward pass.

    Args:
        total: FLOPs of the whole network.
        attention: of which the attention cores, from their closed forms.
    """

    total: int
    attention: int


def attention_calls(network: BagNetwork, tiles: int) -> list[tuple[Attention, Shape]]:
    """The calls of the attention in one forward pass over a bag; none in a reference.

    Args:
        network: any of this package.
        tiles: of the bag.
    """
    if not isinstance(network, TransMIL):
        return []
    tokens = 1 + tiles + (repeats(tiles) if network.ppeg_kind == "square" else 0)
    calls = []
    for number in range(len(network.layers)):
        layer = network.layer(number)
        dim = layer.qkv.in_features // layer.heads
        last = number == len(network.layers) - 1
        queries = 1 if last and _asks_once(network) else tokens
        size = layer.qkv.weight.itemsize
        shape = Shape(1, layer.heads, queries, tokens, dim, dim, size)
        calls.append((layer.core, shape))
    return calls


def count_flops(network: BagNetwork, tiles: int) -> Flops:
    """Count the FLOPs of a forward pass in evaluation mode over a bag of so many tiles.

    What is not attention is counted on a copy without data, so that a bag of any size costs
    nothing to count; PPEG over true places is 49 multiply-adds for each tile and channel.

    Args:
        network: neither its weights nor its mode are changed.
        tiles: of the bag.
    """
    calls = attention_calls(network, tiles)
    attention = sum(core.cost(shape).forward_flops for core, shape in calls)
    return Flops(_rest(network, tiles) + attention, attention)


@torch.no_grad()
def _rest(network: BagNetwork, tiles: int) -> int:
    bare = copy.deepcopy(network).to("meta").eval()
    bare.input_norm = nn.Identity()
    gathered = 0
    if isinstance(bare, TransMIL):
        bare.cls_only = _asks_once(bare)
        if bare.ppeg_kind == "coords":
            gathered = 2 * SIDE * SIDE * tiles * bare.head.in_features
            bare.ppeg, bare.ppeg_kind = None, "off"
    counter = FlopCounterMode(display=False)
    features = torch.empty(1, tiles, bare.in_dim, device="meta")
    attended = replaced_attention(bare, Zero) if isinstance(bare, TransMIL) else nullcontext()
    with attended, counter:
        bare(features)
    return int(counter.get_total_flops()) + gathered


def _asks_once(network: TransMIL) -> bool:
    """Whether the last attention is asked for the class token alone."""
    own = network.layer(-1).core.capability
    return network.cls_only and own.cross and own.independent_queries
