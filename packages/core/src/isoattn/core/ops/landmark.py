"""Nystrom attention: softmax attention through landmarks (Xiong et al. 2021, eq. 13-15).

With q~, k~ the means of m segments of tokens and s = D^-1/2,
o = softmax(s q k~^T) Z (softmax(s q~ k^T) v), Z an approximate inverse of A = softmax(s q~ k~^T).
Multiplied from the right nothing is larger than tokens x m, and both large softmaxes run in torch's
fused kernel, which does not even hold that. Weights may be negative.

Shape suffixes: as in :mod:`isoattn.core.contract`; L landmarks, R rows read out.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from isoattn.core.ops.blocks import accumulation_dtype
from isoattn.core.ops.masking import zero_masked

Compat = Literal["none", "nystrom-attention", "authors"]

RELEASED_EPS = 1e-8
"""What nystrom-attention adds to the number of tokens behind a masked mean."""


class Plan(NamedTuple):
    """All that does not depend on v. Masks are bool, True = seen, and broadcast; None sees all."""

    q_BHND: Tensor
    k_BGMD: Tensor
    q_mean_BHLD: Tensor
    k_mean_BHLD: Tensor
    a_BHLL: Tensor
    inverse_BHLL: Tensor
    tokens_see: Tensor | None
    """(B, 1, N or 1, L): which landmarks a query sees."""
    landmarks_see: Tensor | None
    """(B, 1, L or 1, M): which keys a landmark sees."""
    few_keys_B: Tensor | None = None
    """Samples with at most L keys: each key is a landmark, softmax is exact."""
    key_slot_BM: Tensor | None = None
    few_queries_B: Tensor | None = None
    query_slot_BN: Tensor | None = None
    front: int = 0
    """Zero tokens in front of the sequence."""


def exact(queries: int, keys: int, landmarks: int, compat: Compat) -> bool:
    """Whether the sizes alone say that softmax attention itself is taken."""
    if compat == "nystrom-attention":
        return queries == 0
    return queries <= landmarks or keys <= landmarks


def slots(mask_BN: Tensor, landmarks: int) -> tuple[Tensor, Tensor]:
    """Segment floor(rank L / valid) of each visible token, L for the others; and who has few.

    Returns:
        int64 (B, N), and bool (B,): True where a sample has at most L visible tokens.
    """
    count_B1 = mask_BN.sum(1, keepdim=True)
    slot_BN = (mask_BN.cumsum(1) - 1) * landmarks // count_B1.clamp(min=1)
    return slot_BN.where(mask_BN, landmarks), count_B1[:, 0] <= landmarks


def segment_means(x_BHND: Tensor, landmarks: int, slot_BN: Tensor | None = None) -> Tensor:
    """Means over L segments of tokens, (B, H, L, D); 0 where a segment is empty.

    Args:
        x_BHND: in the dtype in which to sum.
        landmarks: L.
        slot_BN: from :func:`slots`; None cuts the N >= L tokens at floor(i L / N).
    """
    batch, heads, tokens, dim = x_BHND.shape
    if slot_BN is None:
        if tokens % landmarks == 0:
            return x_BHND.reshape(batch, heads, landmarks, tokens // landmarks, dim).mean(3)
        slot_N = torch.arange(tokens, device=x_BHND.device) * landmarks // tokens
        sums = x_BHND.new_zeros(batch, heads, landmarks, dim).index_add(2, slot_N, x_BHND)
        count = sums.new_zeros(landmarks).index_add(0, slot_N, sums.new_ones(tokens))
        return sums / count[:, None]
    # One row a token; what is masked falls into a last segment that is not looked at, NaN and all.
    rows = x_BHND.transpose(1, 2).reshape(batch * tokens, heads * dim)
    first = torch.arange(batch, device=x_BHND.device)[:, None] * (landmarks + 1)
    slot = (slot_BN + first).flatten()
    sums = rows.new_zeros(batch * (landmarks + 1), heads * dim).index_add(0, slot, rows)
    count = rows.new_zeros(len(sums)).index_add(0, slot, rows.new_ones(batch * tokens))
    means = (sums / count.clamp(min=1.0)[:, None]).view(batch, landmarks + 1, heads, dim)
    return means[:, :landmarks].transpose(1, 2)


def iterated_inverse(a_BHLL: Tensor, iterations: int, norm: Tensor) -> Tensor:
    """Z <- Z (13 I - A Z (15 I - A Z (7 I - A Z))) / 4 from Z = A^T / norm (eq. 11).

    Args:
        a_BHLL: A, in float32 at least.
        iterations: how often; 0 gives the start.
        norm: ||A||_1 ||A||_inf, broadcasting to A.
    """
    eye = torch.eye(a_BHLL.shape[-1], dtype=a_BHLL.dtype, device=a_BHLL.device)
    z: Tensor = a_BHLL.transpose(-2, -1) / norm
    for _ in range(iterations):
        az = a_BHLL @ z
        z = (z @ (13 * eye - az @ (15 * eye - az @ (7 * eye - az)))) / 4
    return z


def _inverse(a_BHLL: Tensor, iterations: int | None, whole: bool) -> Tensor:
    """Z of A with rows that sum to 1, so that ||A||_inf = 1; ``whole``: one ||A||_1 for all."""
    if iterations is None:  # ill-conditioned, so in float64; the singular values refuse NaN
        finite = a_BHLL.isfinite().all()
        exact: Tensor = torch.linalg.pinv(a_BHLL.double().where(finite, 0.0)).to(a_BHLL.dtype)
        return exact.where(finite, torch.nan)
    columns = a_BHLL.sum(-2).amax(-1)[..., None, None]
    return iterated_inverse(a_BHLL, iterations, columns.amax() if whole else columns)


def _softmax(q: Tensor, k: Tensor, v: Tensor, see: Tensor | None) -> Tensor:
    shared = False
    if k.shape[1] != q.shape[1]:  # a branch: the compiler's comparison is no bool
        shared = True
    return F.scaled_dot_product_attention(q, k, v, attn_mask=see, enable_gqa=shared)


def _heads(x_BGLD: Tensor, heads: int) -> Tensor:
    repeats = heads // x_BGLD.shape[1]
    return x_BGLD if repeats == 1 else x_BGLD.repeat_interleave(repeats, 1)


def _logits(q_mean_BHLD: Tensor, k_mean_BHLD: Tensor) -> Tensor:
    scale: float = q_mean_BHLD.shape[-1] ** -0.5
    return (q_mean_BHLD * scale) @ k_mean_BHLD.transpose(-2, -1)


def _some(mask_BM: Tensor) -> Tensor:
    """(B, 1, 1, M); where all is masked, all is seen: the values there are 0."""
    return (mask_BM | ~mask_BM.any(1, keepdim=True))[:, None, None, :]


def _either(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    return a | b


def plan(
    q_BHND: Tensor,
    k_BGMD: Tensor,
    *,
    landmarks: int,
    iterations: int | None,
    key_mask: Tensor | None,
    query_mask: Tensor | None,
    compat: Compat,
) -> Plan:
    """Landmarks, masks and inverse, for sizes that are not :func:`exact`."""
    accumulate = accumulation_dtype(q_BHND)
    q, k = q_BHND.to(accumulate), zero_masked(k_BGMD, key_mask).to(accumulate)
    if compat == "nystrom-attention":
        return _released(q, k, key_mask, landmarks, iterations)
    if compat == "authors":
        return _authors(q, k, key_mask, landmarks, iterations)
    few_keys = key_slot = few_queries = query_slot = tokens_see = landmarks_see = None
    if key_mask is not None:
        key_slot, few_keys = slots(key_mask, landmarks)
        landmarks_see = _some(key_mask)
        filled = key_mask.new_zeros(len(key_mask), landmarks + 1).scatter(1, key_slot, True)
        tokens_see = _some(filled[:, :landmarks])
        if query_mask is None and q.shape[2] == k.shape[2]:
            query_slot = key_slot
    if query_mask is not None:
        query_slot, few_queries = slots(query_mask, landmarks)
    q_mean, k_mean = (
        segment_means(x, landmarks, slot) for x, slot in ((q, query_slot), (k, key_slot))
    )
    k_mean = _heads(k_mean, q.shape[1])
    a = _logits(q_mean, k_mean).softmax(-1)
    unused = _either(few_keys, few_queries)
    if unused is not None:  # such an A has empty rows: its inverse is not looked at
        eye = torch.eye(landmarks, dtype=a.dtype, device=a.device)
        a = torch.where(unused[:, None, None, None], eye, a)
    return Plan(
        q,
        k,
        q_mean,
        k_mean,
        a,
        _inverse(a, iterations, whole=False),
        tokens_see,
        landmarks_see,
        few_keys,
        key_slot,
        few_queries,
        query_slot,
    )


def _released(
    q: Tensor, k: Tensor, mask: Tensor | None, landmarks: int, iterations: int | None
) -> Plan:
    """As nystrom_attention.py of nystrom-attention 0.0.14: zero tokens in front, see the class."""
    front = -q.shape[2] % landmarks
    q, k = (F.pad(zero_masked(x, mask), (0, 0, front, 0)) for x in (q, k))
    q_mean, k_mean = segment_means(q, landmarks), segment_means(k, landmarks)
    if mask is None:
        k_mean = _heads(k_mean, q.shape[1])
        a = _logits(q_mean, k_mean).softmax(-1)
        inverse = _inverse(a, iterations, whole=True)
        return Plan(q, k, q_mean, k_mean, a, inverse, None, None, front=front)
    mask = F.pad(mask, (front, 0))
    length = mask.shape[1] // landmarks
    count_BL = mask.reshape(len(mask), landmarks, length).sum(2)
    share = (length / (count_BL + RELEASED_EPS).to(q.dtype))[:, None, :, None]
    q_mean, k_mean = q_mean * share, _heads(k_mean * share, q.shape[1])
    kept = count_BL > 0
    hidden = ~(kept[:, None, :, None] & kept[:, None, None, :])
    a = _logits(q_mean, k_mean)
    a = a.masked_fill(hidden, torch.finfo(a.dtype).min).softmax(-1)
    # A hidden row is uniform over all columns there: its query is 0 and so sees all alike.
    return Plan(
        q,
        k,
        q_mean,
        k_mean,
        a,
        _inverse(a, iterations, whole=True),
        kept[:, None, None, :] | ~mask[:, None, :, None],
        mask[:, None, None, :] | ~kept[:, None, :, None],
        front=front,
    )


def _authors(
    q: Tensor, k: Tensor, mask: Tensor | None, landmarks: int, iterations: int | None
) -> Plan:
    """As the authors' attention_nystrom.py: masked zeros stay in the means, see the class."""
    q = zero_masked(q, mask)
    q_mean, k_mean = segment_means(q, landmarks), segment_means(k, landmarks)
    k_mean = _heads(k_mean, q.shape[1])
    a = _logits(q_mean, k_mean).softmax(-1)
    see = None if mask is None else _some(mask)
    return Plan(q, k, q_mean, k_mean, a, _inverse(a, iterations, whole=True), None, see)


