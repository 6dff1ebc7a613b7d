"""What matching a pair costs: closed forms of the attention, counted FLOPs of the rest.

FLOPs are matrix products and convolutions, a multiply-add as two.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from isoattn.core import Attention, Shape, Zero, swap_attention, swappable_layers
from isoattn.matching.models.cells import grid_of
from isoattn.matching.models.fine import WINDOW
from isoattn.matching.models.matcher import Matcher
from isoattn.matching.models.nearest import CellMatches

ImageSize = tuple[int, int]
"""Rows and columns in pixels."""


@dataclass(frozen=True)
class Flops:
    """Cost of matching.

    Args:
        total: FLOPs of the whole matcher.
        attention: of which the attention cores, from their closed forms.
    """

    total: int
    attention: int


def attention_calls(
    matcher: Matcher, size0: ImageSize, size1: ImageSize, *, batch: int = 1, matches: int = 0
) -> list[tuple[str, Attention, Shape]]:
    """The calls of the attention in one forward pass: (layer name, core, shape), two a layer.

    Args:
        matcher: any.
        size0: of images 0.
        size1: of images 1.
        batch: pairs.
        matches: refined, of all pairs together.
    """
    tokens = [rows * columns for rows, columns in (grid_of(*size0), grid_of(*size1))]
    itemsize = next(matcher.parameters()).itemsize
    kinds = matcher.loftr_coarse.kinds
    calls = []
    for name, site in swappable_layers(matcher).items() if kinds or matcher.has_fine else ():
        fine, core = name.startswith("loftr_fine"), site.core
        if fine and not matches:
            continue
        cross = not fine and kinds[int(name.rsplit(".", 1)[1])] == "cross"
        first, second = (WINDOW**2, WINDOW**2) if fine else tokens
        samples = matches if fine else batch
        for queries, other in ((first, second), (second, first)):
            keys = other if cross else queries
            width = core.head_dim
            shape = Shape(samples, core.heads, queries, keys, width, width, itemsize)
            calls.append((name, core, shape))
    return calls


@torch.no_grad()
def count_flops(
    matcher: Matcher, size0: ImageSize, size1: ImageSize, *, batch: int = 1, matches: int = 0
) -> Flops:
    """Count the FLOPs of a forward pass by running it on shapes alone (the meta device).

    The matrix of confidences counts once, as the dense form makes it.

    Args:
        matcher: neither its weights nor its mode are changed.
        size0: of images 0.
        size1: of images 1.
        batch: pairs.
        matches: refined, of all pairs together.
    """
    calls = attention_calls(matcher, size0, size1, batch=batch, matches=matches)
    attention = sum(core.cost(shape).forward_flops for _, core, shape in calls)
    shadow = copy.deepcopy(matcher).to("meta").eval()
    if calls:
        swap_attention(shadow, Zero)
    images = (torch.empty(batch, 1, *size, device="meta") for size in (size0, size1))
    dtype = next(matcher.parameters()).dtype
    index = torch.zeros(matches, dtype=torch.int64, device="meta")
    counter = FlopCounterMode(display=False)
    with sdpa_kernel(SDPBackend.MATH), counter:
        grey = (image.to(dtype) for image in images)
        x0, x1 = shadow.attend(*shadow.features_of_pair(*grey, fine=matches > 0))
        shadow.log_confidence(x0, x1)
        if matches:
            cells = CellMatches(index, index, index, torch.empty(matches, device="meta"))
            shadow.refine(x0, x1, cells)
    return Flops(counter.get_total_flops() + attention, attention)
