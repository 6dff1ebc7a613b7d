"""Chunks of the decay engine with one decay a head and token.

Inside a chunk o = (q k^T * M) v, M_ij = exp(sum of the log-decays after j up to i). No exponent is
a difference of two long sums: M grows from blocks of one token, each time two neighbours are
joined by exp(P_i + Q_j), P the sum from the border up to i and Q that after j up to the border.

Shape suffixes: W rows (batch times key heads), T chunks, R query heads a key head, C tokens of a
chunk, D and E dimensions of keys and values.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from isoattn.core.ops.decay_states import scan


def _sums(log_decay_WTC: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """M (W, T, C, C), and e to the sums up to each token, after it (both C), and of all."""
    rows, chunks, tokens = log_decay_WTC.shape
    size = 1
    while size < tokens:
        size *= 2
    total = F.pad(log_decay_WTC, (0, size - tokens)).reshape(-1, 1)
    upto, after = total, torch.zeros_like(total)
    matrix = torch.ones_like(total).unsqueeze(-1)
    half = 1
    while half < size:
        upto, after, matrix = (x.reshape(-1, 2, half, *x.shape[2:]) for x in (upto, after, matrix))
        total = total.reshape(-1, 2, 1)
        corner = torch.exp(upto[:, 1, :, None] + after[:, 0, None, :])
        top = F.pad(matrix[:, 0], (0, half))
        matrix = torch.cat([top, torch.cat([corner, matrix[:, 1]], 2)], 1)
        upto = torch.cat([upto[:, 0], upto[:, 1] + total[:, 0]], 1)
        after = torch.cat([after[:, 0] + total[:, 1], after[:, 1]], 1)
        total = total.sum(1)
        half *= 2
    matrix = matrix.reshape(rows, chunks, size, size)[:, :, :tokens, :tokens]
    upto, after = (x.reshape(rows, chunks, size)[:, :, :tokens].exp() for x in (upto, after))
    return matrix, upto, after, total.reshape(rows, chunks).exp()


def updates(k_WTCD: Tensor, v_WTCE: Tensor, log_decay_WTC: Tensor) -> tuple[Tensor, Tensor]:
    """What a chunk multiplies the state by (W, T, 1, 1), and what it adds (W, T, D, E)."""
    total = log_decay_WTC.sum(-1)
    # the sum after a token, without a difference of long sums
    after = log_decay_WTC.flip(-1).cumsum(-1).flip(-1)
    after = F.pad(after[..., 1:], (0, 1)).exp()
    return total.exp()[..., None, None], _added(k_WTCD, v_WTCE, after)


def _added(k_WTCD: Tensor, v_WTCE: Tensor, after_WTC: Tensor) -> Tensor:
    return (k_WTCD * after_WTC.unsqueeze(-1)).transpose(-2, -1) @ v_WTCE


def forward(
    q_WTRCD: Tensor,
    k_WTCD: Tensor,
    v_WTCE: Tensor,
    log_decay_WTC: Tensor,
    bonus_WRD: Tensor | None,
    state_WDE: Tensor,
) -> tuple[Tensor, Tensor]:
    """Outputs (W, T, R, C, E) and the state after the last chunk, in differentiable operators."""
    matrix, upto, after, total = _sums(log_decay_WTC)
    weights = (q_WTRCD.flatten(2, 3) @ k_WTCD.transpose(-2, -1)).view(*q_WTRCD.shape[:4], -1)
    weights = weights * matrix.unsqueeze(2)
    starts, end = scan(total[..., None, None], _added(k_WTCD, v_WTCE, after), state_WDE)
    read = q_WTRCD * upto[:, :, None, :, None]
    out = weights.flatten(2, 3) @ v_WTCE + read.flatten(2, 3) @ starts
    return out.view(*q_WTRCD.shape[:4], -1), end


def backward(
    grad_WTRCE: Tensor,
    q_WTRCD: Tensor,
    k_WTCD: Tensor,
    v_WTCE: Tensor,
    log_decay_WTC: Tensor,
    bonus_WRD: Tensor | None,
    starts_WTDE: Tensor,
    grad_end_WDE: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, None, Tensor]:
    """Gradients of q, k, v, log_decay, (bonus,) and of the state before the first chunk."""
    shape = q_WTRCD.shape
    matrix, upto, after, total = _sums(log_decay_WTC)
    upto, after = upto[:, :, None, :, None], after.unsqueeze(-1)
    q, grad = q_WTRCD.flatten(2, 3), grad_WTRCE.flatten(2, 3)
    read = (q_WTRCD * upto).flatten(2, 3)
    ends, grad_start = scan(
        total[..., None, None], read.transpose(-2, -1) @ grad, grad_end_WDE, reverse=True
    )

    def masked(x: Tensor) -> Tensor:
        return x.view(*shape[:4], -1).mul_(matrix.unsqueeze(2))

    weights = masked(q @ k_WTCD.transpose(-2, -1)).flatten(2, 3)
    slopes = masked(grad @ v_WTCE.transpose(-2, -1))
    # A token's weight on itself is free of decay. Left out of the sums below it need not cancel.
    own = slopes.diagonal(dim1=-2, dim2=-1).clone().unsqueeze(-1)
    slopes.diagonal(dim1=-2, dim2=-1).zero_()
    slopes = slopes.flatten(2, 3)
    dq = (slopes @ k_WTCD).view(shape)
    dq.addcmul_((grad @ starts_WTDE.transpose(-2, -1)).view(shape), upto)
    from_end = (v_WTCE @ ends.transpose(-2, -1)).mul_(after)
    dk = (slopes.transpose(-2, -1) @ q).add_(from_end)
    dv = (weights.transpose(-2, -1) @ grad).addcmul_(k_WTCD @ ends, after)

    through = (q_WTRCD * dq).sum((2, 4)) - (k_WTCD * dk).sum(-1)
    all_of_it = (k_WTCD * from_end).sum((-2, -1)) + total * (starts_WTDE * ends).sum((-2, -1))
    dlog = from_the_end(through, -1).add_(all_of_it.unsqueeze(-1))
    dq.addcmul_(own, k_WTCD.unsqueeze(2))
    dk.add_((own * q_WTRCD).sum(2))
    return dq, dk, dv, dlog, None, grad_start


def from_the_end(x: Tensor, dim: int) -> Tensor:
    """Sums of each entry and all after it; exactly 0 after the last entry that is not."""
    sums = x.cumsum(dim)
    return x + sums.narrow(dim, -1, 1) - sums
