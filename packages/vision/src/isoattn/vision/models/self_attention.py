"""Self-attention with a swappable core: the one place where a model meets ``isoattn.core``.

Shape suffixes: B batch, N tokens, C channels, H heads, D head dimension (C = H * D).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _IncompatibleKeys

from isoattn.core import Attention, AttentionFactory, Softmax

_PROJECTIONS = ("qkv", "proj")


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
        _hook(self)

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


def _hook(layer: Any) -> None:
    """Typed as Any because torch leaves these three methods untyped."""
    layer.register_state_dict_post_hook(_hide_core_prefix)
    layer.register_load_state_dict_pre_hook(_restore_core_prefix)
    layer.register_load_state_dict_post_hook(_hide_core_prefix_of_missing)


def _hide_core_prefix(
    module: nn.Module, state: dict[str, Any], prefix: str, _metadata: dict[str, Any]
) -> None:
    for key in [k for k in state if k.startswith(f"{prefix}core.")]:
        inner = key.removeprefix(f"{prefix}core.")
        if inner.split(".")[0] not in _PROJECTIONS:
            state[prefix + inner] = state.pop(key)


def _restore_core_prefix(
    module: nn.Module,
    state: dict[str, Any],
    prefix: str,
    _metadata: Mapping[str, Any],
    _strict: bool,
    _missing: list[str],
    _unexpected: list[str],
    _errors: list[str],
) -> None:
    for key in [k for k in state if k.startswith(prefix)]:
        inner = key.removeprefix(prefix)
        if inner.split(".")[0] not in (*_PROJECTIONS, "core"):
            state[f"{prefix}core.{inner}"] = state.pop(key)


def _hide_core_prefix_of_missing(module: nn.Module, keys: _IncompatibleKeys) -> None:
    """Report ``attn.temperature`` rather than a name that appears in no file."""
    for names in (keys.missing_keys, keys.unexpected_keys):
        names[:] = [
            name.replace(".core.", ".").removeprefix("core.") if "core." in name else name
            for name in names
        ]


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
    if layers is None:
        return [attention] * depth
    wrong = [layer for layer in layers if not 0 <= layer < depth]
    if wrong:
        raise ValueError(
            f"attention layers {wrong} do not exist: the model has layers 0 to {depth - 1}"
        )
    return [attention if layer in layers else Softmax for layer in range(depth)]
