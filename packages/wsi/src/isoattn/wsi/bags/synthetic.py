"""Bags made from a seed, with the answer known: a needle in a haystack, and two that must meet.

Shape suffixes: n tiles, I features.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from isoattn.core.training import derive_seed, item_generator
from isoattn.wsi.bags.bag import Bag
from isoattn.wsi.bags.task import BagReader, BagSource, BagTask, Split

STEP = 256
"""Level-0 pixels from tile to tile."""
PLAIN, FIRST, SECOND = 0, 1, 2
"""Types of a tile."""


@dataclass(frozen=True)
class Difficulty:
    """What all made bags have.

    A tile is normal noise of deviation 1 in each feature, plus ``signal`` times the direction of
    its type, plus an offset that all tiles of a bag share, as stain and scanner give.

    Args:
        bags: in all; half train, a quarter val, a quarter test, half of each positive.
        tiles: fewest and most tiles of a bag; or one number, which all bags have.
        features: I.
        marked: share of the tiles of each type that is looked for, one tile at least.
        signal: length of a type's direction; 0 is impossible, 5 plain to see in one tile.
        offset: deviation of a bag's offset in each feature. It hides a mean over tiles: that moves
            by marked * signal only.

    Raises:
        ValueError: values out of range.
    """

    bags: int = 240
    tiles: int | tuple[int, int] = (80, 160)
    features: int = 32
    marked: float = 0.04
    signal: float = 5.0
    offset: float = 0.5

    def __post_init__(self) -> None:
        low, high = self.sizes
        if self.bags < 16 or not 9 <= low <= high or self.features < 3:
            raise ValueError(
                "Made bags need 16 bags, 9 tiles and 3 features at least, fewest before most; got "
                f"bags={self.bags}, tiles={list(self.sizes)}, features={self.features}"
            )
        if not 0 < self.marked <= 0.2 or self.signal < 0 or self.offset < 0:
            raise ValueError(
                "marked lies in (0, 0.2], signal and offset are 0 or more; got "
                f"marked={self.marked}, signal={self.signal}, offset={self.offset}"
            )

    @property
    def sizes(self) -> tuple[int, int]:
        """Fewest and most tiles."""
        return (self.tiles, self.tiles) if isinstance(self.tiles, int) else self.tiles


class MadeBags(BagReader):
    """Makes each bag when it is read, as a function of the seed and its number.

    Args:
        difficulty: of the bags.
        seed: of everything.
        positive: bool, the label of each bag.
    """

    def __init__(self, difficulty: Difficulty, seed: int, positive: Tensor) -> None:
        self.difficulty = difficulty
        self.seed = seed
        self.positive = positive
        generator = torch.Generator().manual_seed(derive_seed(seed, "directions"))
        drawn = torch.randn(difficulty.features, 3, generator=generator)
        directions, _ = torch.linalg.qr(drawn)
        self.directions_3I = directions.T * difficulty.signal
        self.directions_3I[PLAIN] = 0.0

    @abstractmethod
    def types(self, index: int, cells_n2: Tensor, generator: torch.Generator) -> Tensor:
        """The type of each tile, int64 (n,)."""

    @abstractmethod
    def evidence(self, ratios_n3: Tensor, cells_n2: Tensor) -> float:
        """How positive the tiles look, given the log-likelihood ratio of each type of each tile."""

    def read(self, index: int) -> Bag:
        """The bag."""
        cells, types, generator = self._layout(index)
        options = self.difficulty
        offset = options.offset * torch.randn(options.features, generator=generator)
        noise = torch.randn(len(cells), options.features, generator=generator)
        return Bag(noise + offset + self.directions_3I[types], cells * STEP, STEP, STEP)

    def shape(self, index: int) -> tuple[int, int]:
        """Tiles and features."""
        return len(self._layout(index)[0]), self.difficulty.features

    def tile_types(self, index: int) -> Tensor:
        """The truth of a heat map: int64 (n,), 0 = plain."""
        return self._layout(index)[1]

    def oracle(self, index: int) -> float:
        """What one could know at best from the bag, not from its label: log-odds of positive.

        Whoever computes it knows the directions and the way positive bags are made, and takes the
        bag's offset for the median of its tiles.
        """
        bag = self.read(index)
        x = bag.features - bag.features.median(0).values
        ratios = x @ self.directions_3I.T - self.directions_3I.square().sum(1) / 2
        cells = bag.cells()
        assert cells is not None
        return self.evidence(ratios, cells)

    def _layout(self, index: int) -> tuple[Tensor, Tensor, torch.Generator]:
        """Cells row by row, types, and the generator for what comes after them."""
        generator = item_generator(self.seed, 0, index, "bag")
        low, high = self.difficulty.sizes
        tiles = int(torch.randint(low, high + 1, (), generator=generator))
        side = math.isqrt(int(1.25 * tiles) - 1) + 1  # about a fifth of the cells is empty
        place = torch.randperm(side * side, generator=generator)[:tiles].sort().values
        cells = torch.stack([place % side, place // side], 1)
        return cells, self.types(index, cells, generator), generator

    def _count(self, tiles: int) -> int:
        return max(1, round(self.difficulty.marked * tiles))


class _Needles(MadeBags):
    def types(self, index: int, cells_n2: Tensor, generator: torch.Generator) -> Tensor:
        n = len(cells_n2)
        types = torch.full((n,), PLAIN)
        chosen = torch.randperm(n, generator=generator)[: self._count(n)]
        types[chosen] = FIRST if self.positive[index] else SECOND
        return types

    def evidence(self, ratios_n3: Tensor, cells_n2: Tensor) -> float:
        return float(ratios_n3[:, FIRST].logsumexp(0) - ratios_n3[:, SECOND].logsumexp(0))


class _Pairs(MadeBags):
    def __init__(self, difficulty: Difficulty, seed: int, positive: Tensor, meeting: float) -> None:
        super().__init__(difficulty, seed, positive)
        self.meeting = meeting

    def types(self, index: int, cells_n2: Tensor, generator: torch.Generator) -> Tensor:
        n = len(cells_n2)
        count = self._count(n)
        types = torch.full((n,), PLAIN)
        firsts = torch.randperm(n, generator=generator)[:count]
        types[firsts] = FIRST
        far_n = distances(cells_n2, cells_n2[firsts]).amin(1)
        free_n = types == PLAIN
        near = (free_n & (far_n <= 1)).nonzero()[:, 0]
        away = (free_n & (far_n > 2)).nonzero()[:, 0]
        meeting = max(1, round(self.meeting * count)) if self.positive[index] else 0
        chosen_near = near[torch.randperm(len(near), generator=generator)[:meeting]]
        left = count - len(chosen_near)
        rest = away[torch.randperm(len(away), generator=generator)[:left]]
        types[torch.cat([chosen_near, rest])] = SECOND
        return types

    def evidence(self, ratios_n3: Tensor, cells_n2: Tensor) -> float:
        pairs_nn = ratios_n3[:, FIRST, None] + ratios_n3[None, :, SECOND]
        gap_nn = distances(cells_n2, cells_n2)
        return float(pairs_nn[gap_nn == 1].logsumexp(0) - pairs_nn[gap_nn > 2].logsumexp(0))


def distances(one_n2: Tensor, other_m2: Tensor) -> Tensor:
    """Steps of a chess king from each cell to each other one, int64 (n, m)."""
    return (one_n2[:, None] - other_m2[None]).abs().amax(-1)


class _Made(BagSource):
    name: str

    def __init__(
        self,
        difficulty: Difficulty = Difficulty(),  # noqa: B008 - frozen
        seed: int = 0,
    ) -> None:
        self.difficulty = difficulty
        self.seed = seed

    @abstractmethod
    def made(self, positive: Tensor) -> MadeBags:
        """The bags, given which are positive."""

    def load(self) -> BagTask:
        """The task; bag i is positive where i is odd."""
        bags = self.difficulty.bags
        number = torch.arange(bags)
        positive = number % 2 == 1
        part = number // 2 % 4  # 0 and 1: train
        return BagTask(
            name=self.name,
            ids=tuple(f"{self.name}{i:04d}" for i in range(bags)),
            labels=positive.long(),
            classes=("negative", "positive"),
            split=Split(*(x.nonzero()[:, 0] for x in (part < 2, part == 2, part == 3))),
            reader=self.made(positive),
            in_dim=self.difficulty.features,
            facts={"source": "synthetic", "seed": self.seed},
        )


class NeedleBags(_Made):
    """Is there a tile of a certain type? Positive bags have some, negative ones as many mimics.

    Mimics are tiles of another type, so that neither the strength of the strangest tile nor the
    spread of the features tells the answer. Each tile by itself does: max pooling solves it, and
    attention pooling; the mean over tiles moves by marked * signal, under the offset of the bag.

    Args:
        difficulty: of the bags.
        seed: of the bags; apart from the seed of training.
    """

    name = "needle"

    def made(self, positive: Tensor) -> MadeBags:
        """The bags, given which are positive."""
        return _Needles(self.difficulty, self.seed, positive)


class MeetingBags(_Made):
    """Do tiles of two types lie side by side? Every bag has both types, as often.

    In a positive bag tiles of the second type touch one of the first, also corner to corner; in a
    negative one all are more than two cells apart. No pooling of tiles one by one can tell; what
    can needs the places: a convolution over true neighbours (``ppeg="coords"``), or attention with
    positions.

    Args:
        difficulty: of the bags; 60 tiles at least and 0.03 marked at most, so that there is room
            for tiles that are far apart.
        seed: of the bags; apart from the seed of training.
        meeting: share of the tiles of the second type in a positive bag that touch one of the
            first, one at least.

    Raises:
        ValueError: no such room; a share out of range.
    """

    name = "meeting"

    def __init__(
        self,
        difficulty: Difficulty = Difficulty(marked=0.03, signal=10.0),  # noqa: B008 - frozen
        seed: int = 0,
        meeting: float = 1.0,
    ) -> None:
        if not 0 <= meeting <= 1:
            raise ValueError(f"meeting is a share in [0, 1], got {meeting}")
        if difficulty.sizes[0] < 60 or difficulty.marked > 0.03:
            raise ValueError(
                "MeetingBags needs room for tiles that are far apart: 60 tiles or more and marked "
                f"at most 0.03; got tiles={list(difficulty.sizes)}, marked={difficulty.marked}"
            )
        super().__init__(difficulty, seed)
        self.meeting = meeting

    def made(self, positive: Tensor) -> MadeBags:
        """The bags, given which are positive."""
        return _Pairs(self.difficulty, self.seed, positive, self.meeting)