def mix(plan: Plan, v_BGME: Tensor) -> Tensor:
    """(B, H, N, E) of values in the accumulation dtype, 0 where masked."""
    v = F.pad(v_BGME, (0, 0, plan.front, 0)) if plan.front else v_BGME
    gathered = _softmax(plan.q_mean_BHLD, plan.k_BGMD, v, plan.landmarks_see)
    values = plan.inverse_BHLL @ gathered
    if plan.few_keys_B is not None:
        heads, landmarks = values.shape[1:3]
        own = _heads(segment_means(v, landmarks, plan.key_slot_BM), heads)
        values = torch.where(plan.few_keys_B[:, None, None, None], own, values)
    out = _softmax(plan.q_BHND, plan.k_mean_BHLD, values, plan.tokens_see)
    if plan.few_queries_B is not None and plan.query_slot_BN is not None:
        # Each query is a landmark, so its row over all keys is already there.
        slot = plan.query_slot_BN.clamp(max=gathered.shape[2] - 1)[:, None, :, None]
        rows = gathered.gather(2, slot.expand(-1, gathered.shape[1], -1, gathered.shape[3]))
        out = torch.where(plan.few_queries_B[:, None, None, None], rows, out)
    return out[:, :, plan.front :]


ROW_BLOCK = 4096
"""Tokens of one block of the read-out."""


