"""Self-attention with a swappable core: the one place where a model meets ``isoattn.core``.

Shape suffixes: B batch, N tokens, C channels, H heads, D head dimension (C = H * D).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from isoattn.core import Attention, AttentionFactory, Softmax
from isoattn.core.swap import layer_indices
from isoattn.vision.models.core_keys import hide_core_in_state_dict


class SelfAttention(nn.Module):
    """Fused qkv projection, an attention core, output projection: (B, N, C) -> (B, N, C).

    The projections are created before the core and the core's construction cannot advance torch's
    generator, so models of one seed have bit-equal projections whatever the core is.

    In ``state_dict()`` the core's entries appear without the ``core.`` prefix
    (``attn.temperature``), which is the layout of the released XCiT weights, and are read back in
    the same form.

    Args:
        attention: called once as ``attention(heads, head_dim)``.
        dim: channels C.
        heads: H, must divide C.
        qkv_bias: bias on the qkv projection.

    Raises:
        ValueError: heads does not divide dim.
    """

    core: Attention

    def __init__(
        self, attention: AttentionFactory, dim: int, heads: int, *, qkv_bias: bool = True
    ) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError(f"heads must divide the embedding: got heads={heads}, dim={dim}")
        self.heads = heads
        self.head_dim = dim // heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)
        self.core = self.build_core(attention)
        hide_core_in_state_dict(self)

    def build_core(self, attention: AttentionFactory) -> Attention:
        """A new core of this layer's size on its device, leaving torch's generator untouched."""
        with torch.random.fork_rng(devices=[]):
            core = attention(self.heads, self.head_dim)
        weight = self.proj.weight
        return core.to(device=weight.device, dtype=weight.dtype).train(self.training)

    def forward(self, x_BNC: Tensor) -> Tensor:
        """Mix the tokens (or, for cross-covariance, the channels) of each sample."""
        batch, tokens, dim = x_BNC.shape
        qkv = self.qkv(x_BNC).view(batch, tokens, 3, self.heads, self.head_dim)
        q_BHND, k_BHND, v_BHND = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        o_BHND = self.core(q_BHND, k_BHND, v_BHND)
        out: Tensor = self.proj(o_BHND.transpose(1, 2).reshape(batch, tokens, dim))
        return out


def attention_per_layer(
    attention: AttentionFactory, depth: int, layers: Sequence[int] | None
) -> list[AttentionFactory]:
    """The factory of each of ``depth`` layers: ``attention`` at ``layers``, Softmax elsewhere.

    Args:
        attention: the factory under study.
        depth: number of layers.
        layers: indices 0..depth-1; None = all.

    Raises:
        ValueError: an index out of range.
    """
    chosen = layer_indices(layers, depth)
    return [attention if layer in chosen else Softmax for layer in range(depth)]
