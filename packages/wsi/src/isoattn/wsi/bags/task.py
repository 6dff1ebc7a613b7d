"""A bag task: which bags there are, their labels and split, and who reads them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from isoattn.wsi.bags.bag import UNLABELLED, Bag

Part = Literal["train", "val", "test"]


@dataclass(frozen=True)
class Split:
    """Numbers of the bags of each part, int64; a bag is in one part at most.

    Raises:
        ValueError: a bag in two parts.
    """

    train: Tensor
    val: Tensor
    test: Tensor

    def __post_init__(self) -> None:
        everything = torch.cat([self.train, self.val, self.test])
        if len(torch.unique(everything)) < len(everything):
            raise ValueError("A bag is in two parts of the split, or twice in one")

    def items(self) -> Iterator[tuple[Part, Tensor]]:
        """Name and bags of each part."""
        yield "train", self.train
        yield "val", self.val
        yield "test", self.test


class BagReader(ABC):
    """Reads bags by number; survives pickling, so that loader processes can have one."""

    @abstractmethod
    def read(self, index: int) -> Bag:
        """The bag, checked.

        Raises:
            BagError: it cannot be used; names it.
        """

    @abstractmethod
    def shape(self, index: int) -> tuple[int, int]:
        """Tiles and features of the bag, without reading it where that can be avoided."""

    def digest(self, index: int) -> list[Any]:
        """What tells this bag from another one, such as its shape and some of its tiles."""
        bag = self.read(index)
        return [tuple(bag.features.shape), bag.features[[0, -1]]]


@dataclass(frozen=True)
class BagTask:
    """Bags with one label each.

    Args:
        name: of the data.
        ids: the user's names of the bags.
        labels: int64, class number of each bag, -1 = unlabelled.
        classes: names of the classes.
        split: train, val, test; bags in no part are predicted only.
        reader: of the bags.
        in_dim: features of a tile.
        facts: provenance, counts of what was left out; plain data.

    Raises:
        ValueError: parts that do not fit each other.
    """

    name: str
    ids: tuple[str, ...]
    labels: Tensor
    classes: tuple[str, ...]
    split: Split
    reader: BagReader
    in_dim: int
    facts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        bags = len(self.ids)
        if self.labels.shape != (bags,):
            raise ValueError(f"{self.name}: {bags} bags but labels {tuple(self.labels.shape)}")
        if bags and not UNLABELLED <= int(self.labels.min()) <= int(self.labels.max()) < max(
            len(self.classes), 1
        ):
            raise ValueError(
                f"{self.name}: class numbers lie in 0..{len(self.classes) - 1}, -1 = unlabelled; "
                f"got {int(self.labels.min())}..{int(self.labels.max())}"
            )
        for part, members in self.split.items():
            if len(members) and not 0 <= int(members.min()) <= int(members.max()) < bags:
                raise ValueError(
                    f"{self.name}: the {part} part has numbers outside 0..{bags - 1}: "
                    f"{int(members.min())}..{int(members.max())}"
                )
            if bool((self.labels[members] == UNLABELLED).any()):
                raise ValueError(f"{self.name}: a bag of the {part} part has no label")


class BagSource(ABC):
    """Builds a :class:`BagTask`; nothing is read before :meth:`load`, nothing is downloaded."""

    @abstractmethod
    def load(self) -> BagTask:
        """The task.

        Raises:
            FileNotFoundError: names the folder and the missing files.
            ValueError: names what in the data does not fit.
        """
