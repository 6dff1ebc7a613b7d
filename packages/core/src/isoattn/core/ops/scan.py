"""The diagonal scan h_t = a_t h_(t-1) + x_t, parallel over time.

Neighbouring steps are joined in pairs, (a, x) then (a', x') being (a' a, a' x + x'); the joined
ones are scanned, and the steps between follow from them: O(N) work in log2 N rounds. The decays are
added as logarithms, so that no exponent is above 0, nothing is ever divided by a product that may
have vanished, and a decay of 1 - 1e-7 is not rounded away a million times.

Shape suffixes: B batch, N tokens, C any further axes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from isoattn.core.ops.blocks import NUMBERS


def diagonal_scan(
    log_a_BNC: Tensor, x_BNC: Tensor, h0_BC: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """h_t = exp(log_a_t) h_(t-1) + x_t along axis 1.

    Any length, also 0. Gradients, second ones too, flow to everything, h0 included; between forward
    and backward log_a and h alone are kept. ``torch.compile`` takes it as one operator.

    Args:
        log_a_BNC: logarithms of the decays, at most 0; -inf forgets everything before. Broadcasts
            to the shape of x.
        x_BNC: what is added, in the dtype to compute in (float32 or float64).
        h0_BC: the state before the first token; ``None`` is 0.

    Returns:
        All states (B, N, C...) and the last one (B, C...), in the dtype of x.
    """
    log_a_BNC = log_a_BNC.to(x_BNC.dtype).expand_as(x_BNC)
    if h0_BC is not None:
        h0_BC = h0_BC.to(x_BNC.dtype).expand_as(x_BNC[:, :1].sum(1))
    if x_BNC.shape[1] == 0:
        return x_BNC, x_BNC.sum(1) if h0_BC is None else h0_BC
    h_BNC: Tensor = _scan(log_a_BNC, x_BNC, h0_BC, False)
    return h_BNC, h_BNC[:, -1]


@torch.library.custom_op("isoattn::diagonal_scan", mutates_args=())
def _scan(log_a: Tensor, x: Tensor, h0: Tensor | None, reverse: bool) -> Tensor:
    """The scan; in reverse h_t = exp(log_a_(t+1)) h_(t+1) + x_t, which is its transpose."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    h = torch.zeros_like(x[:, 0]) if h0 is None else h0
    n = x.shape[1]
    for start, stop in _chunks(x, reverse):
        if not reverse:
            h = _tree(log_a[:, start:stop], x[:, start:stop], h, out[:, start:stop])[:, -1]
            continue
        decay = log_a[:, start + 1 : stop + 1].flip(1)
        if stop == n:  # nothing follows the last token
            decay = torch.cat([torch.zeros_like(x[:, :1]), decay], 1)
        back = x[:, start:stop].flip(1)
        _tree(decay, back, h, back)
        h = back[:, -1]
        out[:, start:stop] = back.flip(1)
    return out


def _chunks(x: Tensor, reverse: bool) -> Iterator[tuple[int, int]]:
    """Pieces of the time axis that stay in the cache of a CPU core; all of it elsewhere."""
    n = x.shape[1]
    size = n
    if x.device.type == "cpu":
        size = max(64, NUMBERS * n * torch.get_num_threads() // (4 * max(1, x.numel())))
    starts = range(0, n, size)
    for start in reversed(starts) if reverse else starts:
        yield start, min(start + size, n)


def _tree(log_a: Tensor, x: Tensor, h0: Tensor, out: Tensor) -> Tensor:
    """The scan of one piece into ``out``, which may be x."""
    n = x.shape[1]
    if n == 1:
        out.copy_(torch.addcmul(x, log_a.exp(), h0.unsqueeze(1)))
        return out
    pairs = n // 2
    left, right = log_a[:, 0 : 2 * pairs : 2], log_a[:, 1::2]
    joined = torch.addcmul(x[:, 1::2], right.exp(), x[:, 0 : 2 * pairs : 2])
    joined = _tree(left + right, joined, h0, joined)
    before = torch.cat([h0.unsqueeze(1), joined[:, : (n - 1) // 2]], 1)
    torch.addcmul(x[:, ::2], log_a[:, ::2].exp(), before, out=out[:, ::2])
    out[:, 1::2] = joined
    return out


@_scan.register_fake
def _(log_a: Tensor, x: Tensor, h0: Tensor | None, reverse: bool) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    log_a, _, h0, ctx.reverse = inputs
    ctx.save_for_backward(log_a, h0, output)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    log_a, h0, h = ctx.saved_tensors
    dx: Tensor = _scan(log_a, grad, None, not ctx.reverse)
    first = torch.zeros_like(h[:, :1]) if h0 is None else h0.unsqueeze(1)
    if ctx.reverse:
        dlog_a = log_a.exp() * h * torch.cat([torch.zeros_like(dx[:, :1]), dx[:, :-1]], 1)
    else:
        dlog_a = log_a.exp() * torch.cat([first, h[:, :-1]], 1) * dx
    dh0 = None if h0 is None else log_a[:, 0].exp() * dx[:, 0]
    return dlog_a, dx, dh0, None


_scan.register_autograd(_backward, setup_context=_setup)
