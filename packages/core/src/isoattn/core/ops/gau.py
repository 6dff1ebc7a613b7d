"""Gated attention unit and FLASH (Hua et al. 2022, "Transformer quality in linear time").

Weights are relu(c1 q k^T + b)^2: no softmax, no normaliser. GAU takes them over all keys (eq. 5);
FLASH inside chunks of g tokens, and across chunks q' S with S = c2 sum k'^T v (eq. 7, 8). A causal
token sees its own chunk up to itself and the chunks before. One head; everything is summed in
float32 at least: squares overflow float16 from a logit of 256 on.

Tokens are right-padded: chunks begin at the first token. A pad needs v = 0 and finite keys.

Shape suffixes: B batch, N queries, M keys, D channels of q and k, E of v, T chunks
of g tokens.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from isoattn.core.contract import State
from isoattn.core.ops.blocks import accumulation_dtype

Scaling = Literal["equation", "listing"]
"""``"equation"``: c1 = c2 = 1 (eq. 5, 7, 8). ``"listing"``: appendix D of the paper; GAU has c1 = 1
over the number of visible keys, FLASH c1 = 1 / g and c2 = 1 over the number of keys in S."""


def squared_relu(
    q_ND: Tensor,
    k_MD: Tensor,
    v_ME: Tensor,
    *,
    scale: Tensor | float = 1.0,
    bias_NM: Tensor | None = None,
    seen_NM: Tensor | None = None,
) -> Tensor:
    """relu(scale q k^T + b)^2 v.

    Args:
        q_ND: queries (..., N, D).
        k_MD: keys (..., M, D).
        v_ME: values (..., M, E).
        scale: c1; a number or what broadcasts against (..., N, M).
        bias_NM: b, broadcasting likewise.
        seen_NM: bool, True where the query sees the key.

    Returns:
        (..., N, E) in the accumulation dtype.
    """
    q, k, v = (x.to(accumulation_dtype(v_ME)) for x in (q_ND, k_MD, v_ME))
    logits = q @ k.transpose(-2, -1) * scale
    if bias_NM is not None:
        logits = logits + bias_NM.to(logits.dtype)
    if seen_NM is not None:  # before the square: what a later key would give may be infinite
        logits = logits.masked_fill(~seen_NM, 0.0)
    return logits.relu().square() @ v


def inverse_keys(scaling: Scaling, keys: Tensor, dtype: torch.dtype) -> Tensor | float:
    """c1 or c2 where so many keys are seen; without any the sum is 0 and needs none."""
    return 1.0 if scaling == "equation" else keys.clamp(min=1).to(dtype).reciprocal()


def mixed_chunk(
    q_BND: Tensor,
    k_BND: Tensor,
    linear_q_BND: Tensor,
    linear_k_BND: Tensor,
    v_BNE: Tensor,
    *,
    chunk: int,
    causal: bool,
    scale: float,
    state_scale: Tensor | float,
    bias: Tensor | None = None,
) -> Tensor:
    """FLASH: quadratic inside each chunk, linear across; the last chunk may be shorter.

    Args:
        q_BND: queries of the quadratic part.
        k_BND: its keys.
        linear_q_BND: queries of the linear part.
        linear_k_BND: its keys.
        v_BNE: values, 0 at pads.
        chunk: g.
        causal: a token sees its own chunk up to itself, and whole chunks before.
        scale: c1.
        state_scale: c2; a number or what broadcasts against (B, T, 1, 1), causal or not.
        bias: b inside a chunk, (g, g).

    Returns:
        (B, N, E) in the accumulation dtype.
    """
    tokens = q_BND.shape[1]
    size = chunk if tokens > chunk else max(1, tokens)  # a branch: min() is slow to compile
    inputs = (q_BND, k_BND, linear_q_BND, linear_k_BND, v_BNE)
    wide = accumulation_dtype(v_BNE)
    q, k, linear_q, linear_k, v = (in_chunks(x.to(wide), size) for x in inputs)
    seen = None
    state_BTDE = linear_k.transpose(-2, -1) @ v
    if causal:
        seen = torch.ones(size, size, dtype=torch.bool, device=v.device).tril()
        state_BTDE = F.pad(state_BTDE.cumsum(1)[:, :-1], (0, 0, 0, 0, 1, 0))
    else:
        state_BTDE = state_BTDE.sum(1, keepdim=True)
    bias = None if bias is None else bias[:size, :size]
    out = squared_relu(q, k, v, scale=scale, bias_NM=bias, seen_NM=seen)
    out = out + (linear_q @ state_BTDE) * state_scale
    return out.flatten(1, 2)[:, :tokens]


def in_chunks(x_BND: Tensor, chunk: int) -> Tensor:
    """(B, T, g, D), filled with zeros to whole chunks."""
    chunks = -(-x_BND.shape[1] // chunk)
    x_BND = F.pad(x_BND, (0, 0, 0, chunks * chunk - x_BND.shape[1]))
    return x_BND.reshape(x_BND.shape[0], chunks, chunk, x_BND.shape[2])


def empty_state(k_BND: Tensor, v_BNE: Tensor, chunk: int) -> State:
    """What causal FLASH carries before the first token.

    ``tokens`` (B,) counts those seen; ``matrix`` (B, D, E) is the sum of k'^T v over whole chunks,
    in the accumulation dtype; ``k``, ``linear_k`` and ``v`` hold the unfinished chunk, g rows, 0
    where there is no token yet.
    """
    batch, dim, width = k_BND.shape[0], k_BND.shape[2], v_BNE.shape[2]
    return {
        "tokens": v_BNE.new_zeros(batch, dtype=torch.int64),
        "matrix": v_BNE.new_zeros(batch, dim, width, dtype=accumulation_dtype(v_BNE)),
        "k": k_BND.new_zeros(batch, chunk, dim),
        "linear_k": k_BND.new_zeros(batch, chunk, dim),
        "v": v_BNE.new_zeros(batch, chunk, width),
    }


def extend_mixed_chunk(
    q_BND: Tensor,
    k_BND: Tensor,
    linear_q_BND: Tensor,
    linear_k_BND: Tensor,
    v_BNE: Tensor,
    count_B: Tensor,
    state: State,
    *,
    scale: float,
    scaling: Scaling,
    bias: Tensor | None = None,
) -> tuple[Tensor, State]:
    """Causal FLASH continued; as :func:`mixed_chunk` on all tokens so far.

    Args:
        q_BND: queries of the quadratic part, of the new tokens.
        k_BND: its keys.
        linear_q_BND: queries of the linear part.
        linear_k_BND: its keys.
        v_BNE: values.
        count_B: how many of the N are tokens; the rest are pads.
        state: from :func:`empty_state` or an earlier call; it is not changed.
        scale: c1.
        scaling: which c2.
        bias: b inside a chunk, (g, g).

    Returns:
        (B, N, E) in the accumulation dtype, and the state after the last token.
    """
    new = torch.arange(v_BNE.shape[1], device=v_BNE.device) < count_B[:, None]
    k, linear_k, v = (x.masked_fill(~new[:, :, None], 0.0) for x in (k_BND, linear_k_BND, v_BNE))
    form = _extend_one if v_BNE.shape[1] == 1 else _extend_many
    return form(q_BND, k, linear_q_BND, linear_k, v, count_B, state, scale, scaling, bias)


def _extend_many(
    q: Tensor,
    k: Tensor,
    linear_q: Tensor,
    linear_k: Tensor,
    v: Tensor,
    count_B: Tensor,
    state: State,
    scale: float,
    scaling: Scaling,
    bias: Tensor | None,
) -> tuple[Tensor, State]:
    """The unfinished chunk and the new tokens in one row, in chunks: token j is at filled + j."""
    (batch, tokens, _), chunk, wide = v.shape, state["v"].shape[1], state["matrix"].dtype
    filled_B, before_B = state["tokens"] % chunk, state["tokens"] // chunk
    chunks = (chunk - 1 + tokens) // chunk + 1  # one more than can be filled
    place_BN = filled_B[:, None] + torch.arange(tokens, device=v.device)

    def row(old: Tensor, x: Tensor) -> Tensor:
        old = F.pad(old.to(x.dtype), (0, 0, 0, (chunks - 1) * chunk))
        index = place_BN[:, :, None].expand_as(x)
        return in_chunks(old.scatter(1, index, x), chunk)

    none = q.new_zeros(batch, chunk, q.shape[2])
    rows = {
        "k": row(state["k"], k),
        "linear_k": row(state["linear_k"], linear_k),
        "v": row(state["v"], v),
    }
    keys, linear_keys, values = (x.to(wide) for x in rows.values())
    queries, linear_queries = (row(none, x).to(wide) for x in (q, linear_q))
    sums = (linear_keys.transpose(-2, -1) @ values).cumsum(1)
    sums = state["matrix"][:, None] + F.pad(sums, (0, 0, 0, 0, 1, 0))
    earlier_BT = before_B[:, None] + torch.arange(chunks, device=v.device)
    factor = inverse_keys(scaling, chunk * earlier_BT[:, :, None, None], wide)
    seen = torch.ones(chunk, chunk, dtype=torch.bool, device=v.device).tril()
    out = squared_relu(queries, keys, values, scale=scale, bias_NM=bias, seen_NM=seen)
    out = (out + (linear_queries @ sums[:, :-1]) * factor).flatten(1, 2)
    out = out.gather(1, place_BN[:, :, None].expand(-1, -1, out.shape[2]))

    samples = torch.arange(batch, device=v.device)
    done_B = (filled_B + count_B) // chunk
    after = {name: x[samples, done_B] for name, x in rows.items()}
    return out, {
        "tokens": state["tokens"] + count_B,
        "matrix": sums[samples, done_B],
        **after,
    }


def _extend_one(
    q: Tensor,
    k: Tensor,
    linear_q: Tensor,
    linear_k: Tensor,
    v: Tensor,
    count_B: Tensor,
    state: State,
    scale: float,
    scaling: Scaling,
    bias: Tensor | None,
) -> tuple[Tensor, State]:
    """One token: a row of weights and a product with S. The sum of a chunk is taken as it ends."""
    chunk, wide = state["v"].shape[1], state["matrix"].dtype
    filled_B, before_B = state["tokens"] % chunk, state["tokens"] // chunk
    free_Bg1 = torch.arange(chunk, device=v.device)[:, None] == filled_B[:, None, None]
    buffer = {
        name: torch.where(free_Bg1, x, state[name].to(x.dtype))
        for name, x in (("k", k), ("linear_k", linear_k), ("v", v))
    }
    row = None if bias is None else bias[filled_B].unsqueeze(1)
    out = squared_relu(q, buffer["k"], buffer["v"], scale=scale, bias_NM=row)
    factor = inverse_keys(scaling, chunk * before_B[:, None, None], wide)
    out = out + (linear_q.to(wide) @ state["matrix"]) * factor
    matrix, full_B11 = state["matrix"], (filled_B + count_B == chunk)[:, None, None]
    if torch.compiler.is_compiling() or bool(full_B11.any()):
        total = buffer["linear_k"].to(wide).transpose(-2, -1) @ buffer["v"].to(wide)
        matrix = matrix + total.masked_fill(~full_B11, 0.0)
        buffer = {name: x.masked_fill(full_B11, 0.0) for name, x in buffer.items()}
    return out, {"tokens": state["tokens"] + count_B, "matrix": matrix, **buffer}
