"""Chunks of the decay engine with one decay a key channel.

q e^G and k e^-G would overflow, and all pairs of a chunk need C x C x D exponentials. Here each
pair of tokens meets at a border: the chunk is halved again and again, and the queries of a second
half see the keys of the first by (q e^P)(k e^Q)^T, P the sum of the log-decays from the border up
to the query and Q that after the key up to the border. Every exponent is a sum of log-decays, so
none is above 0 and none is a difference; each token takes part once in each of log2(C) products.

Shape suffixes: W rows (batch times key heads), T chunks, R query heads a key head, C tokens of a
chunk (a power of two), D and E dimensions of keys and values.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from isoattn.core.ops.decay_scalar import from_the_end
from isoattn.core.ops.decay_states import scan


def _borders(log_decay_WTCD: Tensor, before: bool) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
    """Size of a half, P and Q of all tokens by halves (W, T, -1, half, D), sums of the halves.

    The last one has the whole chunk as its half. With ``before`` a query is read before the decay
    of its own token.
    """
    tokens = log_decay_WTCD.shape[2]
    total = log_decay_WTCD.unsqueeze(3)
    after = torch.zeros_like(total)
    upto = after if before else total
    half = 1
    while half < tokens:
        yield half, upto, after, total
        (first, second), (left, right) = _halves(total), _halves(upto)
        upto = torch.cat([left, right + first], 3)
        left, right = _halves(after)
        after = torch.cat([left + second, right], 3)
        total = first + second
        half *= 2
    yield half, upto, after, total


def _halves(x: Tensor) -> tuple[Tensor, ...]:
    """Every first and every second block of (W, T, blocks, half, D)."""
    return x[:, :, 0::2], x[:, :, 1::2]


def _first(x: Tensor, half: int) -> Tensor:
    """Tokens of every first half: (W, T, C, D) to (W, T, 1, blocks, half, D)."""
    return x.view(*x.shape[:2], 1, -1, 2, half, x.shape[3])[:, :, :, :, 0]


def _second(x: Tensor, half: int) -> Tensor:
    """Tokens of every second half: (W, T, R, C, D) to (W, T, R, blocks, half, D)."""
    return x.view(*x.shape[:3], -1, 2, half, x.shape[4])[:, :, :, :, 1]


def updates(k_WTCD: Tensor, v_WTCE: Tensor, log_decay_WTCD: Tensor) -> tuple[Tensor, Tensor]:
    """What a chunk multiplies the state by (W, T, D, 1), and what it adds (W, T, D, E)."""
    *_, (_, _, after, total) = _borders(log_decay_WTCD, False)
    return _factor(total), (k_WTCD * after[:, :, 0].exp()).transpose(-2, -1) @ v_WTCE


def _factor(total: Tensor) -> Tensor:
    return total[:, :, 0].exp().transpose(-2, -1)


def forward(
    q_WTRCD: Tensor,
    k_WTCD: Tensor,
    v_WTCE: Tensor,
    log_decay_WTCD: Tensor,
    bonus_WRD: Tensor | None,
    state_WDE: Tensor,
) -> tuple[Tensor, Tensor]:
    """Outputs (W, T, R, C, E) and the state after the last chunk, in differentiable operators."""
    own = _own(q_WTRCD, bonus_WRD) * k_WTCD.unsqueeze(2)
    out = own.sum(-1, keepdim=True) * v_WTCE.unsqueeze(2)
    tokens = k_WTCD.shape[2]
    for half, upto, after, total in _borders(log_decay_WTCD, bonus_WRD is not None):
        if half < tokens:
            query = _second(q_WTRCD, half) * upto[:, :, None, 1::2].exp()
            key = _first(k_WTCD, half) * after[:, :, None, 0::2].exp()
            weights = query @ key.transpose(-2, -1)
            _second(out, half).add_(weights @ _first(v_WTCE, half))
        else:
            query = (q_WTRCD * upto.exp()).flatten(2, 3)
            added = (k_WTCD * after[:, :, 0].exp()).transpose(-2, -1) @ v_WTCE
            starts, state_WDE = scan(_factor(total), added, state_WDE)
            out = out + (query @ starts).view(out.shape)
    return out, state_WDE


def _own(q_WTRCD: Tensor, bonus_WRD: Tensor | None) -> Tensor:
    """What a query sees its own key with."""
    return q_WTRCD if bonus_WRD is None else q_WTRCD * bonus_WRD[:, None, :, None, :]


def backward(
    grad_WTRCE: Tensor,
    q_WTRCD: Tensor,
    k_WTCD: Tensor,
    v_WTCE: Tensor,
    log_decay_WTCD: Tensor,
    bonus_WRD: Tensor | None,
    starts_WTDE: Tensor,
    grad_end_WDE: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor]:
    """Gradients of q, k, v, log_decay, bonus, and of the state before the first chunk."""
    dq, dk, dv = (torch.zeros_like(x) for x in (q_WTRCD, k_WTCD, v_WTCE))
    tokens, before = k_WTCD.shape[2], bonus_WRD is not None
    whole = None
    for half, upto, after, total in _borders(log_decay_WTCD, before):
        if half == tokens:
            whole = upto, after[:, :, 0], total
            break
        reach, fade = upto[:, :, None, 1::2].exp(), after[:, :, None, 0::2].exp()
        query, key = _second(q_WTRCD, half) * reach, _first(k_WTCD, half) * fade
        grad, value = _second(grad_WTRCE, half), _first(v_WTCE, half)
        weights = query @ key.transpose(-2, -1)
        slopes = grad @ value.transpose(-2, -1)
        _second(dq, half).addcmul_(slopes @ key, reach)
        from_grad = (slopes.transpose(-2, -1) @ query).sum(2, keepdim=True)
        _first(dk, half).addcmul_(from_grad, fade)
        _first(dv, half).add_((weights.transpose(-2, -1) @ grad).sum(2, keepdim=True))
    assert whole is not None
    upto, after, total = whole[0].exp(), whole[1].exp(), _factor(whole[2])
    grad = grad_WTRCE.flatten(2, 3)
    read = (q_WTRCD * upto).flatten(2, 3)
    ends, grad_start = scan(total, read.transpose(-2, -1) @ grad, grad_end_WDE, reverse=True)
    dq.addcmul_((grad @ starts_WTDE.transpose(-2, -1)).view(dq.shape), upto)
    from_end = (v_WTCE @ ends.transpose(-2, -1)).mul_(after)
    dk.add_(from_end)
    dv.add_((k_WTCD * after) @ ends)

    # A token's weight on itself is free of decay: it joins after these sums.
    at_query, at_key = (q_WTRCD * dq).sum(2), k_WTCD * dk
    if before:
        at_query = F.pad(at_query[:, :, 1:], (0, 0, 0, 1))
    all_of_it = (k_WTCD * from_end).sum(2) + (total * starts_WTDE * ends).sum(-1)
    dlog = from_the_end(at_query - at_key, 2).add_(all_of_it.unsqueeze(2))
    own = (grad_WTRCE * v_WTCE.unsqueeze(2)).sum(-1, keepdim=True)
    query, key = _own(q_WTRCD, bonus_WRD), k_WTCD.unsqueeze(2)
    dq.addcmul_(own, _own(key, bonus_WRD))
    dk.add_((own * query).sum(2))
    dv.add_(((query * key).sum(-1, keepdim=True) * grad_WTRCE).sum(2))
    dbonus = None if bonus_WRD is None else (own * q_WTRCD * key).sum((1, 3))
    return dq, dk, dv, dlog, dbonus, grad_start
