"""The losses of coarse-to-fine matching (Sun et al. 2021, section 3.6; the released loftr_loss.py).

Coarse: focal loss, -a (1 - c)^g log c at matches and -a c^g log(1 - c) elsewhere (a, not 1 - a, at
both). It is computed from log c. The released code clamps c to [1e-6, 1 - 1e-6], and a match whose
confidence is below 1e-6, as most are at the start, gets no gradient at all; that is
``space="clamped"``.

Shape suffixes: B pairs, L cells of image 0, S of image 1 (L+, S+ with a dustbin), M matches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from isoattn.matching.supervision.cells import Supervision

RELEASED_CLAMP = 1e-6

Space = Literal["log", "clamped"]
Entries = Literal["dense", "sparse"]
Pooling = Literal["pair", "batch"]


@dataclass(frozen=True)
class CoarseLossOptions:
    """How the confidence of cells is trained.

    Args:
        space: ``log``, or ``clamped`` as released.
        entries: ``dense``: matches and all other pairs of cells; ``sparse``: matches alone, and
            with dustbins also the cells that have no match.
        pooling: ``pair``: means over the entries of a pair, then over the pairs that have a match;
            padding is in no mean. ``batch``, as released: one mean over the matches and one over
            the others of the whole batch, in which padding and pairs without a match count as 0.
        alpha: weight of the focal loss.
        gamma: its exponent, 0 or at least 1 (in between, a sure match has an infinite gradient).

    Raises:
        ValueError: an unknown name, or a number out of range.
    """

    space: Space = "log"
    entries: Entries = "dense"
    pooling: Pooling = "pair"
    alpha: float = 0.25
    gamma: float = 2.0

    def __post_init__(self) -> None:
        choices = {"space": Space, "entries": Entries, "pooling": Pooling}
        for name, choice in choices.items():
            allowed = choice.__args__  # type: ignore[attr-defined]
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}"
                )
        if self.alpha <= 0 or (self.gamma < 1 and self.gamma != 0):
            raise ValueError(
                f"alpha must be above 0 and gamma 0, 1 or more, got {self.alpha} and {self.gamma}"
            )


def coarse_loss(
    log_confidence: Tensor,
    truth: Supervision,
    options: CoarseLossOptions = CoarseLossOptions(),  # noqa: B008 - frozen
    *,
    keep0_BL: Tensor | None = None,
    keep1_BS: Tensor | None = None,
) -> Tensor:
    """Focal loss of the coarse confidences; a scalar in float32 at least.

    A pair without a match contributes 0 with zero gradients (LoFTR#175).

    Args:
        log_confidence: (B, L, S), or (B, L+, S+) with dustbins last; -inf where a cell is padding.
        truth: of the batch.
        options: see :class:`CoarseLossOptions`.
        keep0_BL, keep1_BS: bool, cells that are no padding; ``None``: all.

    Raises:
        ValueError: a matrix of another shape than the supervision's.
    """
    log_c = log_confidence.to(torch.promote_types(log_confidence.dtype, torch.float32))
    batch, cells0, cells1 = truth.shape
    bins = tuple(log_c.shape) == (batch, cells0 + 1, cells1 + 1)
    if not bins and tuple(log_c.shape) != truth.shape:
        raise ValueError(
            f"Confidences {tuple(log_c.shape)} do not fit the supervision: {truth.shape}, or one "
            "row and column more with dustbins"
        )
    keep0_BL = _all_true(log_c, batch, cells0) if keep0_BL is None else keep0_BL
    keep1_BS = _all_true(log_c, batch, cells1) if keep1_BS is None else keep1_BS
    loss = _matches(log_c, truth, options, keep0_BL, keep1_BS)
    if options.entries == "dense":
        return loss + _others(log_c[:, :cells0, :cells1], truth, options, keep0_BL, keep1_BS)
    return loss + _lost(log_c, truth, options, keep0_BL, keep1_BS) if bins else loss


def fine_loss(
    expectation_M3: Tensor,
    target_M2: Tensor,
    batch_index_M: Tensor,
    pairs: int,
    *,
    pooling: Pooling = "pair",
) -> Tensor:
    """Squared error of the refined positions, weighted by how sure they are.

    The weight is 1 / std over its mean, without gradient. Matches whose target lies outside the
    window, or is not known, are left out.

    Args:
        expectation_M3: (x, y, std) in halves of the fine window.
        target_M2: from :meth:`Supervision.fine_targets`.
        batch_index_M: int64, pair of each match.
        pairs: B.
        pooling: ``pair``: the mean of 1 / std and of the errors is that of each pair, then over the
            pairs with any match inside; ``batch``, as released: of all matches.

    Returns:
        A scalar; 0 with zero gradients where no target is inside.
    """
    inverse_M = 1.0 / expectation_M3[:, 2].detach().clamp(min=1e-10)
    if pooling == "batch":
        weight_M = inverse_M / inverse_M.mean()
    else:
        sum_B, count_B = _sums(inverse_M, batch_index_M, pairs)
        weight_M = inverse_M / (sum_B / count_B.clamp(min=1))[batch_index_M]
    inside = (target_M2.abs().amax(1) < 1).nonzero()[:, 0]
    error = (expectation_M3[inside, :2] - target_M2[inside]).square().sum(1) * weight_M[inside]
    sum_B, count_B = _sums(error, batch_index_M[inside], pairs)
    return _pool(sum_B, count_B, count_B > 0, pooling)


def _positive(log_c: Tensor, options: CoarseLossOptions) -> Tensor:
    """-a (1 - c)^g log c."""
    if options.space == "clamped":
        c = log_c.exp().clamp(RELEASED_CLAMP, 1 - RELEASED_CLAMP)
        return -options.alpha * (1 - c).pow(options.gamma) * c.log()
    # A confidence of optimal transport may round to a little more than 1.
    log_c = log_c.clamp(max=0.0)
    return -options.alpha * (-log_c.expm1()).pow(options.gamma) * log_c


def _negative(log_c: Tensor, options: CoarseLossOptions) -> Tensor:
    """-a c^g log(1 - c); 0 with zero gradient at log c = -inf."""
    if options.space == "clamped":
        c = log_c.exp().clamp(RELEASED_CLAMP, 1 - RELEASED_CLAMP)
        return -options.alpha * c.pow(options.gamma) * (1 - c).log()
    # The largest c below 1, so that log(1 - c) is finite.
    log_c = log_c.clamp(max=-torch.finfo(log_c.dtype).eps)
    power = (options.gamma * log_c).exp() if options.gamma else 1.0
    return -options.alpha * power * (-log_c.expm1()).log()


def _all_true(like: Tensor, batch: int, cells: int) -> Tensor:
    return torch.ones(batch, cells, dtype=torch.bool, device=like.device)


def _matches(
    log_c: Tensor,
    truth: Supervision,
    options: CoarseLossOptions,
    keep0_BL: Tensor,
    keep1_BS: Tensor,
) -> Tensor:
    """The mean over the matches; one in padding counts with weight 0, as released."""
    kept_M = keep0_BL[truth.b, truth.i] & keep1_BS[truth.b, truth.j]
    log_c_M = log_c[truth.b, truth.i, truth.j].masked_fill(~kept_M, 0.0)
    terms_M = torch.where(kept_M, _positive(log_c_M, options), 0.0)
    return _mean_of(terms_M, truth.b, truth, options.pooling)


def _others(
    log_c_BLS: Tensor,
    truth: Supervision,
    options: CoarseLossOptions,
    keep0_BL: Tensor,
    keep1_BS: Tensor,
) -> Tensor:
    """The mean over pairs of cells that are no match."""
    counted_BLS = ~truth.dense() & truth.valid_B[:, None, None]
    counted_BLS &= keep0_BL[:, :, None] & keep1_BS[:, None, :]
    every = truth.shape[1] * truth.shape[2] - truth.counts()
    terms_BLS = _negative(log_c_BLS.masked_fill(~counted_BLS, -torch.inf), options)
    sum_B = torch.where(counted_BLS, terms_BLS, 0.0).sum((1, 2))
    # The released mean counts padding, with weight 0.
    count_B = every if options.pooling == "batch" else counted_BLS.sum((1, 2))
    return _pool(sum_B, count_B, truth.valid_B, options.pooling)


def _lost(
    log_c: Tensor,
    truth: Supervision,
    options: CoarseLossOptions,
    keep0_BL: Tensor,
    keep1_BS: Tensor,
) -> Tensor:
    """The mean over cells without a match: they belong to the dustbin."""
    lost0_BL, lost1_BS = (keep & truth.valid_B[:, None] for keep in (keep0_BL, keep1_BS))
    lost0_BL[truth.b, truth.i] = False
    lost1_BS[truth.b, truth.j] = False
    b0, i = lost0_BL.nonzero(as_tuple=True)
    b1, j = lost1_BS.nonzero(as_tuple=True)
    log_bins_M = torch.cat([log_c[b0, i, -1], log_c[b1, -1, j]])
    return _mean_of(_positive(log_bins_M, options), torch.cat([b0, b1]), truth, options.pooling)


def _mean_of(terms_M: Tensor, b_M: Tensor, truth: Supervision, pooling: Pooling) -> Tensor:
    sum_B, count_B = _sums(terms_M, b_M, truth.shape[0])
    return _pool(sum_B, count_B, truth.valid_B, pooling)


def _sums(terms_M: Tensor, b_M: Tensor, pairs: int) -> tuple[Tensor, Tensor]:
    """Sum and number of the terms of each pair."""
    sum_B = terms_M.new_zeros(pairs).index_add(0, b_M, terms_M)
    return sum_B, torch.bincount(b_M, minlength=pairs)


def _pool(sum_B: Tensor, count_B: Tensor, valid_B: Tensor, pooling: Pooling) -> Tensor:
    if pooling == "batch":
        return sum_B.sum() / count_B.sum().clamp(min=1)
    return (sum_B / count_B.clamp(min=1)).sum() / valid_B.sum().clamp(min=1)
