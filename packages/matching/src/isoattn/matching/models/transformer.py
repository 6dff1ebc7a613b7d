"""The transformer of LoFTR over the tokens of two images, with exchangeable attention.

Sun et al. 2021 (arXiv 2104.00680), section 3.2; names and order of zju3dv/LoFTR
``transformer.py``. All projections are in the layers, none in the attention, so every attention
has the same parameters.

Shape suffixes: B batch, N tokens of the image looked from, M tokens of the image looked at,
C channels, H heads, D head dimension (C = H * D).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from isoattn.core import Attention, AttentionFactory

LayerKind = Literal["self", "cross"]
CrossUpdate = Literal["sequential", "parallel"]


class EncoderLayer(nn.Module):
    """``message = LN(merge(attention(x, source)))``, then ``x + LN(MLP([x, message]))``.

    No biases outside the norms, no dropout. The projections are made before the attention, whose
    construction cannot advance torch's generator: matchers of one seed have bit-equal projections
    whatever the attention is.

    Args:
        attention: called once as ``attention(heads, head_dim)``.
        dim: channels C.
        heads: H, must divide C.

    Raises:
        ValueError: heads does not divide dim.
    """

    core: Attention

    def __init__(self, attention: AttentionFactory, dim: int, heads: int) -> None:
        super().__init__()
        if heads < 1 or dim % heads:
            raise ValueError(f"heads must divide the channels: got heads={heads}, dim={dim}")
        self.heads = heads
        self.head_dim = dim // heads
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, dim, bias=False)
        self.v_proj = nn.Linear(dim, dim, bias=False)
        self.merge = nn.Linear(dim, dim, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(2 * dim, 2 * dim, bias=False),
            nn.ReLU(inplace=True),
            nn.Linear(2 * dim, dim, bias=False),
        )
        self.norm1 = nn.LayerNorm(dim)
        self.norm2 = nn.LayerNorm(dim)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.xavier_uniform_(parameter)
        with torch.random.fork_rng(devices=[]):
            self.core = attention(heads, self.head_dim)

    def forward(
        self,
        x_BNC: Tensor,
        source_BMC: Tensor,
        x_mask: Tensor | None = None,
        source_mask: Tensor | None = None,
    ) -> Tensor:
        """Let the tokens x look at the tokens of the source, (B, N, C).

        Args:
            x_BNC: tokens that look.
            source_BMC: tokens looked at; x itself in self-attention.
            x_mask: bool (B, N), True = keep. A padded token gets the message 0.
            source_mask: bool (B, M). A padded token is not seen, even if it holds NaN.
        """
        q_BHND, k_BHMD, v_BHMD = (
            self._heads(project(tokens))
            for project, tokens in (
                (self.q_proj, x_BNC),
                (self.k_proj, source_BMC),
                (self.v_proj, source_BMC),
            )
        )
        o_BHND = self.core(q_BHND, k_BHMD, v_BHMD, key_mask=source_mask)
        message = o_BHND.transpose(1, 2).reshape(x_BNC.shape)
        if x_mask is not None:
            message = message.masked_fill(~x_mask[:, :, None], 0.0)
        message = self.norm1(self.merge(message))
        out: Tensor = x_BNC + self.norm2(self.mlp(torch.cat([x_BNC, message], 2)))
        return out

    def _heads(self, x_BNC: Tensor) -> Tensor:
        return x_BNC.view(*x_BNC.shape[:2], self.heads, self.head_dim).transpose(1, 2)


class PairTransformer(nn.Module):
    """Layers that let each image look at itself and at the other; both share the weights.

    Args:
        attention: of each layer, called as ``attention(heads, head_dim)``, as many as ``kinds``.
        dim: channels C.
        heads: H.
        kinds: ``"self"`` or ``"cross"`` for each layer.
        cross_update: ``"sequential"``: image 1 looks at the image 0 that the same layer has just
            updated, as the published weights were trained, so exchanging the images changes the
            result. ``"parallel"``: both look at the other as it was before the layer.

    Raises:
        ValueError: unknown kind of layer or update, or numbers that do not fit.
    """

    def __init__(
        self,
        attention: Sequence[AttentionFactory],
        dim: int,
        heads: int,
        kinds: Sequence[LayerKind],
        *,
        cross_update: CrossUpdate = "sequential",
    ) -> None:
        super().__init__()
        if cross_update not in ("sequential", "parallel"):
            raise ValueError(
                f"cross_update must be 'sequential' or 'parallel', got {cross_update!r}"
            )
        wrong = [kind for kind in kinds if kind not in ("self", "cross")]
        if wrong or len(attention) != len(kinds):
            raise ValueError(
                "Each layer is 'self' or 'cross' and has its own attention: got the layers "
                f"{list(kinds)} and {len(attention)} attentions"
            )
        self.kinds = tuple(kinds)
        self.cross_update = cross_update
        self.layers = nn.ModuleList(EncoderLayer(factory, dim, heads) for factory in attention)

    def forward(
        self,
        x0_BNC: Tensor,
        x1_BMC: Tensor,
        mask0: Tensor | None = None,
        mask1: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The tokens of both images after all layers.

        Args:
            x0_BNC: tokens of image 0.
            x1_BMC: tokens of image 1.
            mask0: bool (B, N), True = keep.
            mask1: bool (B, M).
        """
        for kind, layer in zip(self.kinds, self.layers, strict=True):
            if kind == "self":
                x0_BNC = layer(x0_BNC, x0_BNC, mask0, mask0)
                x1_BMC = layer(x1_BMC, x1_BMC, mask1, mask1)
                continue
            before = x0_BNC
            x0_BNC = layer(x0_BNC, x1_BMC, mask0, mask1)
            seen = x0_BNC if self.cross_update == "sequential" else before
            x1_BMC = layer(x1_BMC, seen, mask1, mask0)
        return x0_BNC, x1_BMC


def alternating(layers: int) -> list[LayerKind]:
    """``self, cross, self, cross, ...``."""
    return ["cross" if number % 2 else "self" for number in range(layers)]
