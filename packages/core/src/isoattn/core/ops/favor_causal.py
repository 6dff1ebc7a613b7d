"""The causal form of attention with positive features: query i sees the keys j <= i.

Every query of a block sees c, the larger of the maximum m of each feature over earlier tokens and
the exponents of the first key of the block, so against the largest l(q) + c its denominator is at
least 1. Other keys of the block may rise above c by H (:data:`RISE`): all exponents of keys have H
taken off, so that none is above 0, and denominators are at least e^-H, far from underflow. Where a
key rises higher, as may happen at the start if keys are very long, the block is cut into halves,
each with a c of its own, down to single tokens: exact for any numbers. Nothing is taken against a
later key; it can only lead to a cut, which moves last digits.

What earlier tokens left is S = sum phi(k) v^T and z = sum phi(k), against m + H.

Shape suffixes: as in :mod:`isoattn.core.contract`; T tokens of a block, R features.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from isoattn.core.ops.blocks import accumulation_dtype
from isoattn.core.ops.by_blocks import RECURRENCES, Plan, Recurrence, by_blocks
from isoattn.core.ops.masking import zero_masked
from isoattn.core.ops.positive_features import (
    FLOOR,
    Kernel,
    Kind,
    guarded_inverse,
    log_keys,
    log_queries,
)

BLOCK = 128
"""Tokens between two states."""

KINDS: tuple[Kind, ...] = get_args(Kind)

RISE = 30.0
"""H. In float32 e^-2H, of the derivative of a denominator, does not underflow; and keys of standard
normal numbers do not rise so far with any usual head_dim."""

Sums = tuple[Tensor, Tensor, Tensor]
"""S (B, H, R, E) and z (B, H, R), against m + H, and m (B, H, R)."""


def nothing_yet(q_BHND: Tensor, v_BGME: Tensor, features: int) -> Sums:
    """The sums before the first token."""
    batch, heads = q_BHND.shape[:2]
    zeros = q_BHND.new_zeros(batch, heads, features, dtype=accumulation_dtype(v_BGME))
    state = zeros.new_zeros(batch, heads, features, v_BGME.shape[3])
    return state, zeros, torch.full_like(zeros, FLOOR)


def favor_causal(
    q_BHND: Tensor,
    k_BGMD: Tensor,
    v_BGME: Tensor,
    projection_HPD: Tensor,
    kernel: Kernel,
    sums: Sums | None = None,
    *,
    key_mask: Tensor | None = None,
) -> tuple[Tensor, Sums]:
    """Causal attention with positive features from a state; see the module.

    Args:
        q_BHND: queries.
        k_BGMD: keys; G divides H. Later ones than the last query are not read.
        v_BGME: values.
        projection_HPD: rows w of each query head, not differentiated.
        kernel: of the features, without eps unless relu.
        sums: of earlier tokens.
        key_mask: bool (B, M), True = keep.

    Returns:
        (B, H, N, E) in the dtype of v, and the sums after the last token.
    """
    queries = q_BHND.shape[2]
    k, v = (x[:, :, :queries] for x in (k_BGMD, v_BGME))
    mask = None if key_mask is None else key_mask[:, :queries]
    missing = queries - k.shape[2]
    if missing > 0:
        if mask is None:
            mask = torch.ones(k.shape[0], k.shape[2], dtype=torch.bool, device=k.device)
        k, v = (F.pad(x, (0, 0, 0, missing)) for x in (k, v))
        mask = F.pad(mask, (0, missing))
    mask = None if mask is None else mask[:, None, :, None]
    w = kernel.directions(projection_HPD, accumulation_dtype(v))
    first = nothing_yet(q_BHND, v, w.shape[1]) if sums is None else sums
    options = (float(KINDS.index(kernel.kind)), kernel.scale, kernel.eps)
    out, *after = by_blocks("favor", (q_BHND, k, v, mask, w, *first), options)
    return out, (after[0], after[1], after[2])


def _plan(inputs: Sequence[Tensor | None], options: Sequence[float]) -> Plan:
    kernel = Kernel(KINDS[int(options[0])], options[1], options[2])
    return Plan(partial(_block, kernel=kernel), 4, 1, 2, BLOCK, frozenset({2}))


def _empty(inputs: Sequence[Any]) -> Tensor:
    q, _, v, *_ = inputs
    out: Tensor = v.new_empty(*q.shape[:3], v.shape[3])
    return out


def _block(
    tokens: Sequence[Tensor | None],
    shared: Sequence[Tensor | None],
    sums: Sequence[Tensor],
    kernel: Kernel,
) -> tuple[Tensor, Sums]:
    """Outputs (B, H, T, E) of a block, and the sums after it."""
    q, k, v, mask = tokens
    w = shared[0]
    assert q is not None and k is not None and v is not None and w is not None
    w, wide, repeats = w.detach(), sums[0].dtype, q.shape[1] // k.shape[1]
    seen = None if mask is None else mask[:, 0, :, 0]
    key, value = (zero_masked(x, seen).to(wide).repeat_interleave(repeats, 1) for x in (k, v))
    log_q, log_k = log_queries(q.to(wide), w, kernel), log_keys(key, w, kernel, seen)
    out, after = _mixed(log_q, log_k, value, seen, (sums[0], sums[1], sums[2].detach()))
    return out.to(v.dtype), after


def _mixed(
    log_q: Tensor, log_k: Tensor, v: Tensor, seen: Tensor | None, sums: Sums
) -> tuple[Tensor, Sums]:
    """The same from l(q) and l(k) (B, H, T, R), on all of a block or half by half."""
    state, total, m = sums
    count = log_k.shape[2]
    if not count:
        return log_q[..., :1] * v, (state.clone(), total.clone(), m.clone())
    fixed = log_k.detach()
    c, higher = torch.maximum(m, _first(fixed, seen, m)), torch.maximum(m, fixed.amax(2))
    if bool((higher > c + RISE).any()):
        half, outs = count // 2, []
        for n in (slice(half), slice(half, count)):
            hidden = None if seen is None else seen[:, n]
            out, sums = _mixed(log_q[:, :, n], log_k[:, :, n], v[:, :, n], hidden, sums)
            outs.append(out)
        return torch.cat(outs, 2), sums

    # all against c + H, and what stays against its own H above the new maximum
    state, total = _faded((state, total), m - c)
    phi_k = _exp(log_k - (c + RISE).unsqueeze(2))
    if seen is not None:
        phi_k = phi_k.masked_fill(~seen[:, None, :, None], 0.0)
    against_c = log_q + c.unsqueeze(2)
    phi_q = _exp(against_c - against_c.detach().amax(-1, keepdim=True))
    weights = (phi_q @ phi_k.mT).tril()
    top = phi_q @ state + weights @ v
    bottom = phi_q @ total.unsqueeze(-1) + weights.sum(-1, keepdim=True)
    added = (state + phi_k.mT @ v, total + phi_k.sum(2))
    return top * guarded_inverse(bottom), (*_faded(added, c - higher), higher)


def _faded(sums: tuple[Tensor, Tensor], exponent: Tensor) -> tuple[Tensor, Tensor]:
    """S and z times the exponential (B, H, R)."""
    factor = exponent.exp()
    return sums[0] * factor.unsqueeze(-1), sums[1] * factor


def _exp(x: Tensor) -> Tensor:
    """exp(x), and the smallest normal number in place of less, which costs a CPU 50 times more."""
    return x.clamp_min(math.log(torch.finfo(x.dtype).tiny) + 2.0).exp()


def _first(log_k: Tensor, seen: Tensor | None, m: Tensor) -> Tensor:
    """l(k) (B, H, R) of the first token; where no key came before, of the first that is seen.

    Queries before that one see nothing at all then.
    """
    if seen is None:
        return log_k[:, :, 0]
    place = seen.to(torch.int32).argmax(1)[:, None, None, None]
    found = log_k.gather(2, place.expand(-1, m.shape[1], 1, m.shape[2])).squeeze(2)
    return torch.where(m > FLOOR, log_k[:, :, 0], found)


RECURRENCES["favor"] = Recurrence(3, _plan, _empty)
