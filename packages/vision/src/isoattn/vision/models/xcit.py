"""XCiT (arXiv 2106.09681) with a swappable attention, in the key layout of timm's weights.

Shape suffixes: B batch, I input channels, H image rows, W image columns, N = Y * X tokens on the
grid (row-major), T = 1 + N tokens with the class token first, C channels, L classes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from isoattn.core import AttentionFactory
from isoattn.vision.models.class_attention import ClassAttentionBlock
from isoattn.vision.models.grid import Grid
from isoattn.vision.models.layers import MLP, LayerNorm, Residual, init_linear
from isoattn.vision.models.local import LPIKind, make_lpi
from isoattn.vision.models.network import ImageNetwork
from isoattn.vision.models.positions import PositionKind, make_positions
from isoattn.vision.models.self_attention import SelfAttention, attention_per_layer
from isoattn.vision.models.stems import ImageSize, Stem, grid_of, make_stem


class XCiTBlock(nn.Module):
    """Attention, local patch interaction, MLP, each a scaled residual: (B, N, C) -> (B, N, C).

    The numbers of ``norm3``/``gamma3`` (LPI, applied second) and ``norm2``/``gamma2`` (MLP,
    applied last) do not follow the order: they are the names in the released weights.
    With ``lpi="none"`` the whole LPI branch (norm3, gamma3, local_mp) is absent.

    Source: arXiv 2106.09681 section 3.3, facebookresearch/xcit ``XCABlock``.

    Args:
        attention: called once as ``attention(heads, head_dim)``.
        dim: channels C.
        heads: number of heads.
        mlp_ratio: hidden width of the MLP over C.
        eta: initial LayerScale.
        drop_path: stochastic depth of each of the branches.
        lpi: kind of local patch interaction.
        qkv_bias: bias on the qkv projection.
    """

    def __init__(
        self,
        attention: AttentionFactory,
        dim: int,
        heads: int,
        *,
        mlp_ratio: float = 4.0,
        eta: float = 1.0,
        drop_path: float = 0.0,
        lpi: LPIKind = "dw3x3",
        qkv_bias: bool = True,
    ) -> None:
        super().__init__()
        self.norm1 = LayerNorm(dim)
        self.attn = SelfAttention(attention, dim, heads, qkv_bias=qkv_bias)
        self.gamma1 = nn.Parameter(torch.full((dim,), eta))
        self.local_mp = make_lpi(lpi, dim)
        if self.local_mp is not None:
            self.norm3 = LayerNorm(dim)
            self.gamma3 = nn.Parameter(torch.full((dim,), eta))
        self.norm2 = LayerNorm(dim)
        self.mlp = MLP(dim, mlp_ratio)
        self.gamma2 = nn.Parameter(torch.full((dim,), eta))
        self.residual = Residual(drop_path)

    def forward(self, x_BNC: Tensor, grid: Grid) -> Tensor:
        """Update all tokens."""
        x_BNC = self.residual(x_BNC, self.attn(self.norm1(x_BNC)), self.gamma1)
        if self.local_mp is not None:
            x_BNC = self.residual(x_BNC, self.local_mp(self.norm3(x_BNC), grid), self.gamma3)
        out: Tensor = self.residual(x_BNC, self.mlp(self.norm2(x_BNC)), self.gamma2)
        return out


class XCiT(ImageNetwork):
    """Image classifier: (B, I, H, W) -> logits (B, L), for any image size.

    The defaults are a small model for 28-pixel images. ``isoattn.vision.xcit`` builds the
    published variants.

    Args:
        attention: the token mixer of the blocks, called per block as
            ``attention(heads, head_dim)``.
        in_chans: I.
        num_classes: L.
        embed_dim: C.
        depth: number of blocks.
        heads: heads of the blocks and of the class attention; must divide embed_dim.
        patch_size: pixels of a patch; the grid is ceil(H / patch) x ceil(W / patch).
        mlp_ratio: hidden width of the MLPs over C.
        eta: initial LayerScale (released models: 1.0 at depth 12, 1e-5 at depth 24).
        tokens_norm: see :class:`ClassAttentionBlock`; False only in the released nanos.
        cls_layers: class-attention layers; 0 = no class token, mean-pooled head.
        drop_path: stochastic depth, the same in every block, none in the class attention.
        lpi: ``dw3x3`` as published, ``dw1x1`` without neighbours, ``none`` without the branch.
        stem: ``conv`` (patch 2, 4, 8, 16) or ``patchify`` (any patch).
        positions: ``fourier``, ``learned`` (needs image_size) or ``none``.
        position_std: initial standard deviation of learned positions.
        image_size: pixels that learned positions are made for (they are resized to other images);
            read by no other kind of positions.
        attention_layers: indices of the blocks that get ``attention``; the others are plain
            Softmax. None = all.
        qkv_bias: bias on all q, k, v projections.

    Raises:
        ValueError: a combination that cannot be built; says which and what is allowed.

    Example:
        >>> model = XCiT(CrossCovariance, 1, 10)
        >>> model(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        attention: AttentionFactory,
        in_chans: int,
        num_classes: int,
        *,
        embed_dim: int = 48,
        depth: int = 3,
        heads: int = 4,
        patch_size: int = 4,
        mlp_ratio: float = 4.0,
        eta: float = 1.0,
        tokens_norm: bool = True,
        cls_layers: int = 2,
        drop_path: float = 0.0,
        lpi: LPIKind = "dw3x3",
        stem: Stem = "conv",
        positions: PositionKind = "fourier",
        position_std: float = 0.02,
        image_size: ImageSize | None = None,
        attention_layers: list[int] | None = None,
        qkv_bias: bool = True,
    ) -> None:
        super().__init__(in_chans, num_classes, embed_dim, patch_size)
        self.patch_embed = make_stem(stem, in_chans, embed_dim, patch_size)
        self.pos_embed = make_positions(
            positions,
            embed_dim,
            None if image_size is None else grid_of(image_size, patch_size),
            position_std,
        )
        self.blocks = nn.ModuleList(
            XCiTBlock(
                factory,
                embed_dim,
                heads,
                mlp_ratio=mlp_ratio,
                eta=eta,
                drop_path=drop_path,
                lpi=lpi,
                qkv_bias=qkv_bias,
            )
            for factory in attention_per_layer(attention, depth, attention_layers)
        )
        self.cls_attn_blocks = nn.ModuleList(
            ClassAttentionBlock(
                embed_dim,
                heads,
                mlp_ratio=mlp_ratio,
                eta=eta,
                tokens_norm=tokens_norm,
                qkv_bias=qkv_bias,
            )
            for _ in range(cls_layers)
        )
        self.norm = LayerNorm(embed_dim)
        self.head = nn.Linear(embed_dim, num_classes)
        init_linear(self)
        self.cls_token: nn.Parameter | None = None
        if cls_layers:
            self.cls_token = nn.Parameter(torch.empty(1, 1, embed_dim))
            nn.init.trunc_normal_(self.cls_token, std=0.02)

    def forward(self, image_BIHW: Tensor) -> Tensor:
        """Logits (B, L)."""
        x_BNC = self.patch_tokens(image_BIHW)
        if self.cls_token is None:
            pooled_BC = self.norm(x_BNC).mean(dim=1)
        else:
            pooled_BC = self.norm(self._class_token(x_BNC))
        logits: Tensor = self.head(pooled_BC)
        return logits

    def forward_features(self, image_BIHW: Tensor) -> Tensor:
        """All tokens after the last norm: (B, T, C), or (B, N, C) without a class token."""
        x = self.patch_tokens(image_BIHW)
        if self.cls_token is not None:
            x = self._with_class_token(x)
            for block in self.cls_attn_blocks:
                x = block(x)
        features: Tensor = self.norm(x)
        return features

    def class_attention_maps(self, image_BIHW: Tensor) -> Tensor:
        """Where the class token looks, (B, class layers, heads, Y, X).

        The weights on the patches; they sum to one minus the weight on the class token itself.

        Raises:
            ValueError: the model has no class attention.
        """
        if self.cls_token is None:
            raise ValueError(
                "This XCiT has cls_layers=0, so there is no class attention to show. "
                "Build it with cls_layers >= 1."
            )
        grid = self.grid(image_BIHW.shape[-2:])
        x_BTC = self._with_class_token(self.patch_tokens(image_BIHW))
        maps = []
        for block in self.cls_attn_blocks:
            assert isinstance(block, ClassAttentionBlock)
            weights_BHT = block.attn.weights(block.norm1(x_BTC))
            maps.append(weights_BHT[..., 1:].view(*weights_BHT.shape[:2], *grid))
            x_BTC = block(x_BTC)
        return torch.stack(maps, dim=1)

    def patch_tokens(self, image_BIHW: Tensor) -> Tensor:
        """The patch tokens after the last block, (B, N, C), before class attention and norm."""
        x_BNC, grid = self.patch_embed(image_BIHW)
        if self.pos_embed is not None:
            x_BNC = x_BNC + self.pos_embed(grid)
        for block in self.blocks:
            x_BNC = block(x_BNC, grid)
        tokens: Tensor = x_BNC
        return tokens

    def tokens(self, image_size: ImageSize) -> int:
        """Tokens that the swappable attention sees for an image size."""
        rows, columns = self.grid(image_size)
        return rows * columns

    def _class_token(self, x_BNC: Tensor) -> Tensor:
        *earlier, last = self.cls_attn_blocks
        x_BTC = self._with_class_token(x_BNC)
        for block in earlier:
            x_BTC = block(x_BTC)
        assert isinstance(last, ClassAttentionBlock)
        return last.class_token(x_BTC).squeeze(1)

    def _with_class_token(self, x_BNC: Tensor) -> Tensor:
        assert self.cls_token is not None
        return torch.cat([self.cls_token.expand(len(x_BNC), -1, -1), x_BNC], dim=1)
