"""What an attention says of single pairs of nodes: probability of an edge, strongest nodes.

Shape suffixes: B = 1, H heads, N nodes, D width of a head, E edges.
"""

from __future__ import annotations

import torch
from torch import Tensor

from isoattn.core import Attention, Favor, Identity, Mean, Softmax, Zero
from isoattn.core.attention.key_noise import KeyNoise
from isoattn.core.ops import gumbel, softmax_pairs


def edge_log_prob(
    attention: Attention,
    q: Tensor,
    k: Tensor,
    edge_index: Tensor,
    segments: Tensor | None = None,
) -> Tensor | None:
    """Log of the weight that the target of each edge gives to its source, without noise.

    GumbelFavor, GumbelSoftmax, Softmax and Favor as they define it; Mean: log 1/N, without
    gradient; Zero and Identity, which mix nothing: none.

    Args:
        attention: of the layer.
        q: (B, H, N, D).
        k: (B, H, N, D).
        edge_index: int64 (2, E).
        segments: int64 (B, N), graph of each node.

    Returns:
        (B, H, E), or ``None`` where the attention has no such weight and needs no term.

    Raises:
        ValueError: an attention without a known weight of a pair; says what to do.
    """
    if isinstance(attention, KeyNoise):
        return attention.edge_log_prob(q, k, edge_index, segments=segments)
    if isinstance(attention, Softmax):
        scale = attention.head_dim**-0.5
        return softmax_pairs.edge_log_prob(q, k, edge_index, scale=scale, segments_BN=segments)
    if isinstance(attention, Favor):
        logs = gumbel.log_features(q, k, attention.projection.rows, attention.kernel, None)
        return gumbel.edge_log_prob(*logs, edge_index, segments)
    if isinstance(attention, Mean):
        return _uniform(q, edge_index, segments)
    if isinstance(attention, Zero | Identity):
        return None
    raise ValueError(
        f"{type(attention).__name__} gives no probability of an edge: set edge_reg to 0, or use "
        "GumbelFavor, GumbelSoftmax, Favor, Softmax, Mean or Zero"
    )


def top_k(attention: Attention, q: Tensor, k: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The strongest nodes of each node, of one graph: weights, falling, and their numbers.

    Args:
        attention: of the layer.
        q: (B, H, N, D).
        k: (B, H, N, D).
        count: nodes for each node.

    Returns:
        Both (B, H, N, count).

    Raises:
        ValueError: an attention that weighs no nodes or all alike; a count out of range.
    """
    if isinstance(attention, KeyNoise):
        return attention.top_k(q, k, count)
    if not isinstance(attention, Softmax | Favor):
        raise ValueError(
            f"{type(attention).__name__} has no strongest nodes: a latent graph needs GumbelFavor, "
            "GumbelSoftmax, Favor or Softmax"
        )
    if not 1 <= count <= k.shape[2]:
        raise ValueError(f"count must be from 1 to the {k.shape[2]} keys, got {count}")
    with torch.no_grad():
        if isinstance(attention, Softmax):
            scale = attention.head_dim**-0.5
            return softmax_pairs.strongest_keys(q, k, count, scale=scale)
        logs = gumbel.log_features(q, k, attention.projection.rows, attention.kernel, None)
        return gumbel.strongest_keys(*logs, count)


def _uniform(q: Tensor, edge_index: Tensor, segments: Tensor | None) -> Tensor:
    batch, heads, nodes, _ = q.shape
    if segments is None:
        size = q.new_full((batch, nodes), float(nodes))
    else:
        _, place, counts = torch.unique(segments, return_inverse=True, return_counts=True)
        size = counts.to(q.dtype)[place]
    return -size.log()[:, None, edge_index[1]].expand(-1, heads, -1)
