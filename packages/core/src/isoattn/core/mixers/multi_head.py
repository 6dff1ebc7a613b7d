"""Multi-head self- and cross-attention around any attention of the package.

Shape suffixes: B batch, N tokens, M tokens of the context, C channels, H heads, G key/value heads,
D channels of a head.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isoattn.core.contract import Attention, State, UnsupportedAttention
from isoattn.core.cost import Cost, Shape
from isoattn.core.mixers.base import Mixer
from isoattn.core.mixers.checks import check_tokens, zero_pads
from isoattn.core.mixers.costs import check_call, projection_flops, rotary_numbers
from isoattn.core.ops.blocks import accumulation_dtype
from isoattn.core.ops.rotary import ranks, rotate
from isoattn.core.registry import AttentionFactory, attention_factory

POSITION = "rotary_position"
"""Name in the state of how many tokens were seen; next to what the attention carries."""


class MultiHead(Mixer):
    """y = W_o attention(W_q x, W_k c, W_v c), c = x or a context (Vaswani et al. 2017, sec. 3.2.2).

    The attention is a swappable part: the projections are drawn first, from torch's global
    generator as those of any ``nn.Linear``, and building the attention leaves that generator alone.
    So two models that differ in the attention start from bit-identical weights everywhere else.
    Attentions that draw features share them between layers until
    :func:`isoattn.core.seed_attentions` is called on the whole model; that is the model's duty.

    Attentions with gates get them from the same tokens as their keys, by one linear map each:
    log_decay = logsigmoid(W_a c + b_a) / decay_temperature, one a key head or one a channel of it
    as the attention declares, and in_gate = W_i c + b_i. GLA's sigmoid(.)^(1/16) is the default
    (Yang et al. 2023, sec. 4.4, with a full instead of a low-rank map); 1 is the plain forget gate
    of mLSTM. These maps are drawn last, from a generator of their own whose seed is the last number
    taken from the global one, gates or not.

    Args:
        dim: channels C of x and y.
        heads: query heads H.
        attention: a name, a class, a ``{class_path, init_args}`` mapping or a factory
            ``(heads, head_dim) -> Attention``.
        head_dim: D; dim / heads unless given.
        kv_heads: key and value heads G, a divisor of H; H unless given.
        context_dim: channels of the context; dim unless given.
        qkv_bias: whether W_q, W_k, W_v have a bias.
        out_bias: whether W_o has one.
        out_norm: divide each head's output by its root mean square over D before W_o, as the layers
            of RetNet, GLA and mLSTM do; what has no normaliser of its own, or one of either sign,
            learns far better with it. No weight of its own: W_o would absorb it.
        rotary: turn q and k by the token's rank among the kept ones of its segment (RoFormer), for
            self-attention. What an attention sees is relative only where it is a function of the
            products q k; a feature map applied after the turn sees the position itself.
        decay_temperature: divides the log-decay; not looked at without one.

    Raises:
        ValueError: sizes that do not fit, an unknown attention or option; says what does.

    Example:
        >>> layer = MultiHead(64, 4, "Linear", rotary=True)
        >>> y = layer(torch.randn(2, 10, 64), causal=True)
        >>> layer = MultiHead(64, 4, partial(Nystrom, landmarks=16))  # with options of its own
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        attention: str | Mapping[str, Any] | type[Attention] | AttentionFactory,
        *,
        head_dim: int | None = None,
        kv_heads: int | None = None,
        context_dim: int | None = None,
        qkv_bias: bool = True,
        out_bias: bool = True,
        out_norm: bool = False,
        rotary: bool = False,
        decay_temperature: float = 16.0,
    ) -> None:
        super().__init__(dim)
        if heads < 1 or (head_dim is None and dim % heads):
            raise ValueError(
                f"heads must divide dim={dim} unless head_dim is given, got heads={heads}"
            )
        self.heads = heads
        self.head_dim = dim // heads if head_dim is None else head_dim
        self.kv_heads = heads if kv_heads is None else kv_heads
        if self.kv_heads < 1 or heads % self.kv_heads:
            raise ValueError(f"kv_heads must divide heads={heads}, got kv_heads={kv_heads}")
        if self.head_dim < 1 or (context_dim is not None and context_dim < 1):
            raise ValueError(
                f"head_dim and context_dim must be at least 1, "
                f"got head_dim={head_dim}, context_dim={context_dim}"
            )
        if decay_temperature <= 0:
            raise ValueError(f"decay_temperature must be positive, got {decay_temperature}")
        self.context_dim = dim if context_dim is None else context_dim
        self.out_norm = out_norm
        self.rotary = rotary
        self.decay_temperature = decay_temperature

        width, kv_width = heads * self.head_dim, self.kv_heads * self.head_dim
        self.query = nn.Linear(dim, width, bias=qkv_bias)
        self.key_value = nn.Linear(self.context_dim, 2 * kv_width, bias=qkv_bias)
        self.out = nn.Linear(width, dim, bias=out_bias)
        self.attention = attention_factory(attention)(heads, self.head_dim)

        inner = self.attention.capability
        seed = int(torch.randint(2**62, (), device="cpu"))  # also without gates: see above
        self.log_decay: nn.Linear | None = None
        self.in_gate: nn.Linear | None = None
        if inner.log_decay != "none":
            outputs = kv_width if inner.log_decay == "channel" else self.kv_heads
            self.log_decay = _gate(self.context_dim, outputs, seed)
        if inner.in_gate:
            self.in_gate = _gate(self.context_dim, self.kv_heads, seed + 1)
        placed = inner.positions == "none" and rotary
        self.capability = replace(
            inner,
            log_decay="none",
            in_gate=False,
            normalised=False,
            positions="rank" if placed else inner.positions,
        )
        self.unsupported = dict(self.attention.unsupported)

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        context_mask: Tensor | None = None,
        causal: bool = False,
        segments: Tensor | None = None,
    ) -> Tensor:
        """Attend.

        Args:
            x: (B, N, C).
            context: what keys and values are made of, (B, M, context_dim); x unless given.
            mask: bool (B, N), True = keep; the outputs of the others are 0.
            context_mask: bool (B, M), True = keep.
            causal: token i sees the tokens j <= i only.
            segments: integer ids (B, N), not decreasing along a row, for self-attention over packed
                samples. Not under ``torch.compile(fullgraph=True)``.

        Returns:
            (B, N, C).

        Raises:
            UnsupportedAttention: the attention has no such form; says why.
            ValueError: shapes or dtypes that do not fit; names them.
        """
        name = type(self).__name__
        check_tokens(name, self.dim, x, mask)
        if context is None:
            if context_mask is not None:
                raise ValueError(f"{name}: context_mask without a context; mask is that of x")
            self._check_self(x, segments)
            position = self._positions(x, mask, segments) if self.rotary else None
            x = source = zero_pads(x, mask)
            key_mask = mask
        else:
            check_tokens(name, self.context_dim, context, context_mask, "context", "context_mask")
            self._check_cross(x, context, segments)
            x, source = zero_pads(x, mask), zero_pads(context, context_mask)
            position, key_mask = None, context_mask
        q, k, v = self._project(x, source, position)
        more = self._gates(source)
        if context is not None and not self.attention.capability.independent_queries:
            more["query_mask"] = x.new_ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
        out = self.attention(q, k, v, key_mask=key_mask, causal=causal, segments=segments, **more)
        return self._merge(out, mask)

    def extend(
        self, x: Tensor, state: State | None = None, *, mask: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Continue causal self-attention after the tokens a state remembers, as the attention does.

        Args:
            x: the new tokens (B, N, C).
            state: from an earlier call; ``None`` at the beginning. It is not changed.
            mask: bool (B, N), True = keep.

        Returns:
            (B, N, C) and the state after the last token.

        Raises:
            UnsupportedAttention: the attention has no such form; says why.
            ValueError: shapes or dtypes that do not fit; names them.
        """
        check_tokens(type(self).__name__, self.dim, x, mask)
        self._check_self(x, None)
        inner = None if state is None else {n: s for n, s in state.items() if n != POSITION}
        position = seen = None
        if self.rotary:
            position = self._positions(x, mask, None)
            seen = (
                position.new_full(position.shape[:1], x.shape[1]) if mask is None else mask.sum(1)
            )
            if state is not None:
                position = position + state[POSITION][:, None]
                seen = seen + state[POSITION]
        x = zero_pads(x, mask)
        q, k, v = self._project(x, x, position)
        out, after = self.attention.extend(q, k, v, inner, key_mask=mask, **self._gates(x))
        if seen is not None:
            after = {**after, POSITION: seen}
        return self._merge(out, mask), after

    def cost(
        self,
        batch: int,
        tokens: int,
        *,
        causal: bool = False,
        itemsize: int = 4,
        context_tokens: int | None = None,
    ) -> Cost:
        """As :meth:`Mixer.cost`: the projections and what the attention says of itself.

        With fewer key heads than query heads the attention's part is that of as many: an upper
        bound, exact in the FLOPs of what multiplies every query head by its keys (Softmax), and
        above where sums over keys are shared by a group. The projections are exact.

        Args:
            batch: B.
            tokens: N.
            causal: which form.
            itemsize: bytes of one element of x and of the parameters.
            context_tokens: M of a context; ``None`` is self-attention.

        Raises:
            UnsupportedAttention: there is no such form; says why.
            ValueError: a size below 1, or what the attention refuses.
        """
        check_call(self, batch, tokens, causal)
        keys = tokens if context_tokens is None else context_tokens
        if keys < 1:
            raise ValueError(f"context_tokens must be at least 1, got {context_tokens}")
        if context_tokens is None:
            self._check_own_context()
        else:
            self._check_cross_form()
        rows, sources, wide = batch * tokens, batch * keys, max(4, itemsize)
        shape = Shape(batch, self.heads, tokens, keys, self.head_dim, self.head_dim, itemsize)
        inner = self.attention.cost(shape, causal=causal)
        gates = [gate for gate in (self.log_decay, self.in_gate) if gate is not None]
        projected = projection_flops(rows, self.query, self.out)
        projected += projection_flops(sources, self.key_value, *gates)
        given = rows * self.dim + (0 if context_tokens is None else sources * self.context_dim)
        parameters = sum(p.numel() for p in self.parameters())
        saved = given * itemsize + inner.saved_bytes + self._saved_outside(batch, tokens, itemsize)
        if self.log_decay is not None:  # logsigmoid keeps two numbers each
            saved += 2 * sources * self.log_decay.out_features * wide
        counts = self.rotary and self.capability.state != "none"  # how many tokens were seen
        return Cost(
            forward_flops=projected + inner.forward_flops,
            backward_flops=2 * projected + inner.backward_flops,
            min_bytes=(given + rows * self.dim + parameters) * itemsize,
            saved_bytes=saved - self._kept_twice(tokens, inner),
            state_bytes=inner.state_bytes + (8 * batch if counts else 0),
        )

    def _saved_outside(self, batch: int, tokens: int, itemsize: int) -> int:
        """What goes into W_o, the norm's input and root mean squares, the rotation's tables."""
        rows, wide, width = batch * tokens, max(4, itemsize), self.out.in_features
        saved = rows * width * itemsize
        if self.out_norm:
            saved += rows * (width + self.heads) * wide
        if self.rotary:
            saved += rotary_numbers(rows, self.head_dim, 2) * wide
        return saved

    def _kept_twice(self, tokens: int, inner: Cost) -> int:
        """The output that the attention keeps, where the next step keeps that very memory.

        Merging the heads of what has the layout of q is free, but not of a turned q, which has
        tokens inside of heads.
        """
        copied = self.rotary and not self.out_norm and self.heads > 1 and tokens > 1
        return 0 if copied else inner.saved_output_bytes

    def extra_repr(self) -> str:
        """Sizes shown by ``print(module)``."""
        return (
            f"dim={self.dim}, heads={self.heads}, kv_heads={self.kv_heads}, "
            f"out_norm={self.out_norm}, rotary={self.rotary}"
        )

    def _check_own_context(self) -> None:
        if self.context_dim != self.dim:
            raise ValueError(
                f"{type(self).__name__} was built for a context of {self.context_dim} channels; "
                "give the context"
            )

    def _check_self(self, x: Tensor, segments: Tensor | None) -> None:
        self._check_own_context()
        if segments is not None and segments.shape != x.shape[:2]:
            raise ValueError(
                f"{type(self).__name__}: segments must be integer ids (batch, tokens) = "
                f"{tuple(x.shape[:2])}, got {segments.dtype} {tuple(segments.shape)}"
            )

    def _check_cross_form(self) -> None:
        if not self.capability.cross:  # also where the context happens to be as long as x
            reason = self.unsupported.get("cross", "not defined for this mechanism")
            raise UnsupportedAttention(
                f"{type(self.attention).__name__} has no cross form: {reason}"
            )
        if self.rotary:
            raise UnsupportedAttention(
                f"{type(self).__name__} has no cross form with rotary=True: two sequences have no "
                "common position. Use rotary=False"
            )

    def _check_cross(self, x: Tensor, context: Tensor, segments: Tensor | None) -> None:
        self._check_cross_form()
        if segments is not None:
            raise ValueError(
                f"{type(self).__name__}: segments are for self-attention, without a context; "
                "pad the samples and give mask and context_mask"
            )
        if context.shape[0] != x.shape[0]:
            raise ValueError(
                f"{type(self).__name__}: x and context must share the batch, "
                f"got {tuple(x.shape)} and {tuple(context.shape)}"
            )

    def _positions(self, x: Tensor, mask: Tensor | None, segments: Tensor | None) -> Tensor:
        keep = x.new_ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
        return ranks(keep, segments)

    def _project(
        self, x: Tensor, source: Tensor, position: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        q = self.query(x).view(*x.shape[:2], self.heads, self.head_dim).transpose(1, 2)
        kv = self.key_value(source).view(*source.shape[:2], 2, self.kv_heads, self.head_dim)
        k, v = kv.permute(2, 0, 3, 1, 4).unbind(0)
        if position is not None:
            q, k = (rotate(y, position[:, None]) for y in (q, k))
        return q, k, v

    def _gates(self, source: Tensor) -> dict[str, Tensor]:
        """Logarithmic gates, tokens on axis 2; none for attentions without."""
        found = {}
        if self.log_decay is not None:
            logits = self.log_decay(source)
            decay = F.logsigmoid(logits.to(accumulation_dtype(logits))) / self.decay_temperature
            if self.attention.capability.log_decay == "channel":
                decay = decay.view(*decay.shape[:2], self.kv_heads, self.head_dim)
            found["log_decay"] = decay.transpose(1, 2)
        if self.in_gate is not None:
            found["in_gate"] = self.in_gate(source).transpose(1, 2)
        return found

    def _merge(self, out_BHND: Tensor, mask: Tensor | None) -> Tensor:
        if self.out_norm:
            wide = out_BHND.to(accumulation_dtype(out_BHND))
            out_BHND = F.rms_norm(wide, wide.shape[-1:], eps=1e-6).to(out_BHND.dtype)
        y: Tensor = self.out(out_BHND.transpose(1, 2).flatten(2))
        return zero_pads(y, mask)


def _gate(inputs: int, outputs: int, seed: int) -> nn.Linear:
    """A linear map with the initial distribution of ``nn.Linear``, drawn from a seed."""
    layer: nn.Linear = nn.utils.skip_init(  # type: ignore[no-untyped-call]
        nn.Linear, inputs, outputs, device=torch.get_default_device()
    )
    generator = torch.Generator("cpu").manual_seed(seed)
    bound = 1 / math.sqrt(inputs)
    with torch.no_grad():
        for parameter in layer.parameters():
            drawn = torch.empty(parameter.shape, dtype=parameter.dtype, device="cpu")
            parameter.copy_(drawn.uniform_(-bound, bound, generator=generator))
    return layer
