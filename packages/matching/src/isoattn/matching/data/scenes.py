"""Pairs of posed photographs with depth, scene by scene: what MegaDepth and ScanNet share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from isoattn.core.training import derive_seed
from isoattn.matching.data.batch import Pair
from isoattn.matching.data.frames import ResizeOptions, View, load_view
from isoattn.matching.data.photos import SPLITS, Split
from isoattn.matching.data.source import PairSource
from isoattn.matching.geometry import relative_pose


@dataclass(frozen=True)
class PosedView:
    """One photograph of a scene.

    Args:
        name: relative to the root.
        image: the file.
        depth: the file, ``None`` where depth is not read.
        intrinsics_33: float64 K.
        to_camera_44: float64, world -> camera.
        frame: (H, W) in which K is; ``None``: that of the image file.
    """

    name: str
    image: Path
    depth: Path | None
    intrinsics_33: Tensor
    to_camera_44: Tensor
    frame: tuple[int, int] | None = None


@dataclass(frozen=True)
class PosedPair:
    """Two photographs of a scene.

    Args:
        view0, view1: of them.
        overlap: share of the scene that both show, as the index says; NaN where it does not.
    """

    view0: PosedView
    view1: PosedView
    overlap: float


class Scene(Protocol):
    """The pairs that one index file lists."""

    def __len__(self) -> int: ...

    def pair(self, number: int) -> PosedPair:
        """One of them."""


class ScenePairs(Dataset[Pair]):
    """Pairs of several scenes; in training the same number of each, drawn anew every epoch.

    Args:
        source: reads them.
        scenes: the pairs of each scene.
        per_scene: pairs of a scene in an epoch, without repetition until all were taken; ``None``:
            all, in order.
        seed: of what is drawn.
    """

    def __init__(
        self, source: PosedSource, scenes: Sequence[Scene], per_scene: int | None, seed: int
    ) -> None:
        self.source = source
        self.scenes = list(scenes)
        self.per_scene = per_scene
        self.seed = seed
        self.epoch = 0
        counts = [len(scene) if per_scene is None else per_scene for scene in self.scenes]
        self._ends = np.cumsum(counts).tolist()
        self._orders: tuple[int, dict[int, list[int]]] = (-1, {})

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose pairs are drawn."""
        self.epoch = epoch

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Pair:
        if not 0 <= index < len(self):
            raise IndexError(f"pair {index} of {len(self)}")
        number = int(np.searchsorted(self._ends, index, side="right"))
        place = index - (self._ends[number - 1] if number else 0)
        scene = self.scenes[number]
        if self.per_scene is not None:
            place = self._order(number)[place]
        return self.source.load(index, scene.pair(place))

    def _order(self, number: int) -> list[int]:
        if self._orders[0] != self.epoch:
            self._orders = (self.epoch, {})
        orders = self._orders[1]
        if number not in orders and self.per_scene is not None:
            seed = derive_seed(self.seed, self.epoch, "scene", number)
            generator = torch.Generator().manual_seed(seed)
            pairs = len(self.scenes[number])
            rounds = -(-self.per_scene // pairs)
            drawn = [torch.randperm(pairs, generator=generator) for _ in range(rounds)]
            orders[number] = torch.cat(drawn)[: self.per_scene].tolist()
        return orders[number]


class PosedSource(PairSource):
    """Scenes by index files; a split is there where an index was given for it.

    Args:
        root: folder that names are relative to.
        indices: an npz file, or a folder of them, for each split; ``None``: no such split.
        resize: of the images; depth and K follow.
        min_overlap: pairs at or below it are left out in training.
        per_scene: pairs of each index file in a training epoch; ``None``: all.
        depth: read the depth maps.
    """

    def __init__(
        self,
        root: str,
        indices: dict[Split, str | None],
        resize: ResizeOptions,
        min_overlap: float,
        per_scene: int | None,
        depth: bool,
    ) -> None:
        if per_scene is not None and per_scene < 1:
            raise ValueError(f"per_scene must be 1 or more, or null for all; got {per_scene}")
        self.root = Path(root)
        self.indices = indices
        self.resize = resize
        self.min_overlap = min_overlap
        self.per_scene = per_scene
        self.labelled = self.read_depth = depth
        self._scenes: dict[Split, list[Scene]] = {}

    @property
    def splits(self) -> tuple[Split, ...]:  # type: ignore[override]
        """The splits that have an index."""
        return tuple(split for split in SPLITS if self.indices[split] is not None)

    @abstractmethod
    def _scene(self, path: Path, split: Split) -> Scene:
        """The pairs of one index file."""

    @abstractmethod
    def _read_depth(self, path: Path) -> Tensor:
        """A depth map, float32 (H, W), 0 = unknown."""

    def pairs(self, split: Split, seed: int) -> ScenePairs:
        """Pairs of a split; drawn anew each epoch in training, all in order otherwise."""
        if split not in self._scenes:
            found = [self._scene(path, split) for path in self.files(split)]
            self._scenes[split] = [scene for scene in found if len(scene)]
        if not self._scenes[split]:
            raise ValueError(
                f"{type(self).__name__}: the index of {split} lists no pair with an overlap above "
                f"{self.min_overlap}: lower min_overlap, or check the files"
            )
        return ScenePairs(
            self, self._scenes[split], self.per_scene if split == "train" else None, seed
        )

    def files(self, split: Split) -> list[Path]:
        """The index files of a split: a file, or every npz of a folder."""
        given = self.indices[split]
        if given is None:
            raise ValueError(f"{type(self).__name__} has no index of {split}: set {split}_index")
        path = Path(given)
        if path.is_dir():
            return sorted(path.glob("*.npz"))
        return [path]

    def describe(self) -> dict[str, Any]:
        """Size and choice of pairs."""
        return {
            "resize": asdict(self.resize),
            "per_scene": self.per_scene,
            "min_overlap": self.min_overlap,
            "depth": self.read_depth,
        }

    def load(self, index: int, pair: PosedPair) -> Pair:
        """Read the files of a pair and bring their geometry to the size of matching."""
        posed = (pair.view0, pair.view1)
        views = [load_view(view.image, self.resize) for view in posed]
        depths = [self._depth_of(own, view) for own, view in zip(posed, views, strict=True)]
        intrinsics = [
            view.intrinsics(own.intrinsics_33, own.frame)
            for own, view in zip(posed, views, strict=True)
        ]
        return Pair(
            views[0].image_HW,
            views[1].image_HW,
            index,
            posed[0].name,
            posed[1].name,
            views[0].scale,
            views[1].scale,
            depth0=depths[0],
            depth1=depths[1],
            intrinsics0=intrinsics[0],
            intrinsics1=intrinsics[1],
            pose=relative_pose(posed[0].to_camera_44, posed[1].to_camera_44).float(),
            strata={"overlap": pair.overlap},
        )

    def _depth_of(self, own: PosedView, view: View) -> Tensor | None:
        if own.depth is None:
            return None
        return view.depth(self._read_depth(own.depth))
