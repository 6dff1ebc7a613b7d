"""The contract every attention of isoattn keeps: ``q, k, v -> o`` with declared capabilities.

Shape suffixes: B batch, H query heads, G key/value heads (G divides H), N queries, M keys,
D head dimension of q and k, E head dimension of v.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from isoattn.core.cost import Cost, Shape
from isoattn.core.ops.masking import no_autocast
from isoattn.core.ops.segments import over_segments

State = dict[str, Tensor]
"""What a causal attention carries from one call to the next, by name; batch is the first axis."""


class UnsupportedAttention(NotImplementedError):
    """A form (causal, cross, key mask, ...) that a mechanism cannot have, with the reason."""


@dataclass(frozen=True)
class Capability:
    """What an attention can do. The conformance suite is generated from this declaration.

    Args:
        bidirectional: every query may see every key.
        causal: query i sees the keys j <= i.
        cross: the number of queries may differ from the number of keys.
        key_mask: padded keys can be excluded exactly.
        state: whether the causal form can be continued (``extend``, ``step``), and whether what it
            carries is ``"constant"`` in size or ``"growing"`` with the tokens seen.
        log_decay: whether forward takes log-decays, one a head and token (B, G, N) or one a
            ``"channel"`` of k as well (B, G, N, D).
        in_gate: whether forward takes a logarithmic input gate (B, G, N).
        stochastic: in training mode every call draws anew; evaluation is deterministic.
        positions: what of a token's place counts. ``"none"``: permuted tokens, permuted outputs.
            ``"rank"``: the order of the visible tokens, so a masked token is as good as absent.
            ``"distance"``: how far apart they stand, masked ones counted. ``"index"``: the place
            from the start, so pads belong at the end.
        mixes: ``"tokens"`` where o is linear in v with an N x M matrix, ``"channels"`` where the
            mixing matrix is D x D (no token matrix exists), ``"nothing"`` where no token sees
            another.
        normalised: rows of the mixing matrix sum to 1 (or are 0 where there is no key).
        double_backward: second derivatives exist; where False asking for them raises.
        independent_queries: each output depends on its own query alone, so some rows may be asked
            for without the others. Where False key_mask hides queries too, if there are as many.
        max_tokens: most keys it takes; ``None`` is any number.
    """

    bidirectional: bool = True
    causal: bool = False
    cross: bool = False
    key_mask: bool = True
    state: Literal["none", "constant", "growing"] = "none"
    log_decay: Literal["none", "head", "channel"] = "none"
    in_gate: bool = False
    stochastic: bool = False
    positions: Literal["none", "rank", "distance", "index"] = "none"
    mixes: Literal["tokens", "channels", "nothing"] = "tokens"
    normalised: bool = True
    double_backward: bool = True
    independent_queries: bool = True
    max_tokens: int | None = None


class Attention(nn.Module, ABC):
    """An attention core: q, k, v -> o. No projections, no norm, no residual.

    A subclass sets ``capability``, gives a reason in ``unsupported`` for each form it lacks, and
    implements :meth:`_attend`, :meth:`cost` and, to be checked against it, :meth:`reference`. An
    option that changes what is possible sets both attributes again on the instance. The first two
    constructor parameters are always ``heads`` and ``head_dim``; all options are keyword-only and
    typed, none is ignored. A subclass whose causal form can be continued also implements
    :meth:`_extend`.

    Rules that hold for every member, and that ``isoattn.core.testing`` checks: a masked key has
    exactly no influence, even where it holds NaN; a query without any key gives 0 with zero
    gradient; samples of a batch do not see each other; reductions accumulate in float32 at least;
    torch's global generator is neither read nor written.

    Args:
        heads: number of query heads H.
        head_dim: dimension D of a query or key head.

    Raises:
        ValueError: a size below 1.
    """

    capability: Capability
    unsupported: Mapping[str, str] = {}
    deviations: Mapping[str, str] = {}
    """Laws of ``isoattn.core.testing`` that a compatibility option knowingly breaks, with reasons.

    Set on the instance by the option. The suite leaves such a law out and reports the reason, and
    one law checks that each is indeed broken, so none is named without need.
    """
    no_weight_decay: ClassVar[frozenset[str]] = frozenset()
    """Names of own parameters that an optimiser must not decay."""

    def __init__(self, heads: int, head_dim: int) -> None:
        super().__init__()
        if heads < 1 or head_dim < 1:
            raise ValueError(
                f"{type(self).__name__} needs heads >= 1 and head_dim >= 1, "
                f"got heads={heads}, head_dim={head_dim}"
            )
        self.heads = heads
        self.head_dim = head_dim

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        key_mask: Tensor | None = None,
        causal: bool = False,
        segments: Tensor | None = None,
    ) -> Tensor:
        """Attend.

        Args:
            q: queries (B, H, N, D).
            k: keys (B, G, M, D); G divides H, each key head serves H / G query heads.
            v: values (B, G, M, E), any E.
            key_mask: bool (B, M), True = keep. ``None`` keeps all.
            causal: query i sees keys j <= i only.
            segments: integer ids (B, N), not decreasing along a row, for self-attention over
                packed samples: a token sees the tokens of its own id only. Each segment gives
                exactly what it gives alone. Not under ``torch.compile(fullgraph=True)``.

        Returns:
            (B, H, N, E) in the dtype of v.

        Raises:
            UnsupportedAttention: the form is not defined for this mechanism; says why.
            ValueError: shapes or dtypes that do not fit; names them.
        """
        self._check(q, k, v, key_mask, causal)
        if segments is not None:
            tensors = {"q": q, "k": k, "v": v}
            return over_segments(partial(self.forward, causal=causal), segments, tensors, key_mask)
        dtype = v.dtype
        q, k, v = _one_dtype(q, k, v)
        with no_autocast(v.device.type):
            return self._attend(q, k, v, key_mask, causal).to(dtype)

    def extend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        state: State | None = None,
        *,
        key_mask: Tensor | None = None,
    ) -> tuple[Tensor, State]:
        """Continue the causal form after the tokens a state remembers; gradients flow through it.

        ``forward(q, k, v, causal=True)`` equals any number of calls on consecutive pieces.

        Args:
            q: queries of the new tokens (B, H, N, D).
            k: keys (B, G, N, D).
            v: values (B, G, N, E).
            state: from an earlier call; ``None`` at the beginning.
            key_mask: bool (B, N), True = keep.

        Returns:
            (B, H, N, E) in the dtype of v, and the state after the last token. The given state is
            not changed.

        Raises:
            UnsupportedAttention: the mechanism has no such form; says why.
            ValueError: shapes or dtypes that do not fit; names them.
        """
        self._check_extend(q, k, v, key_mask)
        dtype = v.dtype
        q, k, v = _one_dtype(q, k, v)
        with no_autocast(v.device.type):
            out, state = self._extend(q, k, v, state, key_mask)
        return out.to(dtype), state

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, state: State | None = None
    ) -> tuple[Tensor, State]:
        """One token: q (B, H, D), k (B, G, D), v (B, G, E) give (B, H, E) and the new state."""
        out, state = self.extend(q.unsqueeze(2), k.unsqueeze(2), v.unsqueeze(2), state)
        return out.squeeze(2), state

    def reseed(self, seed: int) -> None:
        """Give the module's own draws another seed; does nothing where nothing is random."""

    @abstractmethod
    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, causal: bool
    ) -> Tensor:
        """The mechanism itself, on checked inputs of one dtype, outside autocast."""

    def _extend(
        self, q: Tensor, k: Tensor, v: Tensor, state: State | None, key_mask: Tensor | None
    ) -> tuple[Tensor, State]:
        """The causal form from a state, on checked inputs of one dtype, outside autocast."""
        raise NotImplementedError(f"{type(self).__name__} declares a state but has no _extend")

    @abstractmethod
    def cost(self, shape: Shape, *, causal: bool = False) -> Cost:
        """FLOPs and bytes of one call in closed form."""

    def reference(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        key_mask: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        """The same result in float64 from the definition, dense and without any trick.

        Raises:
            UnsupportedAttention: none is written for this class.
        """
        raise UnsupportedAttention(f"{type(self).__name__} has no float64 reference")

    def matrix(
        self, q: Tensor, k: Tensor, *, key_mask: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        """The implied mixing matrix (B, H, N, M): the output for v = I.

        Raises:
            UnsupportedAttention: the mechanism mixes channels, so no such matrix exists.
        """
        if self.capability.mixes == "channels":
            raise UnsupportedAttention(
                f"{type(self).__name__} mixes channels: it has no matrix over tokens. "
                "Use channel_matrix(q, k)."
            )
        batch, groups, keys, _ = k.shape
        identity = torch.eye(keys, dtype=k.dtype, device=k.device)
        identity = identity.expand(batch, groups, keys, keys)
        return self.forward(q, k, identity, key_mask=key_mask, causal=causal)

    def extra_repr(self) -> str:
        """Sizes shown by ``print(module)``."""
        return f"heads={self.heads}, head_dim={self.head_dim}"

    def _refuse(self, form: str, wording: str) -> None:
        reason = self.unsupported.get(form, "not defined for this mechanism")
        raise UnsupportedAttention(f"{type(self).__name__} has no {wording}: {reason}")

    def _check(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, causal: bool
    ) -> None:
        if q.ndim != 4 or k.ndim != 4 or v.ndim != 4:
            self._misfit(q, k, v, "takes q, k, v as (batch, heads, tokens, dim)")
        batch, heads, queries, dim = q.shape
        groups, keys = k.shape[1], k.shape[2]
        if heads != self.heads or dim != self.head_dim or k.shape[3] != dim:
            self._misfit(
                q,
                k,
                v,
                f"has heads={self.heads}, head_dim={self.head_dim} "
                "and takes q, k, v as (batch, heads, tokens, dim)",
            )
        if k.shape[:3] != v.shape[:3] or k.shape[0] != batch or not groups or heads % groups:
            self._misfit(
                q,
                k,
                v,
                "needs k and v that agree in batch, heads and tokens, share q's batch and "
                f"have a number of heads that divides {heads}",
            )
        if not (q.is_floating_point() and k.is_floating_point() and v.is_floating_point()):
            raise ValueError(
                f"{type(self).__name__} takes floating point tensors, "
                f"got q {q.dtype}, k {k.dtype}, v {v.dtype}"
            )
        capability = self.capability
        if key_mask is not None:
            if not capability.key_mask:
                self._refuse("key_mask", "key mask")
            if key_mask.dtype != torch.bool or key_mask.shape != (batch, keys):
                raise ValueError(
                    f"{type(self).__name__}: key_mask must be bool (batch, keys) = "
                    f"({batch}, {keys}), True = keep; "
                    f"got {key_mask.dtype} {tuple(key_mask.shape)}"
                )
        if causal and not capability.causal:
            self._refuse("causal", "causal form")
        if not causal and not capability.bidirectional:
            self._refuse("bidirectional", "bidirectional form")
        if queries != keys and not capability.cross:
            self._refuse("cross", "cross form")

    def _check_extend(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> None:
        if self.capability.state == "none":
            causal = None if self.capability.causal else self.unsupported.get("causal")
            reason = self.unsupported.get("state", causal or "not defined for this mechanism")
            raise UnsupportedAttention(f"{type(self).__name__} has no state to continue: {reason}")
        self._check(q, k, v, key_mask, causal=True)
        if q.shape[2] != k.shape[2]:
            self._misfit(q, k, v, "extends by as many keys as queries")

    def _misfit(self, q: Tensor, k: Tensor, v: Tensor, rule: str) -> None:
        raise ValueError(
            f"{type(self).__name__} {rule}; "
            f"got q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
        )


def _one_dtype(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if q.dtype == k.dtype == v.dtype:
        return q, k, v
    wide = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
    return q.to(wide), k.to(wide), v.to(wide)
