"""Area under the curve of recall over error, the summary of pose and homography errors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def error_auc(errors_N: Tensor, thresholds: Sequence[float]) -> list[float]:
    """For each threshold t: the mean over errors e in [0, t] of the share of items below e.

    The recall rises linearly between the sorted errors (from 0 at 0) up to the last one below t and
    stays there, as in the released evaluations of SuperGlue, LoFTR and glue-factory.

    Args:
        errors_N: one an item, any unit; failures as inf, NaN counts as one.
        thresholds: in the same unit.

    Returns:
        A number in [0, 1] for each threshold; NaN without items.

    Raises:
        ValueError: a threshold that is not above 0.
    """
    if min(thresholds) <= 0:
        raise ValueError(f"Thresholds of an AUC must be above 0, got {list(thresholds)}")
    if not len(errors_N):
        return [float("nan")] * len(thresholds)
    sorted_N = errors_N.double().nan_to_num(nan=torch.inf, posinf=torch.inf).sort().values.cpu()
    errors = torch.cat([sorted_N.new_zeros(1), sorted_N])
    recall = torch.arange(len(errors), dtype=torch.float64) / len(sorted_N)
    areas = []
    for threshold in thresholds:
        last = int((errors < threshold).sum())
        x = torch.cat([errors[:last], errors.new_tensor([threshold])])
        y = torch.cat([recall[:last], recall[last - 1 : last]])
        areas.append(float(torch.trapezoid(y, x)) / threshold)
    return areas
