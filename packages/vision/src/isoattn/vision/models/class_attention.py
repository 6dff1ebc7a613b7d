"""Class attention (CaiT) with the behaviour of the released XCiT models.

Shape suffixes: B batch, T = 1 + N tokens with the class token first, C channels, H heads,
D head dimension.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from isoattn.vision.models.layers import MLP, LayerNorm


class ClassAttention(nn.Module):
    """The class token attends over all tokens; only its query is computed: (B, T, C) -> (B, 1, C).

    Source: arXiv 2103.17239 section 3.2.

    Args:
        dim: channels C.
        heads: H, must divide C.
        qkv_bias: bias on the q, k and v projections.

    Raises:
        ValueError: heads does not divide dim.
    """

    def __init__(self, dim: int, heads: int, *, qkv_bias: bool = True) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError(f"heads must divide the embedding: got heads={heads}, dim={dim}")
        self.heads = heads
        self.q = nn.Linear(dim, dim, bias=qkv_bias)
        self.k = nn.Linear(dim, dim, bias=qkv_bias)
        self.v = nn.Linear(dim, dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x_BTC: Tensor) -> Tensor:
        """The class token's update."""
        q = self._split(self.q(x_BTC[:, :1]))
        o_BH1D = F.scaled_dot_product_attention(
            q, self._split(self.k(x_BTC)), self._split(self.v(x_BTC))
        )
        out: Tensor = self.proj(o_BH1D.transpose(1, 2).flatten(2))
        return out

    def weights(self, x_BTC: Tensor) -> Tensor:
        """The attention weights of the class token, (B, H, T); each row sums to 1."""
        q_BH1D, k_BHTD = self._split(self.q(x_BTC[:, :1])), self._split(self.k(x_BTC))
        logits = q_BH1D @ k_BHTD.transpose(-2, -1) / q_BH1D.shape[-1] ** 0.5
        weights_BHT: Tensor = logits.softmax(dim=-1).squeeze(2)
        return weights_BHT

    def _split(self, x_BTC: Tensor) -> Tensor:
        batch, tokens, dim = x_BTC.shape
        return x_BTC.view(batch, tokens, self.heads, dim // self.heads).transpose(1, 2)


class ClassAttentionBlock(nn.Module):
    """A class-attention layer as the released XCiT weights expect it: (B, T, C) -> (B, T, C).

    Two effects on the patch tokens are in the released code and not in the paper (CaiT leaves
    patch tokens alone): their branch is ``LN1(x)`` itself, so they become ``x + gamma1 * LN1(x)``,
    and the last residual doubles them. There is no stochastic depth here.

    Source: facebookresearch/xcit ``ClassAttentionBlock``.

    Args:
        dim: channels C.
        heads: H.
        mlp_ratio: hidden width of the MLP over C.
        eta: initial LayerScale.
        tokens_norm: True: the second norm replaces all tokens; False: the class token only. A
            property of the weights: it must travel with the checkpoint.
        qkv_bias: bias on the projections.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        mlp_ratio: float = 4.0,
        eta: float = 1.0,
        tokens_norm: bool = True,
        qkv_bias: bool = True,
    ) -> None:
        super().__init__()
        self.tokens_norm = tokens_norm
        self.norm1 = LayerNorm(dim)
        self.attn = ClassAttention(dim, heads, qkv_bias=qkv_bias)
        self.norm2 = LayerNorm(dim)
        self.mlp = MLP(dim, mlp_ratio)
        self.gamma1 = nn.Parameter(torch.full((dim,), eta))
        self.gamma2 = nn.Parameter(torch.full((dim,), eta))

    def forward(self, x_BTC: Tensor) -> Tensor:
        """Update all tokens."""
        normed = self.norm1(x_BTC)
        patches = torch.addcmul(x_BTC[:, 1:], normed[:, 1:], self.gamma1)
        if self.tokens_norm:
            patches = self.norm2(patches)
        return torch.cat([self._class_token(x_BTC, normed), patches * 2], dim=1)

    def class_token(self, x_BTC: Tensor) -> Tensor:
        """The updated class token alone, (B, 1, C): all that the last layer is asked for."""
        return self._class_token(x_BTC, self.norm1(x_BTC))

    def _class_token(self, x_BTC: Tensor, normed_BTC: Tensor) -> Tensor:
        token = torch.addcmul(x_BTC[:, :1], self.attn(normed_BTC), self.gamma1)
        token = self.norm2(token)
        return torch.addcmul(token, self.mlp(token), self.gamma2)
