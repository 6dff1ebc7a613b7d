"""What the meter says: quantities with their errors, formed from rows of the implied matrix.

Shape suffixes: as in :mod:`isoattn.core.contract`; S chosen samples, R chosen queries of each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from isoattn.core.ops.estimators import RowSample, participation_ratio


@dataclass(frozen=True)
class Quantity:
    """One measured number.

    Args:
        value: NaN where it is undefined for this attention, inf where it diverges.
        error: standard error from sampling queries; 0 where all were looked at, NaN where unknown.
        estimator: how it was made, or why it is undefined.
    """

    value: float
    error: float
    estimator: str

    @property
    def defined(self) -> bool:
        """Whether there is a value, be it infinite."""
        return not math.isnan(self.value)


@dataclass(frozen=True)
class Reading:
    """What the meter says of one attention on one batch.

    Weights are those of the implied matrix A, o = A v; ``softmax_...`` is said of exact softmax on
    the same q, k, for comparison. Entropies are in nats.

    Args:
        attention: name of the class.
        batch: B.
        heads: H.
        queries: N.
        keys: M.
        rows: queries looked at, in all samples together; each in every head.
        causal: the form that was measured.
        output_error: ||o - o_softmax|| / ||o_softmax||, Frobenius norms over all queries.
        mean_error: the same for the mean of the visible values.
        skill: 1 - (output_error / mean_error)^2: 1 is softmax, 0 no better than mean pooling.
        kl: KL(softmax || A), rows of A divided by their sums.
        top1: how often the heaviest key of A is the heaviest of softmax; a tie counts in part.
        negative_mass: share of negative weights in the sum of absolute weights of a row.
        row_sum: sum of a row of A.
        row_sum_deviation: |row sum - 1|.
        entropy: of a row of A divided by its sum.
        effective_keys: exp(entropy), averaged over rows.
        effective_rank: (sum s^2)^2 / sum s^4 of the singular values s of A.
        softmax_entropy: entropy of a row of softmax.
        softmax_effective_keys: exp of it.
        softmax_effective_rank: effective rank of softmax.
    """

    attention: str
    batch: int
    heads: int
    queries: int
    keys: int
    rows: int
    causal: bool
    output_error: Quantity
    mean_error: Quantity
    skill: Quantity
    kl: Quantity
    top1: Quantity
    negative_mass: Quantity
    row_sum: Quantity
    row_sum_deviation: Quantity
    entropy: Quantity
    effective_keys: Quantity
    effective_rank: Quantity
    softmax_entropy: Quantity
    softmax_effective_keys: Quantity
    softmax_effective_rank: Quantity

    def quantities(self) -> dict[str, Quantity]:
        """The measured numbers by name."""
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: x for name, x in found.items() if isinstance(x, Quantity)}

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON: NaN becomes None, inf the word ``"inf"``."""
        plain: dict[str, Any] = {}
        for field in fields(self):
            x = getattr(self, field.name)
            if isinstance(x, Quantity):
                x = {
                    "value": _plain(x.value),
                    "error": _plain(x.error),
                    "estimator": x.estimator,
                }
            plain[field.name] = x
        return plain


def against_softmax(
    sample: RowSample,
    out_SHRE: Tensor,
    soft_SHRM: Tensor,
    seen_SRM: Tensor,
    v_SHME: Tensor,
) -> dict[str, Quantity]:
    """Output error, that of mean pooling, and skill."""
    weights = seen_SRM.to(v_SHME.dtype)
    mean = (weights / weights.sum(-1, keepdim=True).clamp(min=1.0))[:, None] @ v_SHME
    exact = soft_SHRM @ v_SHME
    ours, pooled, size = (x.square().sum((1, 3)) for x in (out_SHRE - exact, mean - exact, exact))
    skill, error = sample.ratio(ours, pooled)
    how = "ratio of sums over sampled queries"
    lost = "undefined: mean pooling equals softmax here" if math.isnan(skill) else how
    return {
        "output_error": _root(sample.ratio(ours, size), how),
        "mean_error": _root(sample.ratio(pooled, size), how),
        "skill": Quantity(1.0 - skill, error, lost),
    }


def _root(square: tuple[float, float], how: str) -> Quantity:
    value, error = square
    if math.isnan(value):
        return Quantity(value, error, "undefined: the output of softmax is 0 here")
    root = math.sqrt(value)
    return Quantity(root, error / (2 * root) if root else 0.0, f"square root of a {how}")


