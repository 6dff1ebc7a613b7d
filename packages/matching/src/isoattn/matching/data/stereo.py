"""Rectified stereo pairs with measured disparity: real viewpoints, where no homography helps.

Disparity d belongs to the left image: x_right = x_left - d, on the same row. (The docstring of
scikit-image's ``stereo_motorcycle`` says the opposite; warping the images shows this.)

Shape suffixes: H, W pixels.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from isoattn.matching.data.batch import Pair
from isoattn.matching.data.frames import ResizeOptions, load_view, resized_map
from isoattn.matching.data.photos import Split, package_file
from isoattn.matching.data.source import ListedPairs, PairSource, existing_folder

ANY_SIZE = ResizeOptions()
OCCLUSION = 1.0
"""Pixels of disparity by which something must lie nearer to hide what is behind."""


@dataclass(frozen=True)
class Calibration:
    """Two rectified cameras.

    Args:
        focal: in pixels.
        centre: principal point of the left camera, (x, y).
        offset: x of the right principal point minus that of the left.
        baseline: in any unit; the pose's translation is in it.
    """

    focal: float
    centre: tuple[float, float]
    offset: float
    baseline: float

    def intrinsics(self, right: bool) -> Tensor:
        """K of one camera, float64 (3, 3)."""
        x = self.centre[0] + (self.offset if right else 0.0)
        rows = [[self.focal, 0.0, x], [0.0, self.focal, self.centre[1]], [0.0, 0.0, 1.0]]
        return torch.tensor(rows, dtype=torch.float64)

    def pose(self) -> Tensor:
        """Left camera -> right camera, (4, 4)."""
        pose_44 = torch.eye(4)
        pose_44[0, 3] = -self.baseline
        return pose_44


def disparity_maps(disparity_HW: Tensor) -> tuple[Tensor, Tensor]:
    """Where the pixels of each image lie in the other.

    A left pixel counts only where nothing nearer covers its place in the right image.

    Args:
        disparity_HW: of the left image; 0, negative or not finite = unknown.

    Returns:
        (H, W, 2) of the left and of the right image; NaN = unknown or hidden.
    """
    height, width = disparity_HW.shape
    disparity = disparity_HW.double().numpy()
    known = np.isfinite(disparity) & (disparity > 0)
    rows, columns = np.nonzero(known)
    found = disparity[rows, columns]
    places = np.rint(columns - found).astype(np.int64)
    inside = places >= 0
    nearest = np.full((height, width), -np.inf)
    np.maximum.at(nearest, (rows[inside], places[inside]), found[inside])
    hidden = nearest[rows, places.clip(0)] > found + OCCLUSION
    visible = np.full((height, width), np.nan)
    visible[rows[~hidden], columns[~hidden]] = found[~hidden]
    nearest[np.isinf(nearest)] = np.nan
    return _positions(-visible), _positions(nearest)


def _positions(shift: np.ndarray[Any, Any]) -> Tensor:
    """(x + shift, y) of every pixel; NaN where the shift is."""
    x = torch.arange(shift.shape[1], dtype=torch.float64) + torch.from_numpy(shift)
    y = torch.arange(shift.shape[0], dtype=torch.float64)[:, None] + 0 * x
    return torch.stack([x, y], -1)


class StereoPair(PairSource):
    """One stereo pair; the same whichever split is asked for. The stratum ``parallax`` is 1."""

    resize: ResizeOptions
    calibration: Calibration | None = None

    @abstractmethod
    def paths(self) -> tuple[Path, Path, Path]:
        """Left image, right image, disparity."""

    @abstractmethod
    def disparity(self) -> Tensor:
        """Of the left image, (H, W)."""

    def pairs(self, split: Split, seed: int) -> ListedPairs[str]:
        """The one pair."""
        return ListedPairs([type(self).__name__.lower()], self._load)

    def describe(self) -> dict[str, Any]:
        """The size."""
        return {"resize": asdict(self.resize)}

    def files(self, split: Split) -> Sequence[Path]:
        """Images and disparity."""
        return self.paths()

    def _load(self, index: int, name: str) -> Pair:
        left, right, _ = self.paths()
        view0, view1 = load_view(left, self.resize), load_view(right, self.resize)
        map0, map1 = disparity_maps(self.disparity())
        pair = Pair(
            view0.image_HW,
            view1.image_HW,
            index,
            left.name,
            right.name,
            view0.scale,
            view1.scale,
            map0=resized_map(map0, view0, view1),
            map1=resized_map(map1, view1, view0),
            strata={"parallax": 1.0},
        )
        if self.calibration is not None:
            pair.intrinsics0 = view0.intrinsics(self.calibration.intrinsics(right=False))
            pair.intrinsics1 = view1.intrinsics(self.calibration.intrinsics(right=True))
            pair.pose = self.calibration.pose()
        return pair


class Motorcycle(StereoPair):
    """The Middlebury 2014 motorcycle inside scikit-image (Scharstein et al., GCPR 2014).

    500 x 741 pixels, calibrated, so that the pose can be scored too. It takes no part in training.

    Args:
        resize: of both images.
    """

    calibration = Calibration(994.978, (311.193, 254.877), 31.086, 193.001)

    def __init__(self, resize: ResizeOptions = ANY_SIZE) -> None:
        self.resize = resize

    def paths(self) -> tuple[Path, Path, Path]:
        """The files in the installed package."""
        left, right, disparity = (
            package_file("skimage", "data", f"motorcycle_{name}")
            for name in ("left.png", "right.png", "disp.npz")
        )
        return left, right, disparity

    def disparity(self) -> Tensor:
        """Of the left image, float32 (500, 741), not finite where unknown."""
        path = self.paths()[2]
        try:
            with np.load(path, allow_pickle=False) as archive:
                return torch.from_numpy(archive["arr_0"].astype(np.float32))
        except (OSError, ValueError, KeyError, BadZipFile) as error:
            raise ValueError(f"{path} is damaged: {error}") from error


class Aloe(StereoPair):
    """Middlebury 2006 aloe as OpenCV's samples have it (Hirschmueller and Scharstein, CVPR 2007).

    Args:
        root: folder with ``aloeL.jpg``, ``aloeR.jpg`` and ``aloeGT.png`` (8 bit, 0 = unknown).
        resize: of both images.
    """

    def __init__(self, root: str, resize: ResizeOptions = ANY_SIZE) -> None:
        self.root = Path(root)
        self.resize = resize

    def paths(self) -> tuple[Path, Path, Path]:
        """The files of the folder."""
        hint = "Give the folder with aloeL.jpg, aloeR.jpg and aloeGT.png"
        folder = existing_folder(self.root, "Aloe", hint)
        return folder / "aloeL.jpg", folder / "aloeR.jpg", folder / "aloeGT.png"

    def disparity(self) -> Tensor:
        """Of the left image, float32 (1110, 1282), 0 where unknown."""
        path = self.paths()[2]
        try:
            with Image.open(path) as image:
                values = np.asarray(image)
        except (OSError, SyntaxError) as error:
            raise ValueError(f"{path} cannot be read as disparity: {error}") from error
        if values.ndim != 2:
            raise ValueError(f"{path} has the shape {values.shape}: disparity is one channel")
        return torch.from_numpy(values.astype(np.float32))