def softmax_rows(q_BHRD: Tensor, k_BGMD: Tensor, key_mask: Tensor | None) -> Tensor:
    """Softmax weights (B, H, R, M) of some queries, in float32 at least; 0 where masked."""
    accumulate = accumulation_dtype(q_BHRD)
    k = zero_masked(k_BGMD, key_mask).to(accumulate)
    logits = _logits(q_BHRD.to(accumulate), _heads(k, q_BHRD.shape[1]))
    if key_mask is None:
        return logits.softmax(-1)
    weights = logits.masked_fill(~_some(key_mask), -torch.inf).softmax(-1)
    return weights.masked_fill(~key_mask[:, None, None, :], 0.0)


def weight_rows(plan: Plan, q_BHRD: Tensor, key_mask: Tensor | None) -> Tensor:
    """Rows of the implied matrix, (B, H, R, front + M), without any N x M or L x M numbers.

    Args:
        plan: of the whole sequence.
        q_BHRD: the queries whose rows are wanted.
        key_mask: bool (B, M), as given to :func:`plan`.
    """
    q, k = q_BHRD.to(plan.k_BGMD.dtype), _heads(plan.k_BGMD, q_BHRD.shape[1])
    see = plan.tokens_see
    if see is not None:  # hidden queries see all; what all see is what the visible ones do
        see = see.all(2, keepdim=True)
    first = _logits(q, plan.k_mean_BHLD)
    first = (first if see is None else first.masked_fill(~see, -torch.inf)).softmax(-1)
    rows = _normalised(first @ plan.inverse_BHLL, plan.q_mean_BHLD, k, plan.landmarks_see)
    if key_mask is not None:
        rows = rows.masked_fill(~F.pad(key_mask, (plan.front, 0))[:, None, None, :], 0.0)
    few = _either(plan.few_keys_B, plan.few_queries_B)
    if few is None:
        return rows
    return torch.where(few[:, None, None, None], softmax_rows(q, plan.k_BGMD, key_mask), rows)


def _normalised(left: Tensor, q_mean: Tensor, k: Tensor, see: Tensor | None) -> Tensor:
    """Return left softmax(s q~ k^T), block by block: once for the sums, once for the weights."""

    def logits(tokens: slice) -> Tensor:
        x = _logits(q_mean, k[:, :, tokens])
        return x if see is None else x.masked_fill(~see[..., tokens], -torch.inf)

    blocks = [slice(i, i + ROW_BLOCK) for i in range(0, k.shape[2], ROW_BLOCK)]
    total = torch.stack([logits(b).logsumexp(-1) for b in blocks]).logsumexp(0)[..., None]
    return torch.cat([left @ (logits(b) - total).exp() for b in blocks], -1)


def token_convolution(v_BGME: Tensor, weight_H1K1: Tensor) -> Tensor:
    """Depthwise convolution over the tokens, one odd kernel a head: (B, H, M, E)."""
    heads, _, taps, _ = weight_H1K1.shape
    weight = weight_H1K1.to(v_BGME.dtype)
    return F.conv2d(_heads(v_BGME, heads), weight, padding=(taps // 2, 0), groups=heads)
