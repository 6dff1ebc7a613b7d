"""Attention by a feature map: o_i = phi(q_i) S / phi(q_i) z, whatever phi is.

S = sum_j w_j phi(k_j) v_j^T and z = sum_j w_j phi(k_j) run over the visible keys, in float32 at
least. The weights w_j of keys are given as logarithms and only ever used relative to a maximum m
over the keys seen so far, which cancels: no exponent is above 0, and the causal form looks at no
later key. A map says how it looks (:class:`FeatureKernel`); here is what all maps share: sums over
blocks of tokens, the causal form in chunks from a state, and a backward pass that computes the
features again, so that they never exist for the whole sequence.

Shape suffixes: as in :mod:`isoattn.core.contract`; F features, R = H / G query heads for each key
head, T chunks of C tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from isoattn.core.ops.blocks import NUMBERS, accumulation_dtype, empty_heads
from isoattn.core.ops.masking import no_autocast, zero_masked

BLOCK = 1024
"""Tokens of one block of the causal form, in whole chunks; between blocks only states are kept."""


class Sums(NamedTuple):
    """What is remembered of the keys: S (B, G, F, E), z (B, G, F), m (B, G) where weighted."""

    S: Tensor
    z: Tensor
    m: Tensor | None = None


class FeatureKernel(ABC):
    """A feature map with its normaliser; options only, as a frozen dataclass.

    The tensors it needs (projections, scales) are handed in as ``parameters``, so that gradients
    reach them.
    """

    weighted: bool = False
    """Whether keys have logarithmic weights."""
    bounded: bool = False
    """Whether :meth:`inverse` looks at |z|."""

    @abstractmethod
    def width(self, head_dim: int) -> int:
        """Number of features F."""

    @abstractmethod
    def keys(self, k: Tensor, parameters: tuple[Tensor, ...]) -> tuple[Tensor, Tensor | None]:
        """phi(k) (B, G', M, F) and log w (B, G', M) or None; G' may be any multiple of G."""

    @abstractmethod
    def queries(self, q: Tensor, parameters: tuple[Tensor, ...]) -> Tensor:
        """phi(q) (B, H, N, F)."""

    def inverse(self, bottom: Tensor, size: Tensor | None) -> Tensor:
        """1 / (phi(q) z) from phi(q) z and |z|; by default 0 where that is not above 0."""
        return guarded_inverse(bottom)


def guarded_inverse(x: Tensor) -> Tensor:
    """1 / x where x > 0, else 0 with zero gradient."""
    positive = x > 0
    return torch.where(positive, torch.where(positive, x, 1.0).reciprocal(), 0.0)


def whole_chunk(chunk: int) -> int:
    """The chunk of a constructor, checked.

    Raises:
        ValueError: no whole number of at least 1.
    """
    if not isinstance(chunk, int) or chunk < 1:
        raise ValueError(f"chunk must be a whole number of tokens, at least 1; got {chunk!r}")
    return chunk


