"""ScanNet by the npz indices of LoFTR."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from isoattn.matching.data.frames import ResizeOptions
from isoattn.matching.data.npz import read_index
from isoattn.matching.data.photos import Split
from isoattn.matching.data.scenes import PosedPair, PosedSource, PosedView, Scene
from isoattn.matching.data.source import existing_folder

SCANNET_SIZE = ResizeOptions(size=(480, 640))


class ScanNet(PosedSource):
    """ScanNet by LoFTR's npz indices (Dai et al., CVPR 2017; zju3dv/LoFTR).

    An index holds ``name``, rows of (scene, sub-scene, image 0, image 1), and ``score`` where
    overlaps are known. Files: ``root/scene0000_00/color/0.jpg``, ``depth/0.png`` (16 bit,
    millimetres) and ``pose/0.txt`` (camera -> world).

    Args:
        root: folder with the scenes.
        intrinsics: npz with K of each scene by its name, in the frame of the depth maps.
        train_index, val_index, test_index: an npz file, or a folder of them.
        resize: (480, 640) by default, the size of the depth maps.
        min_overlap: pairs with a score at or below it are left out in training.
        per_scene: pairs of each index in a training epoch; ``None``: all.
        depth: read the depth maps.
        pose_root: folder with the scenes' poses; ``None``: ``root``.
        frame: (H, W) in which K is.
    """

    def __init__(
        self,
        root: str,
        intrinsics: str,
        train_index: str | None = None,
        val_index: str | None = None,
        test_index: str | None = None,
        resize: ResizeOptions = SCANNET_SIZE,
        min_overlap: float = 0.4,
        per_scene: int | None = 100,
        depth: bool = True,
        pose_root: str | None = None,
        frame: tuple[int, int] = (480, 640),
    ) -> None:
        indices: dict[Split, str | None] = {"train": train_index, "val": val_index}
        indices["test"] = test_index
        super().__init__(root, indices, resize, min_overlap, per_scene, depth)
        self.intrinsics = Path(intrinsics)
        self.pose_root = Path(pose_root) if pose_root is not None else self.root
        self.frame = (int(frame[0]), int(frame[1]))

    @cached_property
    def _intrinsics(self) -> dict[str, Any]:
        return read_index(self.intrinsics, ())

    def _scene(self, path: Path, split: Split) -> Scene:
        existing_folder(self.root, "ScanNet", "Point root to the folder with scene0000_00")
        index = read_index(path, ("name",))
        least = self.min_overlap if split == "train" else -np.inf
        return _ScanNetScene(self, index, least)

    def posed(self, scene: str, stem: str) -> PosedView:
        """One photograph of a scene.

        Raises:
            ValueError: no K of the scene, or a pose that is not 4 x 4 finite numbers.
        """
        if scene not in self._intrinsics:
            raise ValueError(f"{self.intrinsics} has no K of {scene}")
        name = f"{scene}/color/{stem}.jpg"
        depth = self.root / scene / "depth" / f"{stem}.png" if self.read_depth else None
        intrinsics = np.array(self._intrinsics[scene], dtype=np.float64)[:3, :3]
        return PosedView(
            name,
            self.root / name,
            depth,
            torch.from_numpy(intrinsics).reshape(3, 3),
            torch.linalg.inv(_read_pose(self.pose_root / scene / "pose" / f"{stem}.txt")),
            self.frame,
        )

    def _read_depth(self, path: Path) -> Tensor:
        try:
            with Image.open(path) as image:
                millimetres = np.asarray(image)
        except (OSError, SyntaxError) as error:
            raise ValueError(
                f"{path} cannot be read as a depth map, 16-bit png: {error}"
            ) from error
        if millimetres.ndim != 2 or millimetres.dtype == np.uint8:
            raise ValueError(
                f"{path} is {millimetres.dtype} {millimetres.shape}: depth in millimetres is one "
                "channel of 16 bits"
            )
        return torch.from_numpy(millimetres.astype(np.float32) / 1000)


class _ScanNetScene:
    """The pairs of one index."""

    def __init__(self, source: ScanNet, index: dict[str, Any], least: float) -> None:
        self.source = source
        names = np.asarray(index["name"])
        scores = np.asarray(index.get("score", np.full(len(names), np.nan)), dtype=np.float64)
        kept = ~(scores <= least)  # a pair whose overlap is not known stays
        self.names, self.scores = names[kept], scores[kept]

    def __len__(self) -> int:
        return len(self.names)

    def pair(self, number: int) -> PosedPair:
        scene, sub, stem0, stem1 = (int(part) for part in self.names[number])
        name = f"scene{scene:04d}_{sub:02d}"
        views = [self.source.posed(name, str(stem)) for stem in (stem0, stem1)]
        return PosedPair(views[0], views[1], float(self.scores[number]))


def _read_pose(path: Path) -> Tensor:
    try:
        matrix = np.loadtxt(path, dtype=np.float64)
    except FileNotFoundError:
        raise FileNotFoundError(f"There is no pose {path}") from None
    except ValueError as error:
        raise ValueError(f"{path} is no pose: {error}") from error
    if matrix.shape != (4, 4) or not np.isfinite(matrix).all():
        raise ValueError(f"{path} is no pose of 4 x 4 finite numbers (ScanNet lost the camera)")
    return torch.from_numpy(matrix)
