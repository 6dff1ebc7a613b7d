"""MegaDepth by the npz indices of LoFTR."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch import Tensor

from isoattn.matching.data.frames import ResizeOptions
from isoattn.matching.data.npz import read_index
from isoattn.matching.data.photos import Split
from isoattn.matching.data.scenes import PosedPair, PosedSource, PosedView, Scene
from isoattn.matching.data.source import existing_folder

LONGER_840 = ResizeOptions(longer=840)


class MegaDepth(PosedSource):
    """MegaDepth by LoFTR's npz indices (Li and Snavely, CVPR 2018; zju3dv/LoFTR).

    An index holds ``image_paths``, ``depth_paths`` (h5 with the key ``depth``), ``intrinsics`` in
    the frame of the image, ``poses`` (world -> camera) and ``pair_infos`` of ((i0, i1), overlap,
    ...).

    Args:
        root: folder that the paths in the indices are relative to.
        train_index, val_index, test_index: an npz file, or a folder of them (one a scene).
        resize: the longer side 840 by default, both a multiple of 8. Larger batches than one are
            padded.
        min_overlap: pairs at or below it are left out in training; the other splits keep all.
        per_scene: pairs of each scene in a training epoch; ``None``: all.
        depth: read the depth maps. Without them there is a pose to score, but nothing to train on.
    """

    def __init__(
        self,
        root: str,
        train_index: str | None = None,
        val_index: str | None = None,
        test_index: str | None = None,
        resize: ResizeOptions = LONGER_840,
        min_overlap: float = 0.0,
        per_scene: int | None = 100,
        depth: bool = True,
    ) -> None:
        indices: dict[Split, str | None] = {"train": train_index, "val": val_index}
        indices["test"] = test_index
        super().__init__(root, indices, resize, min_overlap, per_scene, depth)

    def _scene(self, path: Path, split: Split) -> Scene:
        existing_folder(
            self.root, "MegaDepth", "Point root to the folder of the paths in the index"
        )
        needed = ("pair_infos", "image_paths", "intrinsics", "poses")
        index = read_index(path, (*needed, "depth_paths") if self.read_depth else needed)
        least = self.min_overlap if split == "train" else -np.inf
        return _MegaDepthScene(self.root, index, least, self.read_depth)

    def _read_depth(self, path: Path) -> Tensor:
        try:
            with h5py.File(path, "r") as file:
                return torch.from_numpy(np.asarray(file["depth"], dtype=np.float32))
        except (OSError, KeyError) as error:
            raise ValueError(
                f"{path} cannot be read as a depth map, h5 with the key depth: {error}"
            ) from error


class _MegaDepthScene:
    """The pairs of one index."""

    def __init__(self, root: Path, index: dict[str, Any], least: float, depth: bool) -> None:
        self.root = root
        self.index = index
        self.depth = depth
        infos = [(info[0], float(info[1])) for info in index["pair_infos"]]
        self.listed = [((int(ends[0]), int(ends[1])), share) for ends, share in infos]
        self.listed = [(ends, share) for ends, share in self.listed if share > least]

    def __len__(self) -> int:
        return len(self.listed)

    def pair(self, number: int) -> PosedPair:
        ends, share = self.listed[number]
        return PosedPair(self._view(ends[0]), self._view(ends[1]), share)

    def _view(self, number: int) -> PosedView:
        index = self.index
        name = str(index["image_paths"][number])
        pose = np.array(index["poses"][number], dtype=np.float64)
        return PosedView(
            name,
            self.root / name,
            self.root / str(index["depth_paths"][number]) if self.depth else None,
            torch.from_numpy(np.array(index["intrinsics"][number], dtype=np.float64)).reshape(3, 3),
            torch.from_numpy(_square(pose)),
        )


def _square(pose: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """(3, 4) or (4, 4) -> (4, 4)."""
    full = np.eye(4)
    full[: pose.shape[0]] = pose
    return full