def block_tokens(chunk: int) -> int:
    """Tokens of one block of the causal form: about :data:`BLOCK`, in whole chunks."""
    return chunk * max(1, BLOCK // chunk)


def kernel_attention(
    kernel: FeatureKernel,
    q_BHND: Tensor,
    k_BGMD: Tensor,
    v_BGME: Tensor,
    *,
    key_mask: Tensor | None = None,
    causal: bool = False,
    chunk: int = 64,
    parameters: tuple[Tensor, ...] = (),
) -> Tensor:
    """Attention of one call.

    Args:
        kernel: the map.
        q_BHND: queries, not yet mapped.
        k_BGMD: keys; G divides H.
        v_BGME: values.
        key_mask: bool (B, M), True = keep.
        causal: query i sees the keys j <= i.
        chunk: C, tokens that see each other by a matrix in the causal form.
        parameters: of the map.

    Returns:
        (B, H, N, E) in the dtype of v.
    """
    if causal:
        inputs = (q_BHND, k_BGMD, v_BGME, key_mask)
        return _causal(kernel, chunk, inputs, None, parameters)[0]
    if torch.compiler.is_compiling():  # the compiler fuses plain operators better than blocks
        return _plain(kernel, q_BHND, k_BGMD, v_BGME, key_mask, parameters)
    function: Any = _Pooled
    out: Tensor = function.apply(kernel, q_BHND, k_BGMD, v_BGME, key_mask, *parameters)
    return out


def kernel_extension(
    kernel: FeatureKernel,
    q_BHND: Tensor,
    k_BGND: Tensor,
    v_BGNE: Tensor,
    state: dict[str, Tensor] | None,
    *,
    key_mask: Tensor | None = None,
    chunk: int = 64,
    parameters: tuple[Tensor, ...] = (),
) -> tuple[Tensor, dict[str, Tensor]]:
    """The causal form from a state ``{"S", "z"}`` (and ``"m"``), and the state after the tokens.

    A single token goes by S + w phi(k) v^T itself.
    """
    sums = None if state is None else Sums(state["S"], state["z"], state.get("m"))
    if q_BHND.shape[2] == 1:
        sums = _absorb(kernel, k_BGND, v_BGNE, key_mask, parameters, sums)
        out = _rows(kernel, q_BHND, sums, parameters, v_BGNE.dtype)
    else:
        inputs = (q_BHND, k_BGND, v_BGNE, key_mask)
        out, sums = _causal(kernel, chunk, inputs, sums, parameters)
    return out, {n: x for n, x in sums._asdict().items() if x is not None}


def _mapped_keys(
    kernel: FeatureKernel,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    parameters: tuple[Tensor, ...],
) -> tuple[Tensor, Tensor, Tensor | None]:
    """phi(k) and v with masked tokens 0 (after the map: phi(0) is not 0), their log w at -inf."""
    wide = accumulation_dtype(v)
    # Before the map too: the derivative of a map at NaN is NaN, and 0 times it as well.
    phi, weight = kernel.keys(zero_masked(k, key_mask).to(wide), parameters)
    v = zero_masked(v, key_mask).to(wide)
    if phi.shape[1] != v.shape[1]:
        v = v.repeat_interleave(phi.shape[1] // v.shape[1], 1)
    if weight is not None and key_mask is not None:
        weight = weight.masked_fill(~key_mask[:, None, :], -torch.inf)
    return zero_masked(phi, key_mask), v, weight


def _finite(m: Tensor) -> Tensor:
    """A maximum over nothing as 0, so that -inf - m stays -inf."""
    return m.masked_fill(m == -torch.inf, 0.0)


def _absorb(
    kernel: FeatureKernel,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    parameters: tuple[Tensor, ...],
    sums: Sums | None,
) -> Sums:
    """The sums with all these keys added."""
    phi, v, weight = _mapped_keys(kernel, k, v, key_mask, parameters)
    m = None
    if weight is not None:
        # padded, so that no keys have a maximum too
        m = F.pad(weight.detach(), (1, 0), value=-torch.inf).amax(-1)
        if sums is not None and sums.m is not None:
            m = torch.maximum(m, sums.m)
            fade = (sums.m - _finite(m)).exp()
            sums = Sums(sums.S * fade[..., None, None], sums.z * fade[..., None], m)
    S, z = _summed(phi, v, weight, m)
    return Sums(S, z, m) if sums is None else Sums(sums.S + S, sums.z + z, m)


def _summed(
    phi: Tensor, v: Tensor, weight: Tensor | None, m: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Sum of w phi v^T and of w phi over tokens, w relative to a maximum m."""
    if weight is not None and m is not None:
        phi = phi * (weight - _finite(m).unsqueeze(-1)).exp().unsqueeze(-1)
    return phi.transpose(-2, -1) @ v, phi.sum(-2)


def _rows(
    kernel: FeatureKernel,
    q: Tensor,
    sums: Sums,
    parameters: tuple[Tensor, ...],
    dtype: torch.dtype,
) -> Tensor:
    """Outputs (B, H, N, E) of queries that all see the same sums."""
    (batch, heads, queries, _), groups = q.shape, sums.z.shape[1]
    phi = kernel.queries(q.to(sums.z.dtype), parameters)
    phi = phi.reshape(batch, groups, heads // groups * queries, phi.shape[-1])
    z = sums.z.unsqueeze(-1)
    size = _length(sums.z)[..., None, None] if kernel.bounded else None
    out = (phi @ sums.S) * kernel.inverse(phi @ z, size)
    return out.reshape(batch, heads, queries, sums.S.shape[-1]).to(dtype)


def _length(x: Tensor) -> Tensor:
    """|x| over the last axis, with zero gradient at 0."""
    square = x.square().sum(-1)
    positive = square > 0
    return torch.where(positive, torch.where(positive, square, 1.0).sqrt(), 0.0)


def _plain(
    kernel: FeatureKernel,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    parameters: tuple[Tensor, ...],
) -> Tensor:
    sums = _absorb(kernel, k, v, key_mask, parameters, None)
    return _rows(kernel, q, sums, parameters, v.dtype)


def _blocks(kernel: FeatureKernel, q_BHND: Tensor, tokens: int) -> Iterator[slice]:
    """Blocks of tokens whose features stay in the cache of a core; at least one, maybe empty."""
    batch, heads, _, dim = q_BHND.shape
    numbers = NUMBERS * torch.get_num_threads() if q_BHND.device.type == "cpu" else 2**26
    size = max(64, numbers // max(1, batch * heads * kernel.width(dim)))
    return _pieces(tokens, size)


def _pieces(tokens: int, size: int) -> Iterator[slice]:
    for start in range(0, max(1, tokens), size):
        yield slice(start, min(start + size, tokens))


def _kept(key_mask: Tensor | None, n: slice) -> Tensor | None:
    return None if key_mask is None else key_mask[:, n]


def _leaves(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.detach().requires_grad_() for x in tensors)


def _pull(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    grads: Sequence[Tensor],
    wanted: Sequence[bool],
) -> list[Any]:
    """Gradients of the wanted inputs, differentiable again where the caller's are."""
    again = torch.is_grad_enabled()
    chosen = [x for x, want in zip(inputs, wanted, strict=True) if want]
    found = iter(torch.autograd.grad(outputs, chosen, grads, create_graph=again, allow_unused=True))
    return [next(found) if want else None for want in wanted]


def _added(total: Sequence[Any], more: Sequence[Any]) -> list[Any]:
    return [a if b is None else b if a is None else a + b for a, b in zip(total, more, strict=True)]


class _Pooled(torch.autograd.Function):
    """The bidirectional form in blocks. Keeps q, k, v and the sums; features are recomputed."""

    @staticmethod
    def forward(
        ctx: Any,
        kernel: FeatureKernel,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None,
        *parameters: Tensor,
    ) -> Tensor:
        sums = None
        for n in _blocks(kernel, q, k.shape[2]):
            part = (k[:, :, n], v[:, :, n], _kept(key_mask, n))
            sums = _absorb(kernel, *part, parameters, sums)
        assert sums is not None
        out = empty_heads(q.shape[0], q.shape[1], q.shape[2], v.shape[3], v)
        for n in _blocks(kernel, q, q.shape[2]):
            out[:, :, n] = _rows(kernel, q[:, :, n], sums, parameters, v.dtype)
        ctx.kernel = kernel
        ctx.save_for_backward(q, k, v, key_mask, *sums, *parameters)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        kernel: FeatureKernel = ctx.kernel
        q, k, v, key_mask, *sums, m = ctx.saved_tensors[:7]
        parameters = ctx.saved_tensors[7:]
        need = ctx.needs_input_grad
        with no_autocast(grad.device.type):
            if torch.is_grad_enabled():
                out = _plain(kernel, q, k, v, key_mask, parameters)
                dq, dk, dv, *dp = _pull([out], (q, k, v, *parameters), [grad], need[1:4] + need[5:])
                return (None, dq, dk, dv, None, *dp)
            dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
            dsums: list[Any] = [torch.zeros_like(x) for x in sums]
            dp = [None] * len(parameters)
            for n in _blocks(kernel, q, q.shape[2]):
                leaves = _leaves(q[:, :, n], *sums, *parameters)
                with torch.enable_grad():
                    out = _rows(
                        kernel, leaves[0], Sums(leaves[1], leaves[2], m), leaves[3:], v.dtype
                    )
                found = _pull([out], leaves, [grad[:, :, n]], (True, True, True, *need[5:]))
                dq[:, :, n] = found[0]
                dsums = _added(dsums, found[1:3])
                dp = _added(dp, found[3:])
            for n in _blocks(kernel, q, k.shape[2]):
                leaves = _leaves(k[:, :, n], v[:, :, n], *parameters)
                with torch.enable_grad():
                    mapped = _mapped_keys(
                        kernel, leaves[0], leaves[1], _kept(key_mask, n), leaves[2:]
                    )
                    part = _summed(*mapped, m)
                found = _pull(part, leaves, dsums, (True, True, *need[5:]))
                dk[:, :, n], dv[:, :, n] = found[:2]
                dp = _added(dp, found[2:])
        return (None, dq, dk, dv, None, *dp)


def _causal(
    kernel: FeatureKernel,
    chunk: int,
    inputs: tuple[Tensor, Tensor, Tensor, Tensor | None],
    sums: Sums | None,
    parameters: tuple[Tensor, ...],
) -> tuple[Tensor, Sums]:
    chunk = max(1, min(chunk, inputs[0].shape[2]))
    if torch.compiler.is_compiling():
        return _chunked(kernel, chunk, *inputs, sums, parameters)
    function: Any = _Scanned
    given = (None, None, None) if sums is None else sums
    out, *after = function.apply(kernel, chunk, *inputs, *given, *parameters)
    return out, Sums(*after)


def _chunked(
    kernel: FeatureKernel,
    chunk: int,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    sums: Sums | None,
    parameters: tuple[Tensor, ...],
) -> tuple[Tensor, Sums]:
    """The causal form: inside a chunk by its matrix, from earlier chunks by their sums."""
    batch, heads, queries, _ = q.shape
    dtype = v.dtype
    # Keys after the last query are seen by none; missing and padded keys have phi(k) = 0.
    k, v, key_mask = k[:, :, :queries], v[:, :, :queries], _kept(key_mask, slice(queries))
    phi_k, v, weight = _mapped_keys(kernel, k, v, key_mask, parameters)
    groups = phi_k.shape[1]
    phi_q = kernel.queries(q.to(phi_k.dtype), parameters)
    phi_q = phi_q.reshape(batch, groups, heads // groups, queries, phi_q.shape[-1])
    phi_q = _in_chunks(phi_q, queries, chunk)
    phi_k, v = (_in_chunks(x.unsqueeze(2), queries, chunk) for x in (phi_k, v))
    if weight is not None:
        chunks = phi_k.shape[3]
        weight = F.pad(weight, (0, chunks * chunk - weight.shape[2]), value=-torch.inf)
        weight = weight.reshape(batch, groups, 1, chunks, chunk)
    if sums is None:
        sums = _nothing(phi_k, v, weight)

    match = phi_q @ phi_k.transpose(-2, -1)
    if weight is None:
        weights, fade = match.tril(), None
        partial = phi_k.cumsum(-2) if kernel.bounded else None
        S, z = (_running(x, new) for x, new in zip(sums[:2], _products(phi_k, v), strict=True))
        after = Sums(S[:, :, 0, -1].clone(), z[:, :, 0, -1, :, 0].clone())
    else:
        level, end = _levels(weight, sums.m)
        decay = _below(weight.unsqueeze(-2) - _finite(level).unsqueeze(-1)).exp()
        weights, fade = match * decay, (end[..., :-1, None] - _finite(level)).exp().unsqueeze(-1)
        partial = decay @ phi_k if kernel.bounded else None
        phi_k = phi_k * (weight - _finite(end)[..., 1:, None]).exp().unsqueeze(-1)
        # from the end of one chunk to that of another
        pass_on = _below(end.unsqueeze(-2) - _finite(end).unsqueeze(-1)).exp()
        S, z = (_passed(pass_on, x, y) for x, y in zip(sums[:2], _products(phi_k, v), strict=True))
        after = Sums(S[:, :, 0, -1].clone(), z[:, :, 0, -1, :, 0].clone(), end[:, :, 0, -1])
    S, z = S[:, :, :, :-1], z[:, :, :, :-1]
    top, bottom = phi_q @ S, phi_q @ z
    rest = z.transpose(-2, -1)
    if fade is not None:
        top, bottom, rest = top * fade, bottom * fade, rest * fade
    size = None if partial is None else _length(partial + rest).unsqueeze(-1)
    top = weights @ v + top
    bottom = weights.sum(-1, keepdim=True) + bottom
    out = top * kernel.inverse(bottom, size)
    out = out.flatten(3, 4)[:, :, :, :queries].reshape(batch, heads, queries, v.shape[-1])
    return out.to(dtype), after


def _in_chunks(x_BGRND: Tensor, tokens: int, chunk: int) -> Tensor:
    """(B, G, R, T, C, D), filled with zeros to whole chunks."""
    chunks = -(-tokens // chunk)
    x_BGRND = F.pad(x_BGRND, (0, 0, 0, chunks * chunk - x_BGRND.shape[3]))
    return x_BGRND.reshape(*x_BGRND.shape[:3], chunks, chunk, x_BGRND.shape[4])


def _nothing(phi_k: Tensor, v: Tensor, weight: Tensor | None) -> Sums:
    """The sums before the first token."""
    batch, groups, _, _, _, features = phi_k.shape
    S = phi_k.new_zeros(batch, groups, features, v.shape[-1])
    m = None if weight is None else phi_k.new_full((batch, groups), -torch.inf)
    return Sums(S, S[..., 0], m)


def _products(phi: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of each chunk alone: (B, G, 1, T, F, E) and (B, G, 1, T, F, 1)."""
    return phi.transpose(-2, -1) @ v, phi.sum(-2).unsqueeze(-1)


def _joined(first: Tensor, rest: Tensor) -> Tensor:
    """What was there before the chunks, and what each of them adds."""
    return torch.cat([first.reshape(*first.shape[:2], 1, 1, *rest.shape[4:]), rest], 3)


def _running(first: Tensor, rest: Tensor) -> Tensor:
    """Sums before each chunk, and after the last: T + 1."""
    return _joined(first, rest).cumsum(3)


def _passed(pass_on: Tensor, first: Tensor, rest: Tensor) -> Tensor:
    """The same, each rescaled to the maximum at its own place."""
    x = _joined(first, rest)
    return (pass_on @ x.flatten(4)).reshape(x.shape)


def _levels(weight: Tensor, m: Tensor | None) -> tuple[Tensor, Tensor]:
    """Running maximum at every token (B, G, 1, T, C); before each chunk and after all."""
    assert m is not None
    flat = weight.detach().flatten(3)
    level = torch.maximum(flat.cummax(-1).values, m[:, :, None, None]).reshape(weight.shape)
    return level, torch.cat([m[:, :, None, None], level[..., -1]], -1)


def _below(x: Tensor) -> Tensor:
    """Exponents on and below the diagonal, -inf above: the exponent is masked, not its value."""
    upper = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
    return x.masked_fill(upper, -torch.inf)


class _Scanned(torch.autograd.Function):
    """The causal form, block after block. Keeps q, k, v and the sums before each block."""

    @staticmethod
    def forward(
        ctx: Any,
        kernel: FeatureKernel,
        chunk: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None,
        S: Tensor | None,
        z: Tensor | None,
        m: Tensor | None,
        *parameters: Tensor,
    ) -> tuple[Tensor | None, ...]:
        sums = None if S is None or z is None else Sums(S, z, m)
        out = empty_heads(q.shape[0], q.shape[1], q.shape[2], v.shape[3], v)
        between: list[Tensor | None] = []
        for n in _pieces(q.shape[2], block_tokens(chunk)):
            if n.start:
                between += sums or ()
            part = (q[:, :, n], k[:, :, n], v[:, :, n], _kept(key_mask, n))
            out[:, :, n], sums = _chunked(kernel, chunk, *part, sums, parameters)
        assert sums is not None
        ctx.options = kernel, chunk, len(parameters)
        ctx.save_for_backward(q, k, v, key_mask, S, z, m, *parameters, *between)
        if sums.m is not None:
            ctx.mark_non_differentiable(sums.m)
        return out, *sums

    @staticmethod
    def backward(
        ctx: Any, grad: Tensor, dS: Tensor, dz: Tensor, _: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        kernel, chunk, count = ctx.options
        q, k, v, key_mask, S, z, m = ctx.saved_tensors[:7]
        parameters = ctx.saved_tensors[7 : 7 + count]
        need = ctx.needs_input_grad
        with no_autocast(grad.device.type):
            if torch.is_grad_enabled():
                sums = None if S is None else Sums(S, z, m)
                inputs = (q, k, v, key_mask)
                out, after = _chunked(kernel, chunk, *inputs, sums, parameters)
                found = _pull(
                    [out, after.S, after.z],
                    (q, k, v, S, z, *parameters),
                    [grad, dS, dz],
                    (*need[2:5], *need[6:8], *need[9:]),
                )
                dq, dk, dv, dS0, dz0, *dp = found
                return (None, None, dq, dk, dv, None, dS0, dz0, None, *dp)
            dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
            dp = [None] * count
            dsums: list[Any] = [dS, dz]
            begun = S is not None
            if not begun:
                S, z = torch.zeros_like(dS), torch.zeros_like(dz)
                m = torch.full_like(dz[..., 0], -torch.inf) if kernel.weighted else None
            before = [(S, z, m), *_triples(ctx.saved_tensors[7 + count :])]
            pieces = list(_pieces(q.shape[2], block_tokens(chunk)))
            for n, state in zip(reversed(pieces), reversed(before), strict=True):
                leaves = _leaves(q[:, :, n], k[:, :, n], v[:, :, n], *state[:2], *parameters)
                with torch.enable_grad():
                    part = (leaves[0], leaves[1], leaves[2], _kept(key_mask, n))
                    sums = Sums(leaves[3], leaves[4], state[2])
                    out, after = _chunked(kernel, chunk, *part, sums, leaves[5:])
                found = _pull(
                    [out, after.S, after.z],
                    leaves,
                    [grad[:, :, n], *dsums],
                    (True, True, True, True, True, *need[9:]),
                )
                dq[:, :, n], dk[:, :, n], dv[:, :, n] = found[:3]
                dsums, dp = found[3:5], _added(dp, found[5:])
            if not begun:
                dsums = [None, None]
        return (None, None, dq, dk, dv, None, *dsums, None, *dp)


def _triples(x: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
    return [tuple(x[i : i + 3]) for i in range(0, len(x), 3)]
