"""Images read at another size, and their geometry moved along.

Everything a source knows (homography, K, depth, maps, points) is in the frame of the stored files;
what a matcher gets is in the frame of the resized images.

Shape suffixes: H, W pixels; 33 a matrix; M points; a last 2 is (x, y).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from isoattn.matching.data.decode import decode_grey, to_unit
from isoattn.matching.geometry import resize_matrix


@dataclass(frozen=True)
class ResizeOptions:
    """The size at which images are matched; at most one of the first three.

    Args:
        longer: pixels of the longer side.
        shorter: pixels of the shorter side.
        size: (H, W) exactly, whatever the aspect ratio.
        multiple: both sides are made a multiple of this, downwards; the image is resized to it, not
            cropped. 1: any size.

    Raises:
        ValueError: two of them, or numbers below 1.
    """

    longer: int | None = None
    shorter: int | None = None
    size: tuple[int, int] | None = None
    multiple: int = 8

    def __post_init__(self) -> None:
        given = [self.longer, self.shorter, *(self.size or ()), self.multiple]
        chosen = [value is not None for value in (self.longer, self.shorter, self.size)]
        if sum(chosen) > 1 or any(value is not None and value < 1 for value in given):
            raise ValueError(
                "Images are resized by one of longer, shorter and size, all 1 or more, as multiple "
                f"is; got {self}"
            )

    def target(self, size: tuple[int, int]) -> tuple[int, int]:
        """(H, W) at which an image of this size is matched."""
        height, width = size
        if self.size is not None:
            height, width = self.size
        elif self.longer is not None or self.shorter is not None:
            wanted = self.longer if self.longer is not None else self.shorter
            side = max(size) if self.longer is not None else min(size)
            height, width = (round(side_px * wanted / side) for side_px in size)  # type: ignore[operator]
        step = self.multiple
        return max(height // step * step, step), max(width // step * step, step)


@dataclass(frozen=True)
class View:
    """An image at the size at which it is matched.

    Args:
        image_HW: float32 in [0, 1].
        stored: (H, W) of the file.
    """

    image_HW: Tensor
    stored: tuple[int, int]

    @property
    def size(self) -> tuple[int, int]:
        """(H, W) of the resized image."""
        height, width = self.image_HW.shape
        return height, width

    @property
    def scale(self) -> tuple[float, float]:
        """Stored size / size, as (w, h)."""
        return self.stored[1] / self.size[1], self.stored[0] / self.size[0]

    def matrix(self, frame: tuple[int, int] | None = None) -> Tensor:
        """Pixels of a frame that shows the whole image -> pixels of the view, float64 (3, 3).

        Args:
            frame: (H, W) of it; ``None``: that of the file.
        """
        return resize_matrix(self.stored if frame is None else frame, self.size)

    def intrinsics(self, intrinsics_33: Tensor, frame: tuple[int, int] | None = None) -> Tensor:
        """K of the view from K of a frame."""
        return (self.matrix(frame) @ intrinsics_33.double()).float()

    def points(self, points_M2: Tensor) -> Tensor:
        """Points of the file in the view."""
        matrix_33 = self.matrix()
        return (points_M2.double() * matrix_33.diagonal()[:2] + matrix_33[:2, 2]).float()

    def depth(self, depth_HW: Tensor) -> Tensor:
        """A depth map of any size that shows the whole image, read at the nearest pixel."""
        return nearest_pixels(depth_HW, self.size)


def load_view(path: Path, resize: ResizeOptions) -> View:
    """Read a file and resize it, antialiased.

    Raises:
        DecodeError: unreadable; names it.
    """
    image = decode_grey(path)
    stored = image.height, image.width
    height, width = resize.target(stored)
    if (height, width) != stored:
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    return View(to_unit(image), stored)


def resized_homography(homography_33: Tensor, view0: View, view1: View) -> Tensor:
    """A homography between the files as one between the views."""
    back_33 = torch.linalg.inv(view0.matrix())
    moved_33: Tensor = view1.matrix() @ homography_33.double() @ back_33
    return moved_33.float()


def resized_map(map_HW2: Tensor, view: View, other: View) -> Tensor:
    """Where pixels of a file lie in another file, as the same between the views.

    Read at the nearest pixel and moved along by the rest.

    Args:
        map_HW2: of the size of the file of ``view``; positions in the file of ``other``.
        view, other: the two images.
    """
    rows_H, columns_W = _sources(view.stored, view.size)
    nearest_HW2 = nearest_pixels(map_HW2, view.size).double()
    rest_HW2 = torch.stack(
        [
            (columns_W - columns_W.round()).expand(len(rows_H), -1),
            (rows_H - rows_H.round())[:, None].expand(-1, len(columns_W)),
        ],
        -1,
    )
    return other.points((nearest_HW2 + rest_HW2).reshape(-1, 2)).reshape(nearest_HW2.shape)


def _sources(stored: tuple[int, int], size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Where rows and columns of a resized image come from, float64."""
    rows_H, columns_W = (
        (torch.arange(after, dtype=torch.float64) + 0.5) * (before / after) - 0.5
        for before, after in zip(stored, size, strict=True)
    )
    return rows_H, columns_W


def nearest_pixels(plane: Tensor, size: tuple[int, int]) -> Tensor:
    """A plane (H, W, ...) at another size, each pixel from the nearest one."""
    height, width = plane.shape[:2]
    rows_H, columns_W = _sources((height, width), size)
    rows_H = rows_H.round().long().clamp(0, height - 1)
    return plane[rows_H][:, columns_W.round().long().clamp(0, width - 1)]
