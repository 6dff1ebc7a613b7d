"""Attention with a decaying state: S_t = diag(a_t) S_(t-1) + k_t v_t^T, o_t = s S_t^T q_t.

One engine for every preset (retention, Mamba-2's dual form, gated linear attention, HGRN2, RWKV6):
parallel (one chunk), chunked, and token by token. The decay is one number a head and token, or one
a key channel. No exponential is taken of anything above 0, so no gate can overflow, and none of a
difference of long sums, so that a strong decay does not blur the tokens after it.

Shape suffixes: as in :mod:`isoattn.core.contract`, R = H / G query heads a key head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from isoattn.core.ops import decay_scalar, decay_vector
from isoattn.core.ops.blocks import (
    NUMBERS,
    accumulation_dtype,
    batch_blocks,
    empty_heads,
    piece,
    write,
)
from isoattn.core.ops.decay_states import scan
from isoattn.core.ops.masking import no_autocast, zero_masked

CHUNK = 64
"""Tokens in one chunk where nothing else is said."""


def decay_attention(
    q_BHND: Tensor,
    k_BGND: Tensor,
    v_BGNE: Tensor,
    log_decay: Tensor | None = None,
    state_BGDE: Tensor | None = None,
    *,
    key_mask: Tensor | None = None,
    scale: float = 1.0,
    chunk: int | None = CHUNK,
    bonus_HD: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Outputs and the state after the last token; gradients flow through both.

    Args:
        q_BHND: queries.
        k_BGND: keys; G divides H.
        v_BGNE: values.
        log_decay: log a_t <= 0, (B, G, N) or a channel (B, G, N, D); ``None`` is no decay.
        state_BGDE: S_0; ``None`` is 0.
        key_mask: bool (B, N), True = keep. At a masked token the state stays as it is.
        scale: s.
        chunk: tokens that meet in one product; ``None`` is all of them (memory N x N with a decay
            a head). With a decay a channel it is rounded up to a power of two.
        bonus_HD: u. With it a token is read before the state decays, and its own key through u:
            o_t = s (S_(t-1) + diag(u) k_t v_t^T)^T q_t (RWKV6).

    Returns:
        (B, H, N, E) in the dtype of v, and (B, G, D, E) in float32 at least.

    Raises:
        ValueError: a state of another shape; names both.
    """
    accumulate = accumulation_dtype(v_BGNE)
    (batch, groups, tokens, dim), width = k_BGND.shape, v_BGNE.shape[3]
    shape = (batch, groups, dim, width)
    if state_BGDE is not None and state_BGDE.shape != shape:
        raise ValueError(
            f"the state must be (batch, key heads, head_dim, value dim) = {shape}, got "
            f"{tuple(state_BGDE.shape)}; it continues the call that returned it"
        )
    k, v = zero_masked(k_BGND, key_mask), zero_masked(v_BGNE, key_mask)
    vector = bonus_HD is not None or (log_decay is not None and log_decay.ndim == 4)
    if log_decay is None:
        decay = k.new_zeros((), dtype=accumulate).expand(k.shape if vector else k.shape[:3])
    else:
        decay = log_decay.to(accumulate)
        if vector and decay.ndim == 3:
            decay = decay.unsqueeze(-1).expand(k.shape)
        if key_mask is not None:
            hidden = ~key_mask[:, None, :]
            decay = decay.masked_fill(hidden.unsqueeze(-1) if vector else hidden, 0.0)
    state = None if state_BGDE is None else state_BGDE.to(accumulate)
    if tokens == 0:
        empty = v.new_zeros(batch, q_BHND.shape[1], 0, width)
        return empty, k.new_zeros(shape, dtype=accumulate) if state is None else state
    inputs = (q_BHND, k, v, decay, bonus_HD, state)
    run: Any = _operator if torch.compiler.is_compiling() else _Decay.apply
    out, end = run(*inputs, scale, chunk, vector)
    return out, end


