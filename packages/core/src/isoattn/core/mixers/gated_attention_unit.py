"""Gated attention unit (GAU) and its linear-time form FLASH (Hua et al. 2022).

Shape suffixes: B batch, N tokens, C channels, D channels of q and k, E channels of u and v.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isoattn.core.contract import Capability, State
from isoattn.core.cost import Cost
from isoattn.core.mixers.base import Mixer
from isoattn.core.mixers.checks import check_tokens, zero_pads
from isoattn.core.mixers.costs import check_call, projection_flops, rotary_numbers, whole
from isoattn.core.ops.blocks import accumulation_dtype
from isoattn.core.ops.gau import (
    Scaling,
    empty_state,
    extend_mixed_chunk,
    inverse_keys,
    mixed_chunk,
    squared_relu,
)
from isoattn.core.ops.masking import no_autocast
from isoattn.core.ops.relative_bias import t5_buckets
from isoattn.core.ops.rotary import ranks, rotate
from isoattn.core.ops.segments import over_segments

BUCKETS = 32
"""Of the relative bias; they reach to a distance of 128."""


class GatedAttentionUnit(Mixer):
    """y = W_o (u * o), u, v = silu(W x), o = relu(c1 q k^T + b)^2 v (+ q' S in FLASH).

    z = silu(W_z x) has key_dim channels, and q, k (FLASH also q', k') are gamma z + beta, a cheap
    scale and offset each. One head; the gate u takes the part of the others.

    With ``chunk=None`` the weights run over all keys (GAU, eq. 5) and the state grows with the
    tokens. With a chunk of g tokens (FLASH, eq. 7 and 8; the paper uses 256) they run inside chunks
    and S = c2 sum k'^T v across them, over all chunks or, where causal, over those before. Its
    state is one matrix and the unfinished chunk. Chunks are counted in kept tokens, so any length
    and any mask will do, and a causal token never sees the sum of its own chunk.

    gamma starts at N(0, 0.02^2) and beta at 0, as in the listing: the weights are then close to 0.

    Args:
        dim: channels C.
        expansion: E / C.
        key_dim: D.
        chunk: g, or ``None`` for quadratic attention over everything.
        scaling: ``"listing"`` as the paper's appendix D: c1 = 1 / n for GAU, 1 / g for FLASH, and
            c2 = 1 / n; n counts the valid keys that a token sees (where causal those up to it, in
            c2 those of earlier chunks), never pads or a maximal length. ``"equation"``: both 1, as
            eq. 5 to 8 are written; outputs grow with the length.
        rotary: turn q and k by the token's rank among the kept ones (interleaved, all channels).
        relative_bias: a learned b of the distance inside the quadratic part, in T5's buckets;
            starts at 0.
        bias: whether the projections have one.

    Raises:
        ValueError: a size below 1, or an unknown scaling.

    Example:
        >>> flash = GatedAttentionUnit(64, key_dim=32, chunk=16, rotary=True)
        >>> y = flash(torch.randn(2, 50, 64), causal=True)
    """

    def __init__(
        self,
        dim: int,
        *,
        expansion: float = 2.0,
        key_dim: int = 128,
        chunk: int | None = None,
        scaling: Scaling = "listing",
        rotary: bool = False,
        relative_bias: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__(dim)
        width = int(dim * expansion)
        if width < 1 or key_dim < 1 or (chunk is not None and chunk < 1):
            raise ValueError(
                "GatedAttentionUnit needs expansion * dim, key_dim and chunk of at least 1, "
                f"got expansion={expansion}, key_dim={key_dim}, chunk={chunk}"
            )
        if scaling not in get_args(Scaling):
            raise ValueError(
                f"scaling must be one of {', '.join(get_args(Scaling))}, got {scaling!r}"
            )
        self.chunk = chunk
        self.scaling: Scaling = scaling
        self.rotary = rotary
        self.hidden = nn.Linear(dim, 2 * width, bias=bias)
        self.base = nn.Linear(dim, key_dim, bias=bias)
        parts = 2 if chunk is None else 4
        self.gamma = nn.Parameter(torch.empty(parts, key_dim).normal_(std=0.02))
        self.beta = nn.Parameter(torch.zeros(parts, key_dim))
        self.out = nn.Linear(width, dim, bias=bias)
        self.relative_bias: nn.Parameter | None = None
        if relative_bias:
            self.relative_bias = nn.Parameter(torch.zeros(BUCKETS))
        ranked = chunk is not None or rotary or relative_bias
        state: Literal["constant", "growing"] = "growing" if chunk is None else "constant"
        self.capability = Capability(
            causal=True, state=state, positions="rank" if ranked else "none", normalised=False
        )
        self.unsupported = {"cross": "queries, keys and values share one projection of x"}

    no_weight_decay = frozenset({"gamma", "beta"})

    def forward(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
        segments: Tensor | None = None,
    ) -> Tensor:
        """Mix tokens.

        Args:
            x: (B, N, C).
            mask: bool (B, N), True = keep; the outputs of the others are 0.
            causal: token i sees the tokens j <= i only.
            segments: integer ids (B, N), not decreasing along a row, of packed samples; each gives
                what it gives alone. Not under ``torch.compile(fullgraph=True)``.

        Returns:
            (B, N, C).

        Raises:
            ValueError: shapes or dtypes that do not fit; names them.
        """
        check_tokens(type(self).__name__, self.dim, x, mask)
        if segments is not None:

            def alone(x: Tensor, key_mask: Tensor | None) -> Tensor:
                return self.forward(x[:, 0], mask=key_mask, causal=causal)[:, None]

            return over_segments(alone, segments, {"x": x[:, None]}, mask)[:, 0]
        if self.chunk is None:
            return self._quadratic(x, mask, causal, None)[0]
        x, order, count_B = _kept_first(x, mask)
        u, v, (q, k, linear_q, linear_k) = self._project(
            x, torch.arange(x.shape[1], device=x.device)
        )
        scale, state_scale = self._scales(x, count_B, causal)
        if count_B is not None:
            v = zero_pads(v, torch.arange(x.shape[1], device=x.device) < count_B[:, None])
        with no_autocast(x.device.type):
            out = mixed_chunk(
                q,
                k,
                linear_q,
                linear_k,
                v,
                chunk=self.chunk,
                causal=causal,
                scale=scale,
                state_scale=state_scale,
                bias=self._bias(self.chunk, causal),
            )
        return _put_back(self._merge(u, out), order, mask)

    def extend(
        self, x: Tensor, state: State | None = None, *, mask: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Continue the causal form after the tokens a state remembers.

        Args:
            x: the new tokens (B, N, C).
            state: from an earlier call; ``None`` at the beginning. It is not changed.
            mask: bool (B, N), True = keep.

        Returns:
            (B, N, C) and the state after the last token.

        Raises:
            ValueError: shapes or dtypes that do not fit; names them.
        """
        check_tokens(type(self).__name__, self.dim, x, mask)
        if self.chunk is None:
            return self._quadratic(x, mask, True, state)
        x, order, count_B = _kept_first(x, mask)
        place = torch.arange(x.shape[1], device=x.device)
        if state is not None:
            place = place + state["tokens"][:, None]
        u, v, (q, k, linear_q, linear_k) = self._project(x, place)
        state = empty_state(k, v, self.chunk) if state is None else state
        if count_B is None:
            count_B = state["tokens"].new_full((x.shape[0],), x.shape[1])
        with no_autocast(x.device.type):
            out, state = extend_mixed_chunk(
                q,
                k,
                linear_q,
                linear_k,
                v,
                count_B,
                state,
                scale=self._scales(x, None, True)[0],
                scaling=self.scaling,
                bias=self._bias(self.chunk, True),
            )
        return _put_back(self._merge(u, out), order, mask), state

    def cost(self, batch: int, tokens: int, *, causal: bool = False, itemsize: int = 4) -> Cost:
        """As :meth:`Mixer.cost`: three projections and the products of each chunk, filled up.

        GAU multiplies all N x N pairs, also where causal, and keeps them twice (before and after
        the square). FLASH does so inside chunks, and keeps a matrix S a chunk.
        """
        check_call(self, batch, tokens, causal)
        rows, wide = batch * tokens, max(4, itemsize)
        width, dim = self.out.in_features, self.base.out_features
        size = tokens if self.chunk is None else min(self.chunk, tokens)
        chunks = -(-tokens // size)
        pairs, padded = batch * chunks * size**2, batch * chunks * size
        forward = 2 * pairs * (dim + width)
        narrow = rows * (2 * width + 2 * dim + 2 * width)  # into silu and z; u; into W_o
        numbers = 2 * pairs + padded * (len(self.gamma) * dim + width) + rows * width
        if self.chunk is None:
            state = batch * (8 + tokens * (8 + (dim + width) * itemsize))
        else:
            forward += 4 * padded * dim * width
            shared = batch == 1 and not causal  # S of all chunks is one memory
            numbers += (1 if shared else batch * chunks) * dim * width
            state = batch * (8 + dim * width * wide + self.chunk * (2 * dim + width) * itemsize)
        numbers += self._factors(batch, tokens, chunks, causal)
        if self.rotary:
            places = rows if self.chunk is None else tokens
            numbers += rotary_numbers(places, dim, len(self.gamma))
        saved = narrow * itemsize + numbers * wide + (size**2 if causal else 0)  # a bool a pair
        if self.relative_bias is not None:  # the bucket of each pair
            saved += 8 * (tokens if self.chunk is None else self.chunk) ** 2
        return whole(
            self,
            rows,
            itemsize,
            projected=projection_flops(rows, self.hidden, self.base, self.out),
            forward=forward,
            backward=2 * forward,
            saved=saved,
            state=state,
        )

    def _factors(self, batch: int, tokens: int, chunks: int, causal: bool) -> int:
        """Numbers in c1 of GAU or c2 of FLASH."""
        if self.scaling == "equation":
            return 0
        if not causal:
            return batch
        return batch * tokens if self.chunk is None else chunks

    def extra_repr(self) -> str:
        """Sizes and options shown by ``print(module)``."""
        return (
            f"dim={self.dim}, key_dim={self.gamma.shape[1]}, chunk={self.chunk}, "
            f"scaling={self.scaling!r}, rotary={self.rotary}"
        )

    def _project(self, x: Tensor, place: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Both u and v, and q, k or q, k, q', k'."""
        u, v = F.silu(self.hidden(x)).chunk(2, -1)
        z = F.silu(self.base(x))
        parts = torch.addcmul(self.beta.to(z.dtype), z.unsqueeze(-2), self.gamma.to(z.dtype))
        found = parts.unbind(-2)
        if self.rotary:
            found = tuple(rotate(y, place) for y in found)
        return u, v, found

    def _merge(self, u: Tensor, out: Tensor) -> Tensor:
        y: Tensor = self.out((u.to(out.dtype) * out).to(u.dtype))
        return y

    def _scales(
        self, x: Tensor, count_B: Tensor | None, causal: bool
    ) -> tuple[float, Tensor | float]:
        """c1 and c2 of FLASH."""
        assert self.chunk is not None
        scale = 1.0 if self.scaling == "equation" else 1.0 / self.chunk
        if causal:
            chunks = -(-x.shape[1] // self.chunk) if x.shape[1] > self.chunk else 1
            keys = self.chunk * torch.arange(chunks, device=x.device)
        else:
            keys = _counts(x, count_B)[:, None]
        return scale, inverse_keys(self.scaling, keys[..., None, None], accumulation_dtype(x))

    def _quadratic(
        self, x: Tensor, mask: Tensor | None, causal: bool, state: State | None
    ) -> tuple[Tensor, State]:
        """GAU over the new tokens and those of the state; pads have v = 0."""
        x = zero_pads(x, mask)
        keep = x.new_ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
        place_BN = ranks(keep)
        if state is not None:
            place_BN = place_BN + state["tokens"][:, None]
        u, v, (q, k) = self._project(x, place_BN)
        k, v = zero_pads(k, mask), zero_pads(v, mask)
        places_BM, earlier = place_BN, 0
        if state is not None:
            k, v = torch.cat([state["k"], k], 1), torch.cat([state["v"], v], 1)
            places_BM, earlier = torch.cat([state["place"], place_BN], 1), state["k"].shape[1]
        # what a token sees, for the listing's c1
        keys = place_BN + 1 if causal else keep.sum(1, keepdim=True)
        seen = None
        if causal:
            seen = k.new_ones(x.shape[1], k.shape[1], dtype=torch.bool).tril(earlier)
        with no_autocast(x.device.type):
            out = squared_relu(
                q,
                k,
                v,
                scale=inverse_keys(self.scaling, keys.unsqueeze(-1), accumulation_dtype(x)),
                bias_NM=self._place_bias(place_BN, places_BM, mask is None, causal),
                seen_NM=seen,
            )
        tokens = keep.sum(1) if state is None else state["tokens"] + keep.sum(1)
        after = {"tokens": tokens, "place": places_BM, "k": k, "v": v}
        return zero_pads(self._merge(u, out), mask), after

    def _place_bias(
        self, queries_BN: Tensor, keys_BM: Tensor, alike: bool, causal: bool
    ) -> Tensor | None:
        if self.relative_bias is None:
            return None
        if alike:  # every sample has the same places
            queries_BN, keys_BM = queries_BN[:1], keys_BM[:1]
        distance = queries_BN[:, :, None] - keys_BM[:, None, :]
        return self.relative_bias[t5_buckets(distance, causal=causal, buckets=BUCKETS)]

    def _bias(self, tokens: int, causal: bool) -> Tensor | None:
        if self.relative_bias is None:
            return None
        place = torch.arange(tokens, device=self.relative_bias.device)
        distance = place[:, None] - place[None, :]
        return self.relative_bias[t5_buckets(distance, causal=causal, buckets=BUCKETS)]


def _counts(x: Tensor, count_B: Tensor | None) -> Tensor:
    if count_B is not None:
        return count_B
    return torch.full(x.shape[:1], x.shape[1], device=x.device)


def _kept_first(x_BNC: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Kept tokens moved to the front, zeros behind; where each came from, and how many are kept."""
    if mask is None:
        return x_BNC, None, None
    order_BN = torch.argsort((~mask).to(torch.uint8), dim=1, stable=True)
    x = zero_pads(x_BNC, mask).gather(1, order_BN[:, :, None].expand_as(x_BNC))
    return x, order_BN, mask.sum(1)


def _put_back(y_BNC: Tensor, order_BN: Tensor | None, mask: Tensor | None) -> Tensor:
    """Undo :func:`_kept_first`, pads 0."""
    if order_BN is None:
        return y_BNC
    y = torch.zeros_like(y_BNC).scatter(1, order_BN[:, :, None].expand_as(y_BNC), y_BNC)
    return zero_pads(y, mask)