def of_rows(
    sample: RowSample,
    rows_SHRM: Tensor | None,
    soft_SHRM: Tensor,
    seen_SRM: Tensor,
    eps: float,
) -> dict[str, Quantity]:
    """What is said of the matrix of the attention, and of that of softmax."""
    how = "mean over sampled rows"
    pairs = "unbiased traces from pairs of sampled rows, jackknife error"
    entropy = _entropy(soft_SHRM)
    found = {
        "softmax_entropy": _mean(sample, entropy, how),
        "softmax_effective_keys": _mean(sample, entropy.exp(), how),
        "softmax_effective_rank": Quantity(*participation_ratio(soft_SHRM, sample), pairs),
    }
    names = ("negative_mass", "row_sum", "row_sum_deviation", "top1", "effective_rank")
    distribution = ("kl", "entropy", "effective_keys")
    if rows_SHRM is None:
        why = "undefined: it mixes channels, so it has no matrix over tokens"
        return found | {n: Quantity(math.nan, math.nan, why) for n in (*names, *distribution)}
    rows = rows_SHRM.to(soft_SHRM.dtype)
    total = rows.sum(-1)
    mass = rows.abs().sum(-1)
    negative = rows.clamp(max=0.0).neg().sum(-1) / mass.clamp(min=torch.finfo(mass.dtype).tiny)
    found |= {
        "negative_mass": _mean(sample, negative, how),
        "row_sum": _mean(sample, total, how),
        "row_sum_deviation": _mean(sample, (total - 1.0).abs(), how),
        "top1": _mean(sample, _top1(rows, soft_SHRM, seen_SRM, eps), how),
        "effective_rank": Quantity(*participation_ratio(rows, sample), pairs),
    }
    keep = sample.keep_SR.to(total.device)[:, None].expand_as(total)
    signed = ((negative > 128 * eps) & keep).sum() / keep.sum()
    empty = ((total <= 0) & keep).sum() / keep.sum()
    if signed > 0 or empty > 0:
        why = f"{signed:.0%} of the rows have negative weights"
        why = why if signed > 0 else f"{empty:.0%} of the rows have no weight"
        return found | {n: Quantity(math.nan, math.nan, f"undefined: {why}") for n in distribution}
    rows = rows.clamp(min=0.0) / total.clamp(min=torch.finfo(total.dtype).tiny).unsqueeze(-1)
    entropy = _entropy(rows)
    return found | {
        "kl": _mean(sample, _kl(soft_SHRM, rows, eps), how),
        "entropy": _mean(sample, entropy, how),
        "effective_keys": _mean(sample, entropy.exp(), how),
    }


def _mean(sample: RowSample, x_SHR: Tensor, how: str) -> Quantity:
    value, error = sample.mean(x_SHR.mean(1))
    if math.isinf(value):
        how = "infinite: a key that softmax weighs has weight 0"
    return Quantity(value, error, how)


def _entropy(rows: Tensor) -> Tensor:
    terms: Tensor = torch.special.xlogy(rows, rows)
    return -terms.sum(-1)


def _kl(soft: Tensor, rows: Tensor, eps: float) -> Tensor:
    """KL a row; a weight of 0 where softmax is below the rounding of the dtype counts nothing."""
    lost = (rows == 0) & (soft > eps)
    terms: Tensor = torch.special.xlogy(soft, soft) - torch.special.xlogy(soft, rows)
    terms = terms.masked_fill(rows == 0, 0.0).masked_fill(lost, math.inf)
    return terms.sum(-1).clamp(min=0.0)


def _top1(rows: Tensor, soft: Tensor, seen_SRM: Tensor, eps: float) -> Tensor:
    """Share of the heaviest keys of a row that are heaviest in softmax; ties by rounding count."""
    ours = _heaviest(rows, seen_SRM, eps)
    both = ours & _heaviest(soft, seen_SRM, eps)
    return both.sum(-1).to(soft.dtype) / ours.sum(-1).clamp(min=1)


def _heaviest(rows: Tensor, seen_SRM: Tensor, eps: float) -> Tensor:
    visible = seen_SRM[:, None]
    top = rows.masked_fill(~visible, -math.inf).amax(-1, keepdim=True)
    return (rows >= top - 16 * eps * top.abs()) & visible


def _plain(x: float) -> float | str | None:
    if math.isnan(x):
        return None
    return x if math.isfinite(x) else "inf"
