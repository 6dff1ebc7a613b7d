"""Bags streamed from where they lie; what is drawn depends on (seed, epoch, bag) alone."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import Dataset

from isoattn.core.training import derive_seed, item_generator
from isoattn.wsi.bags.bag import Bag
from isoattn.wsi.bags.task import BagTask

Item = tuple[Bag, int, int, str]
"""Bag, label, number and name."""


class BagDataset(Dataset[Item]):
    """Some bags of a task.

    Args:
        task: of the bags.
        members: int64, their numbers.
        max_tokens: most tiles of a bag; of a larger one so many are drawn, anew each epoch, and
            stay in their order. ``None``: all.
        seed: of the draws.
        weights: of each class. With it an item is a bag drawn with replacement, in proportion to
            the weight of its class, anew each epoch; without, it is the member of its place.

    Raises:
        ValueError: max_tokens below 1, or weights that leave nothing to draw.
    """

    def __init__(
        self,
        task: BagTask,
        members: Tensor,
        *,
        max_tokens: int | None = None,
        seed: int = 0,
        weights: Tensor | None = None,
    ) -> None:
        if max_tokens is not None and max_tokens < 1:
            raise ValueError(f"max_tokens must be 1 or more, or None for all; got {max_tokens}")
        self.task = task
        self.members = members
        self.max_tokens = max_tokens
        self.seed = seed
        self.chances = None if weights is None else weights[task.labels[members]].double()
        if self.chances is not None and not float(self.chances.sum()) > 0:
            raise ValueError("The weights of the classes leave no bag to draw")
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the draws."""
        self.epoch = epoch
        if self.chances is None:
            self.drawn = self.members
            return
        generator = torch.Generator().manual_seed(derive_seed(self.seed, epoch, "bags"))
        place = torch.multinomial(
            self.chances, len(self.members), replacement=True, generator=generator
        )
        self.drawn = self.members[place]

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, place: int) -> Item:
        index = int(self.drawn[place])
        bag = self.task.reader.read(index)
        if self.max_tokens is not None and bag.tiles > self.max_tokens:
            generator = item_generator(self.seed, self.epoch, index, "tokens")
            chosen = torch.randperm(bag.tiles, generator=generator)[: self.max_tokens]
            bag = bag.take(chosen.sort().values)
        return bag, int(self.task.labels[index]), index, self.task.ids[index]


def moments(task: BagTask, members: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each feature over all tiles of some bags, float64 (I,), one at a time.

    Bag by bag around the running mean (Chan et al. 1983), so that nothing cancels.
    """
    count, mean, squares = 0, torch.zeros(task.in_dim).double(), torch.zeros(task.in_dim).double()
    for index in members.tolist():
        x = task.reader.read(index).features.double()
        own, total = x.mean(0), count + len(x)
        squares += (x - own).square().sum(0) + (own - mean).square() * (count * len(x) / total)
        mean += (own - mean) * (len(x) / total)
        count = total
    return mean, (squares / max(count, 1)).sqrt()
