"""Rows of an all-pair attention in blocks of queries, so that N x N numbers never exist.

Shape suffixes: H heads, N queries, n of a block, M keys, D width of a head, R features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor

from isoattn.core import (
    Attention,
    Favor,
    GumbelFavor,
    GumbelSoftmax,
    Identity,
    Mean,
    Softmax,
    Zero,
)
from isoattn.core.ops import gumbel
from isoattn.core.ops.blocks import accumulation_dtype

Rows = Callable[[slice], Tensor]
"""From a block of queries to their weights (H, n, M); rows sum to 1."""

NUMBERS = 2**22
"""Weights of a block: 16 MiB of float32."""


def rows_of(attention: Attention, q_1HND: Tensor, k_1HMD: Tensor) -> Rows:
    """The weights of softmax or of the kernel that stands for it, without noise.

    Args:
        attention: of a trained layer, in evaluation mode.
        q_1HND: its queries.
        k_1HMD: its keys.

    Raises:
        ValueError: an attention without such weights; says why.
    """
    check_attention(attention)
    if isinstance(attention, Softmax | GumbelSoftmax):
        scale = attention.head_dim**-0.5  # of torch's kernel
        if isinstance(attention, GumbelSoftmax):
            scale = attention.scale
        return _softmax_rows(q_1HND[0], k_1HMD[0], scale)
    assert isinstance(attention, Favor | GumbelFavor)  # check_attention
    logs = gumbel.log_features(
        q_1HND, k_1HMD, attention.projection.rows, attention.kernel, key_mask=None
    )
    return _kernel_rows(logs[0][0], logs[1][0])


def blocks(queries: int, keys: int, heads: int) -> Iterator[slice]:
    """Slices over the queries with at most ``NUMBERS`` weights each, and one query at least."""
    size = max(1, NUMBERS // max(1, heads * keys))
    for start in range(0, queries, size):
        yield slice(start, min(start + size, queries))


def check_attention(attention: Attention) -> None:
    """Refuse an attention that has no weights of pairs to rank.

    Raises:
        ValueError: names it, says why and what to use.
    """
    if not isinstance(attention, Softmax | GumbelSoftmax | Favor | GumbelFavor):
        raise ValueError(
            f"{type(attention).__name__} has no latent graph: it {_reason(attention)}. "
            "GumbelFavor, GumbelSoftmax, Favor and Softmax have one."
        )


def _reason(attention: Attention) -> str:
    if isinstance(attention, Mean):
        return "gives all nodes the same weight, 1/N, so none is stronger than another"
    if isinstance(attention, Zero):
        return "gives no node any weight"
    if isinstance(attention, Identity):
        return "gives each node itself alone"
    if attention.capability.mixes == "channels":
        return "mixes channels, so two nodes have no weight between them"
    return "does not tell the weight of single pairs of nodes"


def _softmax_rows(q_HND: Tensor, k_HMD: Tensor, scale: float) -> Rows:
    wide = accumulation_dtype(q_HND)
    q, k = q_HND.to(wide) * scale, k_HMD.to(wide)
    return lambda n: (q[:, n] @ k.mT).softmax(-1)


def _kernel_rows(log_q_HNR: Tensor, log_k_HMR: Tensor) -> Rows:
    """phi(q_i).phi(k_j) / sum_j, no exponent above 0."""
    top_H1R = log_k_HMR.amax(1, keepdim=True)
    phi_k = (log_k_HMR - top_H1R).exp()
    total_HR1 = phi_k.sum(1, keepdim=True).mT

    def rows(n: slice) -> Tensor:
        joint = log_q_HNR[:, n] + top_H1R
        phi_q = (joint - joint.amax(-1, keepdim=True)).exp()
        return (phi_q / (phi_q @ total_HR1)) @ phi_k.mT

    return rows
