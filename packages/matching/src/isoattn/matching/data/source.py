"""What every source of pairs shares, and datasets of pairs that are listed one by one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from torch.utils.data import Dataset

from isoattn.matching.data.batch import Pair
from isoattn.matching.data.photos import Split

T = TypeVar("T")


class PairSource(ABC):
    """Gives pairs of images; nothing is read before :meth:`pairs`, nothing is downloaded.

    Attributes:
        splits: the parts that differ. Empty: the source is one list, the same whatever is asked
            for, so that validation needs a source of its own.
        labelled: whether its pairs carry ground truth.
    """

    splits: tuple[Split, ...] = ()
    labelled: bool = True

    @abstractmethod
    def pairs(self, split: Split, seed: int) -> Dataset[Pair]:
        """The pairs of a split.

        Args:
            split: of them.
            seed: of what is random in training; validation and test have a seed of their own.

        Raises:
            FileNotFoundError, ValueError: name what is missing or does not fit.
        """

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What decides the pixels and the ground truth besides the files; plain data."""

    def files(self, split: Split) -> Sequence[Path]:
        """The files that decide what a split holds, for its fingerprint."""
        return ()

    def skipped(self) -> dict[str, int]:
        """What was left out, by reason."""
        return {}


class ListedPairs(Dataset[Pair], Generic[T]):
    """Pairs of a list, read when they are asked for.

    Args:
        items: one for each pair.
        load: (index, item) -> pair.
    """

    def __init__(self, items: Sequence[T], load: Callable[[int, T], Pair]) -> None:
        self.items = items
        self.load = load

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Pair:
        return self.load(index, self.items[index])


def existing_folder(path: str | Path, what: str, hint: str) -> Path:
    """The path, if it is a folder.

    Raises:
        FileNotFoundError: says what was looked for and what to do.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise FileNotFoundError(f"{what}: {folder} is not a folder. {hint}; nothing is downloaded.")
    return folder
