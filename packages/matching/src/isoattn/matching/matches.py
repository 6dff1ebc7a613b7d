"""Matches of a batch of image pairs, kept apart by pair.

Shape suffixes: K matches of all pairs of the batch, B pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Matches:
    """Corresponding points of B image pairs; K may be 0, and so may any pair's share of it.

    Coordinates are pixels (x, y) of the images that the matcher saw, pixel centres at integers:
    coarse cell (row i, column j) sits on pixel (8j, 8i). :meth:`scaled` brings them to the
    originals.

    Args:
        keypoints0: (K, 2) in the first image; on the 8-pixel grid, refinement moves image 1 alone.
        keypoints1: (K, 2) in the second image.
        confidence: (K,) in [0, 1].
        batch_index: int64 (K,), the pair of each match, ascending.
        batch_size: B, pairs without matches counted.
        cell0: int64 (K,), the coarse cell of image 0, row-major; ``None`` where unknown.
        cell1: int64 (K,), likewise of image 1.
        std: (K,), spread of the fine matching distribution in units of the half window, small is
            sure; ``None`` without refinement.

    Raises:
        ValueError: lengths that differ, or points that are not (K, 2).
    """

    keypoints0: Tensor
    keypoints1: Tensor
    confidence: Tensor
    batch_index: Tensor
    batch_size: int
    cell0: Tensor | None = None
    cell1: Tensor | None = None
    std: Tensor | None = None

    def __post_init__(self) -> None:
        count = len(self.confidence)
        for name, tensor in self._tensors().items():
            wanted = (count, 2) if name.startswith("keypoints") else (count,)
            if tensor.shape != wanted:
                raise ValueError(
                    f"Matches need {name} of shape {wanted} for {count} confidences, "
                    f"got {tuple(tensor.shape)}"
                )

    def __len__(self) -> int:
        return len(self.confidence)

    def counts(self) -> Tensor:
        """Matches of each pair, int64 (B,)."""
        return torch.bincount(self.batch_index, minlength=self.batch_size)

    def split(self) -> list[Matches]:
        """One ``Matches`` of batch size 1 for each of the B pairs; some may be empty."""
        pieces = []
        for pair in range(self.batch_size):
            own = self.select(self.batch_index == pair)
            pieces.append(replace(own, batch_index=torch.zeros_like(own.batch_index), batch_size=1))
        return pieces

    def select(self, chosen: Tensor) -> Matches:
        """The matches of a bool mask (K,) or of indices, in that order."""
        return self._each(lambda tensor: tensor[chosen])

    def above(self, threshold: float) -> Matches:
        """The matches whose confidence is larger."""
        return self.select(self.confidence > threshold)

    def topk(self, count: int) -> Matches:
        """The ``count`` most confident matches of *each pair*, most confident first.

        Raises:
            ValueError: a negative count.
        """
        if count < 0:
            raise ValueError(f"topk takes a count of 0 or more matches a pair, got {count}")
        order = self.confidence.argsort(descending=True, stable=True)
        order = order[self.batch_index[order].argsort(stable=True)]
        counts = self.counts()
        starts = counts.cumsum(0) - counts
        rank = torch.arange(len(self), device=order.device) - starts[self.batch_index[order]]
        return self.select(order[rank < count])

    def scaled(self, scale0: Tensor, scale1: Tensor, *, half_pixel: bool = False) -> Matches:
        """The same in other coordinates, such as those of the images before they were resized.

        Args:
            scale0: (2,) or (B, 2), factors of x and y in image 0 (original size / resized size).
            scale1: likewise of image 1.
            half_pixel: False: k * scale, as LoFTR evaluates. True: (k + 0.5) * scale - 0.5, which
                is exact where a resize kept the outer edges of the image, as most do.
        """
        moved = []
        for points, scale in ((self.keypoints0, scale0), (self.keypoints1, scale1)):
            factor = scale.to(points).expand(self.batch_size, 2)[self.batch_index]
            moved.append((points + 0.5) * factor - 0.5 if half_pixel else points * factor)
        return replace(self, keypoints0=moved[0], keypoints1=moved[1])

    def to(self, device: torch.device | str) -> Matches:
        """The same on another device."""
        return self._each(lambda tensor: tensor.to(device))

    def _tensors(self) -> dict[str, Tensor]:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def _each(self, change: Callable[[Tensor], Tensor]) -> Matches:
        changed = {name: change(tensor) for name, tensor in self._tensors().items()}
        optional = {f.name: changed.get(f.name) for f in fields(self)[5:]}
        return Matches(
            changed["keypoints0"],
            changed["keypoints1"],
            changed["confidence"],
            changed["batch_index"],
            self.batch_size,
            **optional,
        )
