"""TransMIL: a transformer over the tiles of a slide, with any attention of isoattn.core.

Shao et al. 2021, "TransMIL: Transformer based Correlated Multiple Instance Learning for Whole Slide
Image Classification"; equal to the released szc19990412/TransMIL (2,672,146 parameters for 1024
features and two classes) with its defaults.

Shape suffixes: B bags, n tiles, I features, D channels, H heads, C classes; N = 1 + n + r tokens:
class token, tiles, r repeated tiles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isoattn.core import AttentionFactory, Nystrom
from isoattn.wsi.models.input_norm import InputNormName
from isoattn.wsi.models.layer import TransLayer
from isoattn.wsi.models.network import BagNetwork
from isoattn.wsi.models.ppeg import PPEG, PPEGName

RELEASED = partial(Nystrom, landmarks=256, compat="nystrom-attention")
"""The attention of the released model: 256 landmarks, 6 iterations, visible zeros in front."""


@dataclass(frozen=True)
class ClassRows:
    """Where the class token looks in one layer; ``tiles``, ``itself`` and ``pads`` are all of it.

    Args:
        tiles: (H, n), signed, value i of tile i. A tile that fills up the square stands in two
            places and has the sum of both weights.
        itself: (H,), what the class token gives itself.
        pads: (H,), what it gives to the zero tokens that Nystrom's released form puts in front.
        repeated: (H,), how much of ``tiles`` lies on repeats.
    """

    tiles: Tensor
    itself: Tensor
    pads: Tensor
    repeated: Tensor


class TransMIL(BagNetwork):
    """Input map, attention layers with PPEG after the first, class token, output map.

    Args:
        attention: called as ``attention(heads, dim / heads)`` once per layer; ``RELEASED`` is that
            of the released model.
        in_dim: I.
        num_classes: C.
        dim: D.
        heads: H.
        depth: number of layers.
        dropout: on the output of each layer's attention.
        ppeg: ``"square"`` as released: the first tiles are repeated until the bag fills a square,
            and convolved row by row, wherever they lie; ``"coords"``: convolved over their true
            places, without repeats; ``"off"``: neither.
        value_conv: the convolution of 33 taps over the values of each head, of nystrom-attention.
            It depends on the order of the tiles, so it is a switch of its own.
        mask_pads: hide the zeros in front from Nystrom's released form; see
            :class:`~isoattn.wsi.models.layer.TransLayer`.
        cls_only: ask the last attention for the class token's output alone, which is all that is
            read; exact, and O(n) for softmax. Everything around the attention always does so.
        norm: of the features: ``"none"`` as released, ``"layer"`` or ``"standard"``.

    Raises:
        ValueError: a size or an option out of range; says which.
        UnsupportedAttention: an attention that cannot serve here.

    Example:
        >>> logits = TransMIL(RELEASED, 1024, 2)(torch.randn(1, 500, 1024))
    """

    def __init__(
        self,
        attention: AttentionFactory,
        in_dim: int,
        num_classes: int,
        *,
        dim: int = 512,
        heads: int = 8,
        depth: int = 2,
        dropout: float = 0.1,
        ppeg: PPEGName = "square",
        value_conv: bool = True,
        mask_pads: bool = False,
        cls_only: bool = False,
        norm: InputNormName = "none",
    ) -> None:
        super().__init__(in_dim, num_classes, norm)
        if ppeg not in get_args(PPEGName):
            raise ValueError(f"ppeg must be one of {', '.join(get_args(PPEGName))}, got {ppeg!r}")
        if depth < 1 or (depth == 1 and ppeg != "off"):
            raise ValueError(
                "depth must be 2 or more, or 1 with ppeg='off': PPEG comes after the first layer "
                f"and only a later one shows it to the class token; got depth={depth}, "
                f"ppeg={ppeg!r}"
            )
        self.ppeg_kind: PPEGName = ppeg
        self.cls_only = cls_only
        self.input = nn.Linear(in_dim, dim)
        self.cls = nn.Parameter(torch.randn(1, 1, dim))
        self.layers = nn.ModuleList(
            TransLayer(
                attention, dim, heads, dropout=dropout, value_conv=value_conv, mask_pads=mask_pads
            )
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, num_classes)
        self.ppeg = PPEG(dim) if ppeg != "off" else None

    def forward(self, features_BnI: Tensor, cells_Bn2: Tensor | None = None) -> Tensor:
        """Logits (B, C).

        Args:
            features_BnI: bags of one size.
            cells_Bn2: int64, column and row of each tile; for ``ppeg="coords"``.

        Raises:
            ValueError: empty bags, another number of features, or no cells where they are needed.
        """
        x = self.states(features_BnI, cells_Bn2, len(self.layers) - 1)
        cls = self.layer(-1).class_token(x, one_query=self.cls_only)
        logits: Tensor = self.head(self.norm(cls[:, 0]))
        return logits

    def layer(self, number: int) -> TransLayer:
        """A layer; -1 is the last."""
        found = self.layers[number]
        assert isinstance(found, TransLayer)
        return found

    def states(self, features_BnI: Tensor, cells_Bn2: Tensor | None, layers: int) -> Tensor:
        """Tokens (B, N, D) after some layers; after one or more, PPEG has been applied."""
        x = self.tokens(features_BnI)
        cells = self._cells(cells_Bn2)
        for number, layer in enumerate(self.layers[:layers]):
            x = layer(x)
            if number == 0 and self.ppeg is not None:
                x = self.ppeg(x, cells)
        return x

    def tokens(self, features_BnI: Tensor) -> Tensor:
        """Class token, mapped tiles and, for the square, the first ones again: (B, N, D)."""
        x = F.relu(self.input(self.prepared(features_BnI)))
        parts = [self.cls.expand(len(x), -1, -1), x]
        if self.ppeg_kind == "square":
            parts.append(x[:, : repeats(x.shape[1])])
        return torch.cat(parts, 1)

    def class_rows(
        self, features_nI: Tensor, cells_n2: Tensor | None = None, *, layer: int = -1
    ) -> ClassRows:
        """Weights of the class token in a layer, per head; in O(n) of memory, for any attention.

        Args:
            features_nI: one bag.
            cells_n2: its cells, for ``ppeg="coords"``.
            layer: which, from 0; -1 is the last.

        Raises:
            UnsupportedAttention: an attention that mixes channels.
            IndexError: no such layer.
        """
        chosen, number = self.layer(layer), range(len(self.layers))[layer]
        cells = None if cells_n2 is None else cells_n2[None]
        with self.looking():
            x = self.states(features_nI[None], cells, number)
            (row_HN,), (pads_H,) = chosen.class_row(x)
        tiles = len(features_nI)
        again = row_HN[:, 1 + tiles :]
        own = row_HN[:, 1 : 1 + tiles] + F.pad(again, (0, tiles - again.shape[1]))
        return ClassRows(own, row_HN[:, 0], pads_H, again.sum(1))

    def inverse_residual(self, features_nI: Tensor, cells_n2: Tensor | None = None) -> float | None:
        """How far Nystrom's iterations are from an inverse: the largest over layers and heads.

        See :meth:`isoattn.core.Nystrom.inverse_residual`; ``None`` for other attentions. More
        iterations make it small, and not always the error against softmax.
        """
        cells = None if cells_n2 is None else cells_n2[None]
        with self.looking():
            found = [
                self.layer(number).inverse_residual(self.states(features_nI[None], cells, number))
                for number in range(len(self.layers))
            ]
        known = [residual_BH.max() for residual_BH in found if residual_BH is not None]
        return float(torch.stack(known).max()) if known else None

    def cls_attention(self, features_nI: Tensor, cells_n2: Tensor | None = None) -> Tensor:
        """Weights of the class token in the last layer, the mean over heads: (n,), tile by tile.

        Signed for attentions with negative weights, such as Nystrom; what goes to itself and to
        zero tokens in front is left out. A tile that fills up the square has the mean of its two
        weights: their sum would mark the first tiles of each file, whatever is on them.
        """
        weights_n = self.class_rows(features_nI, cells_n2).tiles.mean(0)
        twice = repeats(len(weights_n)) if self.ppeg_kind == "square" else 0
        return torch.cat([weights_n[:twice] / 2, weights_n[twice:]])

    def tile_weights(self, features_nI: Tensor, cells_n2: Tensor | None = None) -> Tensor:
        """:meth:`cls_attention`."""
        return self.cls_attention(features_nI, cells_n2)

    def _cells(self, cells_Bn2: Tensor | None) -> Tensor | None:
        if self.ppeg_kind != "coords":
            return None
        if cells_Bn2 is None:
            raise ValueError(
                "ppeg='coords' needs the places of the tiles, which this bag lacks: make feature "
                "files with coords, or use ppeg='square'"
            )
        return cells_Bn2


def repeats(tiles: int) -> int:
    """How many of the first tiles are repeated to fill the square of side ceil(sqrt(n))."""
    return (math.isqrt(tiles - 1) + 1) ** 2 - tiles
