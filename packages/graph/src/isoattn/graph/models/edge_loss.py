"""The edge regularisation of NodeFormer, in memory of the order of the edges.

Wu et al. 2022, "NodeFormer", eq. 9: -lambda times the mean over edges of log pi_uv / indegree(v).

Shape suffixes: B = 1, H heads, N nodes, D width of a head, E edges.
"""

from __future__ import annotations

import torch
from torch import Tensor

from isoattn.core import Attention
from isoattn.graph.models.pairs import edge_log_prob


def edge_loss(
    attention: Attention,
    q: Tensor,
    k: Tensor,
    edge_index: Tensor,
    segments: Tensor | None = None,
) -> Tensor | None:
    """Mean over edges and heads of log pi(end, start) / indegree(end), to be made large.

    Args:
        attention: of the layer.
        q: (B, H, N, D).
        k: (B, H, N, D).
        edge_index: int64 (2, E), self loops included as the authors do.
        segments: int64 (B, N), graph of each node.

    Returns:
        A scalar, 0 where there is no edge; ``None`` for an attention that needs no term.

    Raises:
        ValueError: an attention without a probability of an edge.
    """
    if not edge_index.shape[1]:
        return q.new_zeros(())
    log_prob = edge_log_prob(attention, q, k, edge_index, segments)
    if log_prob is None:
        return None
    indegree = torch.bincount(edge_index[1], minlength=q.shape[2]).to(log_prob.dtype)
    return (log_prob / indegree[edge_index[1]]).mean()
