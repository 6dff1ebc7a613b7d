"""Oracles of the attentions that shorten the keys: landmarks and projections."""

from __future__ import annotations

import torch
from torch import Tensor

from isoattn.core.ops.reference.common import doubles
from isoattn.core.ops.reference.direct import softmax


def inverse(a: Tensor, iterations: int | None, norm: Tensor) -> Tensor:
    """Newton-like iterations from A^T / norm, or the pseudo-inverse."""
    if iterations is None:
        exact: Tensor = torch.linalg.pinv(a)
        return exact
    z: Tensor = a.mT / norm
    one = torch.eye(a.shape[-1], dtype=a.dtype)
    for _ in range(iterations):
        az = a @ z
        z = z @ (13 * one - 15 * az + 7 * az @ az - az @ az @ az) / 4
    return z


def _rows(logits: Tensor) -> Tensor:
    weights = torch.exp(logits - logits.detach().amax(-1, keepdim=True))
    return weights / weights.sum(-1, keepdim=True)


def _segments(tokens: int, landmarks: int) -> Tensor:
    """(L, N): the mean of each segment as a matrix."""
    segment = torch.tensor([i * landmarks // tokens for i in range(tokens)])
    member = (segment == torch.arange(landmarks)[:, None]).double()
    return member / member.sum(1, keepdim=True)


def nystrom(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    landmarks: int,
    iterations: int | None,
    key_mask: Tensor | None = None,
    query_mask: Tensor | None = None,
) -> Tensor:
    """Sample by sample on the visible tokens alone; softmax where queries or keys are few."""
    q, k, v = doubles(q, k, v, key_mask)
    everything = torch.ones(q.shape[0], k.shape[2], dtype=torch.bool)
    keys = everything if key_mask is None else key_mask
    if query_mask is None:
        same = q.shape[2] == k.shape[2]
        query_mask = keys if same else torch.ones(q.shape[0], q.shape[2], dtype=torch.bool)
    samples = []
    for b in range(q.shape[0]):
        visible, key, value = q[b][:, query_mask[b]], k[b][:, keys[b]], v[b][:, keys[b]]
        if visible.shape[1] <= landmarks or key.shape[1] <= landmarks:
            samples.append(softmax(q[b : b + 1], key[None], value[None])[0])
            continue
        scale = q.shape[-1] ** -0.5
        q_mean = _segments(visible.shape[1], landmarks) @ visible
        k_mean = _segments(key.shape[1], landmarks) @ key
        a = _rows(scale * q_mean @ k_mean.mT)
        norm = a.sum(-2).amax(-1) * a.sum(-1).amax(-1)
        z = inverse(a, iterations, norm[:, None, None])
        first, third = _rows(scale * q[b] @ k_mean.mT), _rows(scale * q_mean @ key.mT)
        samples.append(first @ (z @ (third @ value)))
    return torch.stack(samples)


def released(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    landmarks: int,
    iterations: int | None,
    key_mask: Tensor | None = None,
) -> Tensor:
    """nystrom-attention 0.0.14: zeros in front, one norm for all, hidden rows uniform."""
    q, k, v = doubles(q, k, v, key_mask)
    batch, _, tokens, dim = q.shape
    mask = torch.ones(batch, tokens, dtype=torch.bool) if key_mask is None else key_mask
    q = q.masked_fill(~mask[:, None, :, None], 0.0)
    length = -(-tokens // landmarks)
    padded = torch.zeros(3, *q.shape[:2], length * landmarks, max(dim, v.shape[3])).double()
    for i, x in enumerate((q, k, v)):
        padded[i, :, :, length * landmarks - tokens :, : x.shape[3]] = x
    q, k, v = padded[0][..., :dim], padded[1][..., :dim], padded[2][..., : v.shape[3]]
    keep = torch.ones(batch, length * landmarks, dtype=torch.bool)  # without a mask pads count
    if key_mask is not None:
        keep[:, : length * landmarks - tokens] = False
        keep[:, length * landmarks - tokens :] = key_mask
    count = keep.view(batch, 1, landmarks, length).sum(3)[..., None]
    divisor = count + (0.0 if key_mask is None else 1e-8)
    q_mean, k_mean = (
        x.reshape(*x.shape[:2], landmarks, length, dim).sum(3) / divisor for x in (q, k)
    )
    kept = count[:, :, :, 0] > 0

    def weights(left: Tensor, right: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        seen = rows[..., :, None] & columns[..., None, :]
        logits = dim**-0.5 * left @ right.mT
        return _rows(logits.masked_fill(~seen, torch.finfo(torch.float64).min))

    a = weights(q_mean, k_mean, kept, kept)
    z = inverse(a, iterations, a.sum(-2).amax() * a.sum(-1).amax())
    first, third = (
        weights(q, k_mean, keep[:, None], kept),
        weights(q_mean, k, kept, keep[:, None]),
    )
    return (first @ (z @ (third @ v)))[:, :, length * landmarks - tokens :]


def authors(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    landmarks: int,
    iterations: int | None,
    key_mask: Tensor | None = None,
) -> Tensor:
    """The authors' code: masked zeros stay in the means, only the third softmax hides keys."""
    q, k, v = doubles(q, k, v, key_mask)
    if min(q.shape[2], k.shape[2]) <= landmarks:
        return softmax(q, k, v, key_mask=key_mask)
    scale = q.shape[-1] ** -0.5
    hidden = torch.zeros(k.shape[0], 1, 1, k.shape[2])
    if key_mask is not None:
        q = q.masked_fill(~key_mask[:, None, :, None], 0.0)
        hidden = hidden.masked_fill(~key_mask[:, None, None, :], -1e9)
    q_mean = _segments(q.shape[2], landmarks) @ q
    k_mean = _segments(k.shape[2], landmarks) @ k
    a = _rows(scale * q_mean @ k_mean.mT)
    z = inverse(a, iterations, a.sum(-2).amax() * a.sum(-1).amax())
    first, third = _rows(scale * q @ k_mean.mT), _rows(scale * q_mean @ k.mT + hidden)
    return first @ (z @ (third @ v))


def token_convolution(v: Tensor, weight_H1K1: Tensor, key_mask: Tensor | None) -> Tensor:
    """Sum over the taps of shifted values; nothing beyond the ends."""
    heads, _, kernel, _ = weight_H1K1.shape
    _, _, v = doubles(v.repeat_interleave(heads // v.shape[1], 1), v, v, key_mask)
    reach, tokens = kernel // 2, v.shape[2]
    out = torch.zeros_like(v)
    for tap in range(kernel):
        shift = tap - reach  # out_i takes v_(i + shift)
        low, high = max(0, -shift), min(tokens, tokens - shift)
        if low < high:
            part = torch.zeros_like(v)
            part[:, :, low:high] = v[:, :, low + shift : high + shift]
            out = out + weight_H1K1.double()[:, :, tap] * part
    return out


def linformer(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    e_STP: Tensor,
    f_STP: Tensor,
    *,
    key_mask: Tensor | None = None,
) -> Tensor:
    """Softmax over the slots, of which each is a sum over the tokens."""
    q, k, v = doubles(q, k, v, key_mask)
    slots_k, slots_v = (
        torch.einsum("hmp,bhmd->bhpd", w[:, : x.shape[2]].double().expand(q.shape[1], -1, -1), x)
        for w, x in ((e_STP, k), (f_STP, v))
    )
    return softmax(q, slots_k, slots_v)
