"""Estimates, with their errors, from some samples of a batch and some rows of each.

Shape suffixes: S chosen samples, H heads, R rows of each, M keys. Cochran, Sampling Techniques, 3rd
edition: ratios in section 2.11, two stages in 10.3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class RowSample:
    """Which rows were drawn. Everything is computed in float64 on the CPU.

    Args:
        keep_SR: bool, on the CPU, False where a sample has fewer rows than R.
        rows_S: float64, how many rows each chosen sample has in all, of which some were drawn.
        samples: how many samples there are, of which S were chosen.
    """

    keep_SR: Tensor
    rows_S: Tensor
    samples: int

    @property
    def drawn_S(self) -> Tensor:
        """Rows drawn of each chosen sample."""
        return self.keep_SR.sum(1)

    @property
    def exact(self) -> bool:
        """Every row of every sample was drawn."""
        chosen = self.keep_SR.shape[0]
        return chosen == self.samples and bool((self.drawn_S == self.rows_S).all())

    def mean(self, x_SR: Tensor) -> tuple[float, float]:
        """The mean of a number a row over all rows, and its standard error."""
        return self.ratio(x_SR, torch.ones_like(x_SR))

    def ratio(self, top_SR: Tensor, bottom_SR: Tensor) -> tuple[float, float]:
        """A ratio of two sums over all rows, and its standard error; NaN where it is 0 / 0."""
        top_SR, bottom_SR = top_SR.cpu().double(), bottom_SR.cpu().double()
        share_S = self.rows_S / self.drawn_S.clamp(min=1)
        top = (top_SR.where(self.keep_SR, 0.0).sum(1) * share_S).sum()
        bottom = (bottom_SR.where(self.keep_SR, 0.0).sum(1) * share_S).sum()
        if bottom == 0:
            return math.nan, math.nan
        ratio = top / bottom
        if not ratio.isfinite():
            return ratio.item(), math.nan
        scale = bottom / (self.rows_S.sum() or 1)
        residual_SR = ((top_SR - ratio * bottom_SR) / scale).where(self.keep_SR, 0.0)
        return ratio.item(), self._error(residual_SR)

    def _error(self, residual_SR: Tensor) -> float:
        """Standard error of a mean, from residuals that sum to 0 over the population."""
        if self.exact:
            return 0.0
        weight_S = self.rows_S / self.rows_S.mean()
        drawn_S, chosen = self.drawn_S, self.keep_SR.shape[0]
        mean_S = residual_SR.sum(1) / drawn_S.clamp(min=1)
        spread_SR = (residual_SR - mean_S[:, None]).where(self.keep_SR, 0.0)
        within_S = spread_SR.square().sum(1) / (drawn_S - 1)  # 0 / 0 where one row was drawn
        within_S = within_S * (1 - drawn_S / self.rows_S.clamp(min=1)) / drawn_S
        within_S = within_S.where(drawn_S < self.rows_S, 0.0) * weight_S.square()
        first = chosen / self.samples
        variance = first * within_S.sum() / chosen**2
        if chosen < self.samples:
            between = (mean_S * weight_S).var() if chosen > 1 else torch.tensor(math.nan)
            variance = variance + (1 - first) * between / chosen
        return math.sqrt(variance) if variance >= 0 else math.nan


def participation_ratio(rows_SHRM: Tensor, sample: RowSample) -> tuple[float, float]:
    """(sum s^2)^2 / sum s^4 over the singular values s of A, averaged over heads; 1 <= it <= N.

    Both sums are unbiased from a sample of rows: tr(A A^T)^2 from products of two row norms,
    tr((A A^T)^2) from the inner products of two rows. Their ratio is formed for each head over all
    samples. The error is a jackknife, over rows or, where samples were chosen, over samples.

    Returns:
        Value and standard error; NaN where fewer than two rows of a sample were drawn, or A is 0.
    """
    gram_SHRR = (rows_SHRM @ rows_SHRM.transpose(-2, -1)).cpu().double()
    value = _ratio_of_traces(gram_SHRR, sample.keep_SR, sample.rows_S)
    if math.isnan(value) or sample.exact:
        return value, 0.0 if sample.exact and not math.isnan(value) else math.nan
    chosen = sample.keep_SR.shape[0]
    left_out = []
    if chosen < sample.samples:
        fraction = chosen / sample.samples
        for s in range(chosen):
            keep = sample.keep_SR.clone()
            keep[s] = False
            left_out.append(_ratio_of_traces(gram_SHRR, keep, sample.rows_S))
    else:
        fraction = float(sample.drawn_S.sum() / sample.rows_S.sum())
        for s, r in sample.keep_SR.nonzero().tolist():
            keep = sample.keep_SR.clone()
            keep[s, r] = False
            left_out.append(_ratio_of_traces(gram_SHRR, keep, sample.rows_S))
    values = torch.tensor(left_out, dtype=torch.float64)
    count = len(left_out)
    variance = (count - 1) / count * (values - values.mean()).square().sum() * (1 - fraction)
    return value, math.sqrt(variance) if variance >= 0 else math.nan


def _ratio_of_traces(gram_SHRR: Tensor, keep_SR: Tensor, rows_S: Tensor) -> float:
    """The participation ratio from the inner products of the kept rows."""
    drawn_S = keep_SR.sum(1)
    usable_S = (drawn_S > 1) | ((drawn_S == 1) & (rows_S == 1))
    if not usable_S.any():
        return math.nan
    keep = (keep_SR & usable_S[:, None])[:, None]
    pairs = keep.unsqueeze(-1) & keep.unsqueeze(-2)
    norm_SHR = gram_SHRR.diagonal(dim1=-2, dim2=-1).where(keep, 0.0)
    squares_SH = norm_SHR.square().sum(-1)
    norms_SH = norm_SHR.sum(-1).square() - squares_SH
    inner_SH = gram_SHRR.where(pairs, 0.0).square().sum((-2, -1)) - squares_SH
    one_S = (rows_S / drawn_S.clamp(min=1)).where(usable_S, 0.0)
    two_S = rows_S * (rows_S - 1) / (drawn_S * (drawn_S - 1)).clamp(min=1)
    two_S = two_S.where(usable_S, 0.0)
    top_H = (one_S[:, None] * squares_SH + two_S[:, None] * norms_SH).sum(0)
    bottom_H = (one_S[:, None] * squares_SH + two_S[:, None] * inner_SH).sum(0)
    return (top_H / bottom_H).mean().item()
