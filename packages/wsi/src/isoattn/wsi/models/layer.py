"""One layer of TransMIL: x + W_o (attention + convolution of the values), on normed tokens.

As released (szc19990412/TransMIL models/TransMIL.py with nystrom-attention 0.0.14) there is no
feed-forward block, no bias in W_q, W_k, W_v, and dropout on the output alone.

Shape suffixes: B bags, N tokens (the class token first), D = H E channels, H heads.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isoattn.core import Attention, AttentionFactory, Nystrom, UnsupportedAttention
from isoattn.wsi.models.rows import first_row

TAPS = 33


class ValueConvolution(nn.Module):
    """A depthwise convolution of the values along the tokens, one kernel of 33 taps a head.

    Args:
        heads: H.
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        drawn = nn.Conv2d(heads, heads, (TAPS, 1), groups=heads, bias=False)
        self.weight = drawn.weight

    def forward(self, v_BHNE: Tensor) -> Tensor:
        """The same shape; zeros beyond both ends."""
        return F.conv2d(v_BHNE, self.weight, padding=(TAPS // 2, 0), groups=self.weight.shape[0])

    def first(self, v_BHNE: Tensor) -> Tensor:
        """Its first token alone, (B, H, 1, E)."""
        seen = v_BHNE[:, :, : TAPS // 2 + 1]
        taps = self.weight[:, 0, TAPS // 2 : TAPS // 2 + seen.shape[2]]
        return (seen * taps).sum(2, keepdim=True)


class TransLayer(nn.Module):
    """Attention with projections, norm and residual.

    The projections are made before the attention, whose construction cannot advance torch's
    generator: networks of one seed have bit-equal projections whatever the attention is.

    Args:
        attention: called once as ``attention(heads, dim / heads)``.
        dim: D.
        heads: H.
        dropout: on the output of W_o.
        value_conv: add the convolution of the values.
        mask_pads: tell Nystrom's released form not to see the zero tokens that it puts in front;
            attentions that put none in front have nothing to be told.

    Raises:
        ValueError: heads that do not divide dim.
        UnsupportedAttention: an attention that needs gates, or sees the past only.
    """

    core: Attention

    def __init__(
        self,
        attention: AttentionFactory,
        dim: int,
        heads: int,
        *,
        dropout: float,
        value_conv: bool,
        mask_pads: bool,
    ) -> None:
        super().__init__()
        if heads < 1 or dim % heads:
            raise ValueError(f"heads must divide dim={dim}, got heads={heads}")
        self.heads = heads
        self.mask_pads = mask_pads
        self.norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)
        drawn = ValueConvolution(heads)  # in any case: the switch changes no weight drawn after it
        self.value_conv = drawn if value_conv else None
        with torch.random.fork_rng(devices=[]):
            self.core = attention(heads, dim // heads)
        _check(self.core)

    def forward(self, x_BND: Tensor) -> Tensor:
        """All tokens, (B, N, D)."""
        q, k, v = self._project(self.norm(x_BND))
        mixed = self.core(q, k, v, key_mask=self._mask(x_BND))
        if self.value_conv is not None:
            mixed = mixed + self.value_conv(v)
        return x_BND + self._merge(mixed)

    def class_token(self, x_BND: Tensor, *, one_query: bool) -> Tensor:
        """What :meth:`forward` makes of the first token, (B, 1, D), without work for the others.

        Args:
            x_BND: all tokens.
            one_query: let the attention compute one query alone too, where each output depends on
                its own query only; elsewhere it computes all of them.
        """
        normed = self.norm(x_BND)
        own = self.core.capability
        if one_query and own.cross and own.independent_queries:
            q, k, v = self._project_one(normed)
        else:
            q, k, v = self._project(normed)
        mixed = self.core(q, k, v, key_mask=self._mask(x_BND))[:, :, :1]
        if self.value_conv is not None:
            mixed = mixed + self.value_conv.first(v)
        return x_BND[:, :1] + self._merge(mixed)

    def class_row(self, x_BND: Tensor) -> tuple[Tensor, Tensor]:
        """Weights of the class token on all tokens (B, H, N), and on zero tokens in front (B, H).

        The convolution of the values, which shows the class token the 16 tokens after it, is no
        part of them.
        """
        q, k, _ = self._project(self.norm(x_BND))
        return first_row(self.core, q, k, self._mask(x_BND))

    def inverse_residual(self, x_BND: Tensor) -> Tensor | None:
        """Largest |A Z A - A| of Nystrom's inverse in each head, (B, H); ``None`` for others."""
        if not isinstance(self.core, Nystrom):
            return None
        q, k, _ = self._project(self.norm(x_BND))
        return self.core.inverse_residual(q, k, key_mask=self._mask(x_BND))

    def _project(self, x_BND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self._split(self.qkv(x_BND), 3)
        return q, k, v

    def _project_one(self, x_BND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        dim = x_BND.shape[2]
        weight = self.qkv.weight
        (q,) = self._split(F.linear(x_BND[:, :1], weight[:dim]), 1)
        k, v = self._split(F.linear(x_BND, weight[dim:]), 2)
        return q, k, v

    def _split(self, x: Tensor, parts: int) -> tuple[Tensor, ...]:
        return x.view(*x.shape[:2], parts, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)

    def _merge(self, mixed_BHNE: Tensor) -> Tensor:
        out: Tensor = self.dropout(self.out(mixed_BHNE.transpose(1, 2).flatten(2)))
        return out

    def _mask(self, x_BND: Tensor) -> Tensor | None:
        if not self.mask_pads or not isinstance(self.core, Nystrom):
            return None
        return x_BND.new_ones(x_BND.shape[:2], dtype=torch.bool)


def _check(core: Attention) -> None:
    own, name = core.capability, type(core).__name__
    if own.log_decay != "none" or own.in_gate:
        raise UnsupportedAttention(f"{name} needs gates, which TransMIL does not compute")
    if not own.bidirectional:
        reason = core.unsupported.get("bidirectional", "it is causal")
        raise UnsupportedAttention(
            f"{name} lets no token see those after it ({reason}); the class token comes first, so "
            "it would see no tile"
        )
