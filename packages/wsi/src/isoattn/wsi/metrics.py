"""Scores of bag classifiers over all bags of a part, never means of batches.

Shape suffixes: S bags, C classes.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics.functional.classification import (
    binary_auroc,
    multiclass_cohen_kappa,
    multiclass_f1_score,
    multiclass_precision,
    multiclass_recall,
)


def macro_auc(score_SC: Tensor, label_S: Tensor) -> float:
    """Mean over classes of the area under the ROC curve of each against the rest, ties half.

    Classes that all bags have or none has do not count; NaN where no class counts.

    Args:
        score_SC: larger means more of the class.
        label_S: int64.

    Raises:
        ValueError: scores that are NaN.
    """
    if bool(score_SC.isnan().any()):
        raise ValueError(
            f"{int(score_SC.isnan().any(1).sum())} bags have NaN scores: the model has diverged"
        )
    areas = []
    for number, score_S in enumerate(score_SC.double().unbind(1)):
        own_S = (label_S == number).long()
        if 0 < int(own_S.sum()) < len(own_S):
            areas.append(_area(score_S, own_S))
    return float(torch.stack(areas).mean()) if areas else float("nan")


def log_odds(logits_SC: Tensor) -> Tensor:
    """Logarithm of p / (1 - p), (S, C): in the order of p, where p itself is rounded to 0 or 1."""
    columns = []
    for number in range(logits_SC.shape[1]):
        others = torch.cat([logits_SC[:, :number], logits_SC[:, number + 1 :]], 1)
        # Sorted, so that rows with the same numbers are rounded alike and stay tied.
        columns.append(logits_SC[:, number] - others.sort(1).values.logsumexp(1))
    return torch.stack(columns, 1)


def _area(score_S: Tensor, own_S: Tensor) -> Tensor:
    """By ranks, which torchmetrics' function takes for probabilities without squashing them."""
    _, rank_S, count = torch.unique(score_S, return_inverse=True, return_counts=True)
    return binary_auroc((rank_S + 1).double() / (len(count) + 1), own_S).double()


class BagScore:
    """The scores of one part of a split, from any number of batches.

    Args:
        num_classes: C.

    Example:
        >>> score = BagScore(2)
        >>> score.update(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1]))
        >>> score.compute()["auc"]
        1.0
    """

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes
        self.reset()

    def reset(self) -> None:
        """Forget all batches."""
        self._logits: list[Tensor] = []
        self._labels: list[Tensor] = []

    @property
    def items(self) -> int:
        """Bags counted."""
        return sum(len(x) for x in self._labels)

    def update(self, logits_BC: Tensor, label_B: Tensor) -> None:
        """Add bags; those without a label (-1) do not count.

        Raises:
            ValueError: shapes that do not fit.
        """
        if logits_BC.shape != (len(label_B), self.num_classes):
            raise ValueError(
                f"Scores need logits (bags, {self.num_classes}) and as many labels, got "
                f"{tuple(logits_BC.shape)} and {tuple(label_B.shape)}"
            )
        known = (label_B >= 0).cpu()
        self._logits.append(logits_BC.detach().cpu().double()[known])
        self._labels.append(label_B.detach().cpu()[known])

    def compute(self) -> dict[str, float]:
        """``auc``, ``accuracy``, ``kappa`` (Cohen), ``f1``, ``precision``, ``recall``.

        All but accuracy and kappa are means over classes. NaN where nothing was counted.
        """
        names = ("auc", "accuracy", "kappa", "f1", "precision", "recall")
        if not self.items:
            return dict.fromkeys(names, float("nan"))
        logits, label = torch.cat(self._logits), torch.cat(self._labels)
        predicted = logits.argmax(1)
        found = {"auc": macro_auc(log_odds(logits), label)}
        found["accuracy"] = float((predicted == label).double().mean())
        c = self.num_classes
        found["kappa"] = float(multiclass_cohen_kappa(predicted, label, c))
        found["f1"] = float(multiclass_f1_score(predicted, label, c, average="macro"))
        found["precision"] = float(multiclass_precision(predicted, label, c, average="macro"))
        found["recall"] = float(multiclass_recall(predicted, label, c, average="macro"))
        return found