def chunk_size(tokens: int, chunk: int | None, vector: bool) -> int:
    """Tokens of a chunk as it is computed: not more than there are, a power of two by channel."""
    size = tokens if chunk is None else min(chunk, tokens)
    if not vector:
        return size
    power = 1
    while power < size:
        power *= 2
    return power


def decay_flops(
    tokens: int, dim: int, width: int, chunk: int | None, vector: bool
) -> tuple[int, int]:
    """FLOPs of one head, forward and backward, whole chunks counted."""
    size = chunk_size(tokens, chunk, vector)
    padded = -(-tokens // size) * size
    inside = size - 1 if vector else 2 * size  # of all pairs of a chunk, or of the lower half
    states = 4 * dim * width
    forward = padded * (inside * (dim + width) + states)
    backward = padded * (inside * (3 * dim + 2 * width) + 5 * states // 2)
    return forward, backward


@dataclass(frozen=True)
class _Options:
    """How the engine is run: the size of a chunk as it is computed, and its form."""

    scale: float
    chunk: int
    family: ModuleType


def _options(tokens: int, scale: float, chunk: int | None, vector: bool) -> _Options:
    family = decay_vector if vector else decay_scalar
    return _Options(scale, chunk_size(tokens, chunk, vector), family)


Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None]
"""q, k, v, log-decays, bonus and state."""


def _plain(inputs: Inputs, options: _Options) -> tuple[Tensor, Tensor]:
    """The chunked form in differentiable operators, of whole tensors or of one block of them."""
    q, k, v, log_decay, bonus, state = inputs
    accumulate, groups = log_decay.dtype, k.shape[1]
    (batch, heads, tokens, dim), width = q.shape, v.shape[3]
    if state is None:
        state = k.new_zeros(batch, groups, dim, width, dtype=accumulate)
    out, end = options.family.forward(
        *_in_chunks(q, k, v, log_decay, options.scale, options.chunk),
        _by_rows(bonus, batch, groups, accumulate),
        state.flatten(0, 1),
    )
    return _in_order(out, batch, heads, tokens), end.view(batch, groups, dim, width)


def _in_chunks(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, scale: float, chunk: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Whole chunks q (W, T, R, C, D), k (W, T, C, D), v, log_decay; zeros fill the last one."""
    q = _chunks(q, k.shape[1], chunk, log_decay.dtype)
    return q if scale == 1.0 else q * scale, *_keys_in_chunks(k, v, log_decay, chunk)


def _keys_in_chunks(
    k: Tensor, v: Tensor, log_decay: Tensor, chunk: int
) -> tuple[Tensor, Tensor, Tensor]:
    dtype, groups = log_decay.dtype, k.shape[1]
    k, v = (_chunks(x, groups, chunk, dtype).squeeze(2) for x in (k, v))
    if log_decay.ndim == 4:
        return k, v, _chunks(log_decay, groups, chunk, dtype).squeeze(2)
    return k, v, _chunks(log_decay.unsqueeze(-1), groups, chunk, dtype)[:, :, 0, :, 0]


def _chunks(x_BHND: Tensor, groups: int, chunk: int, dtype: torch.dtype) -> Tensor:
    """(W, T, R, C, D)."""
    batch, heads, tokens, dim = x_BHND.shape
    chunks = -(-tokens // chunk)
    x = F.pad(x_BHND.to(dtype), (0, 0, 0, chunks * chunk - tokens))
    x = x.reshape(batch * groups, heads // groups, chunks, chunk, dim)
    return x.transpose(1, 2).contiguous()


def _in_order(x_WTRCE: Tensor, batch: int, heads: int, tokens: int) -> Tensor:
    """(B, H, N, E) without the filling."""
    x = x_WTRCE.transpose(1, 2)
    return x.reshape(batch, heads, -1, x.shape[4])[:, :, :tokens]


def _by_rows(bonus_HD: Tensor | None, batch: int, groups: int, dtype: torch.dtype) -> Tensor | None:
    """(W, R, D)."""
    if bonus_HD is None:
        return None
    bonus = bonus_HD.to(dtype).view(groups, -1, bonus_HD.shape[1])
    return bonus.expand(batch, -1, -1, -1).flatten(0, 1)


def _token_blocks(x_BHND: Tensor, chunk: int) -> list[slice]:
    """Whole chunks, as many as stay in the cache; everything at once on a GPU."""
    _, heads, tokens, dim = x_BHND.shape
    size = tokens
    if x_BHND.device.type == "cpu":
        size = NUMBERS * torch.get_num_threads() // max(1, heads * dim)
    size = max(1, size // chunk) * chunk
    return [slice(t, min(t + size, tokens)) for t in range(0, tokens, size)]


def _room(q: Tensor, k: Tensor, v: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs and last state, empty."""
    (batch, heads, tokens, dim), (groups, width) = q.shape, (k.shape[1], v.shape[3])
    end = k.new_empty(batch, groups, dim, width, dtype=decay.dtype)
    return empty_heads(batch, heads, tokens, width, v), end


def _run(inputs: Inputs, options: _Options) -> tuple[Tensor, Tensor]:
    """Blocks of chunks one after the other."""
    q, k, v, decay, bonus, state = inputs
    out, end = _room(q, k, v, decay)
    for b in batch_blocks(q):
        carried = None if state is None else state[b]
        for n in _token_blocks(q[b], options.chunk):
            parts = piece(q, b, n), piece(k, b, n), piece(v, b, n), decay[b, :, n]
            values, carried = _plain((*parts, bonus, carried), options)
            write(out, b, n, values)
        assert carried is not None
        end[b] = carried
    return out, end


def _pull(
    grad: Tensor, grad_end: Tensor, inputs: Inputs, options: _Options, into: Sequence[Tensor]
) -> tuple[Tensor | None, Tensor]:
    """Gradients of q, k, v and log-decays, written ``into`` such tensors; of bonus and state."""
    q, k, v, decay, bonus, state = inputs
    scale, chunk, groups = options.scale, options.chunk, k.shape[1]
    dstate = torch.empty_like(grad_end, memory_format=torch.contiguous_format)
    dbonus = None if bonus is None else torch.zeros_like(bonus, dtype=decay.dtype)
    with no_autocast(grad.device.type):
        for b in batch_blocks(q):
            rows = _by_rows(bonus, len(q[b]), groups, decay.dtype)
            carried = grad_end[b].flatten(0, 1)
            for n, starts in _starts(k, v, decay, state, b, _token_blocks(q[b], chunk), options):
                parts = piece(q, b, n), piece(k, b, n), piece(v, b, n)
                chunks = _in_chunks(*parts, decay[b, :, n], scale, chunk)
                grads = _chunks(piece(grad, b, n), groups, chunk, decay.dtype)
                *found, more, carried = options.family.backward(
                    grads, *chunks, rows, starts, carried
                )
                if scale != 1.0:
                    found[0].mul_(scale)
                for target, x in zip(into, found, strict=True):
                    _store(target, b, n, x)
                if bonus is not None:
                    dbonus += more.view(-1, *bonus.shape).sum(0)
            dstate[b] = carried.view(dstate[b].shape)
    return None if bonus is None or dbonus is None else dbonus.to(bonus.dtype), dstate


class _Decay(torch.autograd.Function):
    """Keeps its inputs; weights and states come again."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, Tensor]:
        inputs, options = given[:6], _options(given[0].shape[2], *given[6:])
        ctx.save_for_backward(*inputs)
        ctx.options = options
        return _run(inputs, options)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_end: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            return _replay(ctx, grad, grad_end)
        inputs = ctx.saved_tensors
        found = [torch.empty_like(x) for x in inputs[:4]]
        dbonus, dstate = _pull(grad, grad_end, inputs, ctx.options, found)
        return *found, dbonus, None if inputs[5] is None else dstate, None, None, None


def _store(target: Tensor, batch: slice, tokens: slice, x: Tensor) -> None:
    """Write the gradient of a block where it belongs."""
    place = target[batch, :, tokens]
    if place.ndim == 3:
        place, x = place.unsqueeze(-1), x.unsqueeze(-1)
    x = x.unsqueeze(2) if x.ndim == 4 else x
    place.copy_(_in_order(x, *place.shape[:3]))


def _starts(
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    state: Tensor | None,
    b: slice,
    blocks: list[slice],
    options: _Options,
) -> Iterator[tuple[slice, Tensor]]:
    """The blocks from the last to the first, with the states before each of their chunks."""
    if state is None:
        carried = k.new_zeros(len(k[b]) * k.shape[1], k.shape[3], v.shape[3], dtype=decay.dtype)
    else:
        carried = state[b].flatten(0, 1)
    found = []
    for n in blocks:
        key, value, gate = piece(k, b, n), piece(v, b, n), decay[b, :, n]
        factors, added = options.family.updates(*_keys_in_chunks(key, value, gate, options.chunk))
        starts, carried = scan(factors, added, carried)
        found.append((n, starts))
    while found:
        yield found.pop()


def _replay(ctx: Any, grad: Tensor, grad_end: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients through the plain form, differentiable again."""
    inputs = ctx.saved_tensors
    needed = ctx.needs_input_grad[: len(inputs)]
    with no_autocast(grad.device.type):
        # views, so that an input given twice is still told apart
        leaves: Any = [x if x is None else x.view_as(x) for x in inputs]
        used = [x for x, wanted in zip(leaves, needed, strict=True) if wanted]
        out, end = _plain(leaves, ctx.options)
        grads = iter(torch.autograd.grad((out, end), used, (grad, grad_end), create_graph=True))
    return (*(next(grads) if wanted else None for wanted in needed), None, None, None)


@torch.library.custom_op("isoattn::decay_attention", mutates_args=())
def _operator(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    bonus: Tensor | None,
    state: Tensor | None,
    scale: float,
    chunk: int | None,
    vector: bool,
) -> tuple[Tensor, Tensor]:
    """What the engine is to the compiler, whose trace is then as short at any length."""
    with torch.no_grad():
        return _run((q, k, v, decay, bonus, state), _options(q.shape[2], scale, chunk, vector))


@torch.library.custom_op("isoattn::decay_attention_backward", mutates_args=())
def _operator_backward(
    grad: Tensor,
    grad_end: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    bonus: Tensor | None,
    state: Tensor | None,
    scale: float,
    chunk: int | None,
    vector: bool,
) -> list[Tensor]:
    """Gradients of the inputs that there are."""
    with torch.no_grad():
        options, inputs = _options(q.shape[2], scale, chunk, vector), (q, k, v, decay, bonus, state)
        found = [_like(x) for x in (q, k, v, decay)]
        dbonus, dstate = _pull(grad, grad_end, inputs, options, found)
        found += [] if dbonus is None else [dbonus]
        return found if state is None else [*found, dstate]


def _like(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@_operator.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _room(q, k, v, decay)


@_operator_backward.register_fake
def _(
    grad: Tensor,
    grad_end: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    bonus: Tensor | None,
    state: Tensor | None,
    *_: Any,
) -> list[Tensor]:
    return [_like(x) for x in (q, k, v, decay, bonus, state) if x is not None]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:6])
    ctx.options = inputs[6:]


def _backward(ctx: Any, grad: Tensor, grad_end: Tensor) -> tuple[Tensor | None, ...]:
    inputs = ctx.saved_tensors
    found = iter(_operator_backward(grad, grad_end, *inputs, *ctx.options))
    return *(None if x is None else next(found) for x in inputs), None, None, None


_operator.register_autograd(_backward, setup_context=_setup)
