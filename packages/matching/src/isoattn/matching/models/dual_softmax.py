"""Dual softmax between the cells of two images, in log space: dense, and streamed.

P_ij = softmax_j(S_ij) softmax_i(S_ij), S_ij = f0_i . f1_j / (C t) (Sun et al. 2021, eq. 2-3), so
log P = 2 S - r - c with the log-sum-exps r of the rows and c of the columns. A masked cell is in
no sum, and its log P is -inf. Everything is float32 at least: in float16 the logits overflow.

Shape suffixes: B pairs, N cells of image 0, M cells of image 1, C channels, R rows of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from isoattn.core.ops.masking import no_autocast
from isoattn.matching.models.nearest import Nearest

BLOCK_NUMBERS = 2**19
"""Logits of one block of rows: 2 MiB, which stay in the cache of a CPU core."""

KEPT_NUMBERS = 2**26
"""Logits that are kept between the two passes, 256 MiB; of larger pairs they are made twice."""


def similarity(x0_BNC: Tensor, x1_BMC: Tensor, temperature: float) -> Tensor:
    """Logits S (B, N, M) in float32 at least."""
    with no_autocast(x0_BNC.device.type):
        x0_BNC, x1_BMC = _wide(x0_BNC), _wide(x1_BMC)
        return (x0_BNC / (x0_BNC.shape[2] * temperature)) @ x1_BMC.transpose(1, 2)


def dual_log_softmax(
    logits_BNM: Tensor, mask0: Tensor | None = None, mask1: Tensor | None = None
) -> Tensor:
    """Log P (B, N, M), -inf where either cell is masked; differentiable, finite gradients.

    Keeps one matrix of logits for the backward pass and returns another.

    Args:
        logits_BNM: S, in float32 at least.
        mask0: bool (B, N), True = keep.
        mask1: bool (B, M).
    """
    padded = _padded(mask0, mask1)
    if padded is not None:  # finite, so that a row without any cell has no NaN gradient
        logits_BNM = logits_BNM.masked_fill(padded, torch.finfo(logits_BNM.dtype).min)
    rows_BN1 = logits_BNM.logsumexp(2, keepdim=True)
    columns_B1M = logits_BNM.logsumexp(1, keepdim=True)
    log_confidence = (2.0 * logits_BNM).sub_(rows_BN1).sub_(columns_B1M)
    return log_confidence if padded is None else log_confidence.masked_fill(padded, -torch.inf)


@torch.no_grad()
def stream_nearest(
    x0_BNC: Tensor,
    x1_BMC: Tensor,
    temperature: float,
    mask0: Tensor | None = None,
    mask1: Tensor | None = None,
    *,
    block_numbers: int = BLOCK_NUMBERS,
    kept_numbers: int = KEPT_NUMBERS,
) -> Nearest:
    """The mutual nearest neighbours under log P, exact, without the matrix P.

    Two passes over blocks of rows: the first finds r and, block after block, c; the second log P
    and its maxima. Masked cells are taken out beforehand, so they cost nothing.

    Args:
        x0_BNC: tokens of image 0.
        x1_BMC: tokens of image 1.
        temperature: t.
        mask0: bool (B, N), True = keep.
        mask1: bool (B, M).
        block_numbers: logits of one block.
        kept_numbers: logits of a pair that may be kept from the first pass to the second.
    """
    found = Nearest.none(_wide(x0_BNC[..., 0]))
    for pair in range(len(x0_BNC)):
        own0 = _kept(mask0, pair, x0_BNC)
        own1 = _kept(mask1, pair, x1_BMC)
        if not len(own0) or not len(own1):
            continue
        with no_autocast(x0_BNC.device.type):
            x0 = _wide(x0_BNC[pair])[own0] / (x0_BNC.shape[2] * temperature)
            x1 = _wide(x1_BMC[pair])[own1]
            one = _nearest_of_pair(x0, x1.T.contiguous(), block_numbers, kept_numbers)
        found.cell[pair, own0] = own1[one.cell[0]]
        found.score[pair, own0] = one.score[0]
        found.mutual[pair, own0] = one.mutual[0]
    return found


def _nearest_of_pair(x0_NC: Tensor, x1_CM: Tensor, block: int, kept: int) -> Nearest:
    rows, columns = len(x0_NC), x1_CM.shape[1]
    blocks = _blocks(x0_NC, x1_CM, max(1, block // columns), keep=rows * columns <= kept)
    row_sums_N = x0_NC.new_empty(rows)
    column_sums_M = x0_NC.new_full((columns,), -torch.inf)
    for part, logits_RM in blocks():
        row_sums_N[part] = logits_RM.logsumexp(1)
        torch.logaddexp(column_sums_M, logits_RM.logsumexp(0), out=column_sums_M)
    score_N = torch.empty_like(row_sums_N)
    cell_N = torch.empty_like(row_sums_N, dtype=torch.int64)
    best_M = torch.full_like(column_sums_M, -torch.inf)
    for part, logits_RM in blocks():
        log_p_RM = (-row_sums_N[part, None] - column_sums_M).add_(logits_RM, alpha=2.0)
        score_N[part], cell_N[part] = log_p_RM.max(1)
        torch.maximum(best_M, log_p_RM.amax(0), out=best_M)
    mutual_N = _first_of_column(score_N == best_M[cell_N], cell_N, columns)
    return Nearest(cell_N[None], score_N[None], mutual_N[None])


def _first_of_column(best_N: Tensor, cell_N: Tensor, columns: int) -> Tensor:
    """Of the rows that hold the maximum of their column, the first one of each column.

    Cheaper than the place of the maximum of each block of columns, which is not a fast reduction.
    """
    row_K = best_N.nonzero()[:, 0]
    first_M = torch.full((columns,), len(cell_N), device=cell_N.device)
    first_M.scatter_reduce_(0, cell_N[row_K], row_K, "amin")
    place_N = torch.arange(len(cell_N), device=cell_N.device)
    return best_N & (first_M[cell_N] == place_N)


def _blocks(
    x0_NC: Tensor, x1_CM: Tensor, size: int, *, keep: bool
) -> Callable[[], Iterator[tuple[slice, Tensor]]]:
    """Called twice: the logits of each block of rows, made anew or kept from the first time."""
    parts = [slice(start, min(start + size, len(x0_NC))) for start in range(0, len(x0_NC), size)]
    made: list[Tensor] = []

    def walk() -> Iterator[tuple[slice, Tensor]]:
        again = bool(made)
        for number, part in enumerate(parts):
            logits = made[number] if again else x0_NC[part] @ x1_CM
            if keep and not again:
                made.append(logits)
            yield part, logits

    return walk


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _padded(mask0: Tensor | None, mask1: Tensor | None) -> Tensor | None:
    """True where either cell of a pair is masked, broadcasting to (B, N, M)."""
    if mask0 is None and mask1 is None:
        return None
    if mask1 is None:
        return None if mask0 is None else ~mask0[:, :, None]
    return ~mask1[:, None, :] if mask0 is None else ~(mask0[:, :, None] & mask1[:, None, :])


def _kept(mask: Tensor | None, pair: int, x: Tensor) -> Tensor:
    """Indices of the cells of a pair that count."""
    if mask is None:
        return torch.arange(x.shape[1], device=x.device)
    return mask[pair].nonzero()[:, 0]
