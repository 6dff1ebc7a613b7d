"""A bag: the features of a slide's tiles and where they lie; and bags in batches.

Shape suffixes: n tiles, I features, B bags.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import torch
from torch import Tensor

UNLABELLED = -1


class BagError(ValueError):
    """A bag that cannot be used; names it and says what to do."""


@dataclass(frozen=True)
class Bag:
    """Tiles of one slide.

    Args:
        features: (n, I), float.
        coords: int64 (n, 2), x and y of each tile's upper left corner in level-0 pixels.
        step: level-0 pixels from a tile to the next; ``None``: the smallest step that occurs.
        side: of a tile in level-0 pixels, for heat maps; more than the step where tiles overlap.
    """

    features: Tensor
    coords: Tensor | None = None
    step: float | None = None
    side: float | None = None

    @property
    def tiles(self) -> int:
        """Number of tiles n."""
        return len(self.features)

    def cells(self) -> Tensor | None:
        """Column and row of each tile in the grid of the slide, int64 (n, 2), from 0."""
        return None if self.coords is None else grid_cells(self.coords, self.step)

    def take(self, chosen: Tensor) -> Bag:
        """Some tiles, with the step of the whole bag."""
        if self.coords is None:
            return Bag(self.features[chosen])
        step = smallest_step(self.coords) if self.step is None else self.step
        return Bag(self.features[chosen], self.coords[chosen], step, self.side)

    def checked(self, name: str, in_dim: int | None = None) -> Bag:
        """Itself, if a network can be given it.

        Args:
            name: of the bag, for messages.
            in_dim: features that are expected.

        Raises:
            BagError: no tiles, another number of features, NaN or Inf, or coords that do not fit.
        """
        check_shape(name, tuple(self.features.shape), in_dim)
        if not self.features.is_floating_point():
            raise BagError(f"Bag {name!r} has features of {self.features.dtype}, not of floats")
        bad = ~self.features.isfinite().all(1)
        if bool(bad.any()):
            raise BagError(
                f"Bag {name!r} has {int(bad.sum())} of {self.tiles} tiles with NaN or Inf "
                f"features, the first is tile {int(bad.nonzero()[0])}: extract the features anew"
            )
        if self.coords is not None and tuple(self.coords.shape) != (self.tiles, 2):
            raise BagError(
                f"Bag {name!r} has coords {tuple(self.coords.shape)} for {self.tiles} tiles; they "
                "are (tiles, 2), x and y of each"
            )
        return self


def check_shape(name: str, shape: Sequence[int], in_dim: int | None = None) -> None:
    """Raise BagError unless this is the shape of usable features (n, I)."""
    if len(shape) != 2:
        raise BagError(f"Bag {name!r} has features {tuple(shape)}; they are (tiles, features)")
    if not shape[0]:
        raise BagError(
            f"Bag {name!r} has no tiles: leave it out of the labels, or find its tissue anew"
        )
    if in_dim is not None and shape[1] != in_dim:
        raise BagError(
            f"Bag {name!r} has {shape[1]} features a tile, the others have {in_dim}: extract all "
            "with one encoder"
        )


def smallest_step(coords_n2: Tensor) -> float:
    """The smallest distance between two different columns or rows; 1 where there is one tile."""
    gaps = [torch.unique(x).diff() for x in coords_n2.unbind(1)]
    found = torch.cat(gaps)
    return float(found.min()) if len(found) else 1.0


def grid_cells(coords_n2: Tensor, step: float | None = None) -> Tensor:
    """Column and row of each tile, int64 (n, 2), from 0: coords over the step, rounded.

    Args:
        coords_n2: level-0 x and y.
        step: level-0 pixels from a tile to the next; ``None``: the smallest that occurs.

    Raises:
        BagError: a step that is not positive.
    """
    step = smallest_step(coords_n2) if step is None else step
    if not step > 0:
        raise BagError(f"The step from tile to tile must be above 0 level-0 pixels, got {step}")
    return ((coords_n2 - coords_n2.min(0).values).double() / step).round().long()


class BagBatch(TypedDict):
    """What a model is given; plain data, so that loaders, devices and hashes need no help.

    ``features``: (n, I) for each bag; ``cells`` and ``coords``: int64 (n, 2) for each, or ``None``;
    ``side``: of its tiles in level-0 pixels, or ``None``; ``label``: int64 (B,), -1 = unlabelled;
    ``index``: int64 (B,), numbers of the bags in the data; ``id``: their names.
    """

    features: list[Tensor]
    cells: list[Tensor | None]
    coords: list[Tensor | None]
    side: list[float | None]
    label: Tensor
    index: Tensor
    id: list[str]


def collate(items: Sequence[tuple[Bag, int, int, str]]) -> BagBatch:
    """Bags with label, index and id, as one batch."""
    bags, labels, indices, ids = zip(*items, strict=True)
    return BagBatch(
        features=[bag.features for bag in bags],
        cells=[bag.cells() for bag in bags],
        coords=[bag.coords for bag in bags],
        side=[bag.side for bag in bags],
        label=torch.tensor(labels),
        index=torch.tensor(indices),
        id=list(ids),
    )
