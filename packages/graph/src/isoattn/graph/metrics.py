"""Scores of node tasks from counts and scores over all nodes, never from means of batches.

Shape suffixes: M nodes that count, C classes, T labels of a multilabel task.
"""

from __future__ import annotations

import torch
from torch import Tensor

from isoattn.graph.task import Kind, Metric


def roc_auc(scores_M: Tensor, positive_M: Tensor) -> float:
    """Area under the ROC curve: the chance that a positive scores above a negative, ties half.

    Args:
        scores_M: any float; larger means positive.
        positive_M: bool.

    Returns:
        The area; NaN where one of the two classes is absent.

    Raises:
        ValueError: scores that are NaN.
    """
    if bool(scores_M.isnan().any()):
        raise ValueError(f"{int(scores_M.isnan().sum())} scores are NaN: the model has diverged")
    positives = int(positive_M.sum())
    negatives = len(positive_M) - positives
    if not positives or not negatives:
        return float("nan")
    _, place_M, count_U = torch.unique(scores_M, return_inverse=True, return_counts=True)
    last_U = count_U.cumsum(0).double()
    rank_M = (last_U - (count_U - 1).double() / 2)[place_M]  # ties share the mean of their ranks
    above = float(rank_M[positive_M].sum()) - positives * (positives + 1) / 2
    return above / (positives * negatives)


def multilabel_roc_auc(scores_MT: Tensor, labels_MT: Tensor) -> float:
    """Mean ROC-AUC over the labels that have both classes, each over the nodes it is known for.

    What the OGB evaluator computes, which raises where no label has both classes; here NaN.

    Args:
        scores_MT: float.
        labels_MT: float, 0, 1, or NaN = unknown.
    """
    areas = []
    for scores_M, labels_M in zip(scores_MT.unbind(1), labels_MT.unbind(1), strict=True):
        known_M = ~labels_M.isnan()
        areas.append(roc_auc(scores_M[known_M], labels_M[known_M] == 1))
    return float(torch.tensor(areas, dtype=torch.float64).nanmean())


class NodeScore:
    """The scores of one part of a split, from any number of batches.

    Args:
        kind: of the labels.
        num_classes: C or T.
        metric: the score that chooses the best epoch.

    Example:
        >>> score = NodeScore("multiclass", 2, "accuracy")
        >>> score.update(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
        >>> score.compute()["accuracy"]
        0.5
    """

    def __init__(self, kind: Kind, num_classes: int, metric: Metric) -> None:
        self.kind = kind
        self.num_classes = num_classes
        self.metric = metric
        self.reset()

    def reset(self) -> None:
        """Forget all batches."""
        self.table_CC = torch.zeros(self.num_classes, self.num_classes, dtype=torch.int64)
        self._kept: list[tuple[Tensor, Tensor]] = []
        self.items = 0

    def update(self, logits_MC: Tensor, y_M: Tensor) -> None:
        """Add nodes; those without a label do not count.

        Args:
            logits_MC: (M, C) or (M, T).
            y_M: int64 (M,), -1 = unlabelled; or float (M, T), NaN = unlabelled.

        Raises:
            ValueError: shapes that do not fit.
        """
        logits_MC, y_M = logits_MC.detach().cpu().float(), y_M.detach().cpu()
        shape = (len(logits_MC),) if self.kind == "multiclass" else tuple(logits_MC.shape)
        if logits_MC.ndim != 2 or logits_MC.shape[1] != self.num_classes or y_M.shape != shape:
            raise ValueError(
                f"{self.kind} scores need logits (M, {self.num_classes}) and labels of the same M "
                f"nodes, got {tuple(logits_MC.shape)} and {tuple(y_M.shape)}"
            )
        known_M = y_M >= 0 if self.kind == "multiclass" else ~y_M.isnan().all(1)
        logits_MC, y_M = logits_MC[known_M], y_M[known_M]
        self.items += len(y_M)
        if self.kind == "multiclass":
            place_M = y_M * self.num_classes + logits_MC.argmax(1)
            counted = torch.bincount(place_M, minlength=self.num_classes**2)
            self.table_CC += counted.reshape(self.num_classes, self.num_classes)
        if self.metric == "roc_auc":
            self._kept.append((logits_MC, y_M))

    def compute(self) -> dict[str, float]:
        """``accuracy`` and ``balanced_accuracy`` of classes, ``roc_auc`` where it is the metric.

        NaN where nothing was counted.
        """
        scores = {}
        if self.kind == "multiclass":
            right_C, all_C = self.table_CC.diagonal().double(), self.table_CC.sum(1).double()
            scores["accuracy"] = float(right_C.sum() / all_C.sum())
            scores["balanced_accuracy"] = float((right_C / all_C).nanmean())
        if self.metric == "roc_auc":
            scores["roc_auc"] = self._area()
        return scores

    def _area(self) -> float:
        if not self._kept:
            return float("nan")
        logits = torch.cat([logits for logits, _ in self._kept])
        y = torch.cat([y for _, y in self._kept])
        if self.kind == "multilabel":
            return multilabel_roc_auc(logits, y)
        # In float64: the order of logit differences is that of softmax, without its ties at 0 or 1.
        return roc_auc(logits[:, 1].double() - logits[:, 0].double(), y == 1)
