"""ViT / DeiT (arXiv 2010.11929, 2012.12877) with a swappable attention, in timm's key layout.

Shape suffixes: B batch, I input channels, H image rows, W image columns, N = Y * X tokens on the
grid (row-major), T = tokens that the blocks see, C channels, L classes.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from isoattn.core import AttentionFactory
from isoattn.vision.models.layers import MLP, LayerNorm, Residual, init_linear
from isoattn.vision.models.network import ImageNetwork
from isoattn.vision.models.positions import resize_positions
from isoattn.vision.models.self_attention import SelfAttention, attention_per_layer
from isoattn.vision.models.stems import ImageSize, PatchifyStem, grid_of

Pool = Literal["cls", "mean"]


class ViTBlock(nn.Module):
    """Attention, then MLP, each a pre-norm residual: (B, T, C) -> (B, T, C).

    Args:
        attention: called once as ``attention(heads, head_dim)``.
        dim: channels C.
        heads: number of heads.
        mlp_ratio: hidden width of the MLP over C.
        drop_path: stochastic depth of both branches.
        qkv_bias: bias on the qkv projection.
    """

    def __init__(
        self,
        attention: AttentionFactory,
        dim: int,
        heads: int,
        *,
        mlp_ratio: float = 4.0,
        drop_path: float = 0.0,
        qkv_bias: bool = True,
    ) -> None:
        super().__init__()
        self.norm1 = LayerNorm(dim)
        self.attn = SelfAttention(attention, dim, heads, qkv_bias=qkv_bias)
        self.norm2 = LayerNorm(dim)
        self.mlp = MLP(dim, mlp_ratio)
        self.residual = Residual(drop_path)

    def forward(self, x_BTC: Tensor) -> Tensor:
        """Update all tokens."""
        x_BTC = self.residual(x_BTC, self.attn(self.norm1(x_BTC)))
        out: Tensor = self.residual(x_BTC, self.mlp(self.norm2(x_BTC)))
        return out


class ViT(ImageNetwork):
    """Image classifier: (B, I, H, W) -> logits (B, L).

    The defaults are a small model for 28-pixel images; DeiT-Ti is ``embed_dim=192, depth=12,
    heads=3, patch_size=16, image_size=224``.

    Args:
        attention: the token mixer of the blocks, called per block as
            ``attention(heads, head_dim)``.
        in_chans: I.
        num_classes: L.
        image_size: pixels the learned positions are made for; for other sizes they are resized.
        embed_dim: C.
        depth: number of blocks.
        heads: must divide embed_dim.
        patch_size: pixels of a patch.
        mlp_ratio: hidden width of the MLPs over C.
        drop_path: stochastic depth of the last block; rises linearly from 0 (as in DeiT).
        pool: ``cls`` reads the class token, which takes part in every block; ``mean`` has none
            and averages the tokens before the last norm (timm's ``fc_norm``).
        attention_layers: indices of the blocks that get ``attention``; the others are plain
            Softmax. None = all.
        qkv_bias: bias on the qkv projections.

    Raises:
        ValueError: a combination that cannot be built; says which and what is allowed.
    """

    def __init__(
        self,
        attention: AttentionFactory,
        in_chans: int,
        num_classes: int,
        *,
        image_size: ImageSize = 28,
        embed_dim: int = 48,
        depth: int = 3,
        heads: int = 4,
        patch_size: int = 4,
        mlp_ratio: float = 4.0,
        drop_path: float = 0.0,
        pool: Pool = "cls",
        attention_layers: list[int] | None = None,
        qkv_bias: bool = True,
    ) -> None:
        super().__init__(in_chans, num_classes, embed_dim, patch_size)
        if pool not in ("cls", "mean"):
            raise ValueError(f"pool must be 'cls' or 'mean', got {pool!r}")
        self.pool = pool
        self.position_grid = grid_of(image_size, patch_size)
        self.patch_embed = PatchifyStem(in_chans, embed_dim, patch_size)
        self.blocks = nn.ModuleList(
            ViTBlock(
                factory,
                embed_dim,
                heads,
                mlp_ratio=mlp_ratio,
                drop_path=drop_path * index / max(depth - 1, 1),
                qkv_bias=qkv_bias,
            )
            for index, factory in enumerate(attention_per_layer(attention, depth, attention_layers))
        )
        # the names tell which came first: norm then pool (cls), pool then norm (mean)
        if pool == "cls":
            self.norm = LayerNorm(embed_dim)
        else:
            self.fc_norm = LayerNorm(embed_dim)
        self.head = nn.Linear(embed_dim, num_classes)
        init_linear(self)
        rows, columns = self.position_grid
        places = rows * columns + (pool == "cls")
        self.pos_embed = nn.Parameter(torch.empty(1, places, embed_dim))
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        self.cls_token: nn.Parameter | None = None
        if pool == "cls":
            self.cls_token = nn.Parameter(torch.empty(1, 1, embed_dim))
            nn.init.trunc_normal_(self.cls_token, std=0.02)

    def forward(self, image_BIHW: Tensor) -> Tensor:
        """Logits (B, L)."""
        x_BTC = self._blocks(image_BIHW)
        if self.pool == "cls":
            pooled_BC = self.norm(x_BTC[:, 0])
        else:
            pooled_BC = self.fc_norm(x_BTC.mean(dim=1))
        logits: Tensor = self.head(pooled_BC)
        return logits

    def forward_features(self, image_BIHW: Tensor) -> Tensor:
        """All tokens (B, T, C), after the last norm where the model norms before it pools."""
        x_BTC = self._blocks(image_BIHW)
        if self.pool == "mean":
            return x_BTC
        features: Tensor = self.norm(x_BTC)
        return features

    def tokens(self, image_size: ImageSize) -> int:
        """Tokens that the swappable attention sees for an image size, class token included."""
        rows, columns = self.grid(image_size)
        return rows * columns + (self.cls_token is not None)

    def _blocks(self, image_BIHW: Tensor) -> Tensor:
        x, grid = self.patch_embed(image_BIHW)
        if self.cls_token is None:
            x = x + resize_positions(self.pos_embed, self.position_grid, grid)
        else:
            places = resize_positions(self.pos_embed[:, 1:], self.position_grid, grid)
            token = (self.cls_token + self.pos_embed[:, :1]).expand(len(x), -1, -1)
            x = torch.cat([token, x + places], dim=1)
        for block in self.blocks:
            x = block(x)
        tokens: Tensor = x
        return tokens
