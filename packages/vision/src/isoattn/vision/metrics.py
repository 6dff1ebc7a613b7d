"""Classification scores from one table of counts, each under its own name.

Accuracy (top-1) is *micro*: right answers by items. The mean over classes is called balanced
accuracy. (Under one name the two are confused: Lightning-AI/torchmetrics#2320.)

Shape suffixes: B batch, K classes; in tables rows are true classes, columns predicted ones.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Confusion:
    """Counts of (true, predicted) over any number of batches; every score is a function of them.

    Args:
        num_classes: K.

    Example:
        >>> confusion = Confusion(2)
        >>> confusion.update(torch.zeros(10, dtype=torch.int64), torch.tensor([0] * 9 + [1]))
        >>> confusion.accuracy(), confusion.balanced_accuracy()
        (0.9, 0.5)
    """

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes
        self.table_KK = torch.zeros(num_classes, num_classes, dtype=torch.int64)

    def update(self, predicted_B: Tensor, labels_B: Tensor) -> None:
        """Add a batch of class numbers.

        Args:
            predicted_B: int64 (B,), such as ``logits.argmax(1)``.
            labels_B: int64 (B,).

        Raises:
            ValueError: shapes that differ, or a number outside 0..K-1.
        """
        predicted_B, labels_B = predicted_B.cpu(), labels_B.cpu()
        if predicted_B.shape != labels_B.shape or predicted_B.ndim != 1:
            raise ValueError(
                "Predictions and labels are class numbers (B,), got "
                f"{tuple(predicted_B.shape)} and {tuple(labels_B.shape)}"
            )
        both_2B = torch.stack([labels_B, predicted_B])
        if both_2B.numel() and not 0 <= int(both_2B.min()) <= int(both_2B.max()) < self.num_classes:
            raise ValueError(
                f"Class numbers must lie in 0..{self.num_classes - 1}, got "
                f"{int(both_2B.min())}..{int(both_2B.max())}"
            )
        counted = torch.bincount(
            labels_B * self.num_classes + predicted_B, minlength=self.num_classes**2
        )
        self.table_KK += counted.reshape(self.num_classes, self.num_classes)

    def reset(self) -> None:
        """Forget all batches."""
        self.table_KK.zero_()

    @property
    def items(self) -> int:
        """Number of items counted."""
        return int(self.table_KK.sum())

    def accuracy(self) -> float:
        """Right answers by items (top-1, micro); NaN without items."""
        return int(self.table_KK.trace()) / self.items if self.items else float("nan")

    def per_class_accuracy(self) -> Tensor:
        """float64 (K,): right answers of each true class; NaN for a class without items."""
        return self.table_KK.diagonal().double() / self.table_KK.sum(1).double()

    def balanced_accuracy(self) -> float:
        """Mean of the per-class accuracies over the classes that occur; NaN without items."""
        return float(self.per_class_accuracy().nanmean())
