"""One pair of images with its ground truth, and a padded batch of pairs.

Shape suffixes: B pairs, H, W pixels, M given matches; a last 2 is (x, y).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict, cast

import torch
from torch import Tensor
from torch.nn import functional as F

Strata = dict[str, float]


@dataclass
class Pair:
    """Two grey images and what is known of their geometry, in the frame of these images.

    Pixel centres are at integers. Fields are ``None`` where the source does not have them.

    Args:
        image0, image1: float32 (H, W) in [0, 1].
        index: id of the pair in its source.
        name0, name1: of the image files.
        scale0, scale1: original size / size of the image, as (w, h).
        homography: (3, 3), pixels of image 0 -> image 1.
        depth0, depth1: (H, W), 0 = unknown.
        intrinsics0, intrinsics1: (3, 3) K.
        pose: (4, 4), camera 0 -> camera 1.
        map0, map1: (H, W, 2), where each pixel lies in the other image; NaN = unknown.
        points0, points1: (M, 2), given matches.
        strata: numbers by which results are grouped, such as rotation in degrees.
    """

    image0: Tensor
    image1: Tensor
    index: int
    name0: str = ""
    name1: str = ""
    scale0: tuple[float, float] = (1.0, 1.0)
    scale1: tuple[float, float] = (1.0, 1.0)
    homography: Tensor | None = None
    depth0: Tensor | None = None
    depth1: Tensor | None = None
    intrinsics0: Tensor | None = None
    intrinsics1: Tensor | None = None
    pose: Tensor | None = None
    map0: Tensor | None = None
    map1: Tensor | None = None
    points0: Tensor | None = None
    points1: Tensor | None = None
    strata: Strata = field(default_factory=dict)


class PairBatch(TypedDict, total=False):
    """What a loader hands out; a key is absent where no pair of the batch has it.

    Images are padded with zeros at the bottom and on the right; ``mask0`` and ``mask1`` (bool
    (B, H, W), True = image) are there only where something was padded. Pairs that lack what others
    have hold NaN (homography, intrinsics, pose, maps, strata) or 0 (depth) there.
    """

    image0: Tensor  # float32 (B, 1, H, W)
    image1: Tensor
    index: Tensor  # int64 (B,)
    name0: list[str]
    name1: list[str]
    scale0: Tensor  # float32 (B, 2), original size / size of the image, (w, h)
    scale1: Tensor
    size0: Tensor  # int64 (B, 2), (h, w) before padding
    size1: Tensor
    mask0: Tensor
    mask1: Tensor
    homography: Tensor  # float32 (B, 3, 3)
    depth0: Tensor  # float32 (B, H, W)
    depth1: Tensor
    intrinsics0: Tensor  # float32 (B, 3, 3)
    intrinsics1: Tensor
    pose: Tensor  # float32 (B, 4, 4)
    map0: Tensor  # float32 (B, H, W, 2)
    map1: Tensor
    points0: Tensor  # float32 (M, 2), given matches of all pairs
    points1: Tensor
    points_index: Tensor  # int64 (M,), pair of each
    points_known: Tensor  # bool (B,), pairs whose matches are given
    strata: dict[str, Tensor]  # each float32 (B,)


_MATRICES = {"homography": 3, "intrinsics0": 3, "intrinsics1": 3, "pose": 4}
_PLANES = {"depth0": 0.0, "depth1": 0.0, "map0": torch.nan, "map1": torch.nan}


def collate(pairs: Sequence[Pair], pad_to: tuple[int, int] | None = None) -> PairBatch:
    """A batch of pairs, padded at the bottom and on the right to its largest images.

    Args:
        pairs: one or more.
        pad_to: (H, W) to pad every image to; ``None``: the largest of the batch.

    Raises:
        ValueError: an image is larger than ``pad_to``; names it.
    """
    batch: dict[str, Any] = {
        "index": torch.tensor([pair.index for pair in pairs]),
        "name0": [pair.name0 for pair in pairs],
        "name1": [pair.name1 for pair in pairs],
        "scale0": torch.tensor([pair.scale0 for pair in pairs]),
        "scale1": torch.tensor([pair.scale1 for pair in pairs]),
    }
    for side in ("0", "1"):
        images = [getattr(pair, f"image{side}") for pair in pairs]
        size = _common_size(images, pad_to, pairs, side)
        batch[f"image{side}"] = torch.stack([_pad(image, size, 0.0) for image in images])[:, None]
        batch[f"size{side}"] = torch.tensor([tuple(image.shape) for image in images])
        if any(tuple(image.shape) != size for image in images):
            full = [torch.ones_like(image, dtype=torch.bool) for image in images]
            batch[f"mask{side}"] = torch.stack([_pad(one, size, False) for one in full])
    batch |= _planes(pairs, batch) | _matrices(pairs) | _points(pairs)
    names = sorted({name for pair in pairs for name in pair.strata})
    if names:
        batch["strata"] = {
            name: torch.tensor([pair.strata.get(name, torch.nan) for pair in pairs])
            for name in names
        }
    return cast(PairBatch, batch)


def _common_size(
    images: Sequence[Tensor], pad_to: tuple[int, int] | None, pairs: Sequence[Pair], side: str
) -> tuple[int, int]:
    height, width = (max(image.shape[axis] for image in images) for axis in (0, 1))
    if pad_to is None:
        return height, width
    for image, pair in zip(images, pairs, strict=True):
        if image.shape[0] > pad_to[0] or image.shape[1] > pad_to[1]:
            raise ValueError(
                f"Image {getattr(pair, f'name{side}') or side} of pair {pair.index} is "
                f"{tuple(image.shape)}, larger than pad_to {tuple(pad_to)}: raise pad_to, or "
                "resize the images to it"
            )
    return pad_to


def _pad(plane: Tensor, size: tuple[int, int], value: float | bool) -> Tensor:
    """(H, W, ...) -> (size, ...)."""
    below, right = size[0] - plane.shape[0], size[1] - plane.shape[1]
    if not below and not right:
        return plane
    trailing = [0, 0] * (plane.ndim - 2)
    return F.pad(plane, [*trailing, 0, right, 0, below], value=value)


def _planes(pairs: Sequence[Pair], batch: dict[str, Any]) -> dict[str, Tensor]:
    found = {}
    for name, empty in _PLANES.items():
        planes = [getattr(pair, name) for pair in pairs]
        if all(plane is None for plane in planes):
            continue
        size = tuple(batch[f"image{name[-1]}"].shape[2:])
        trailing = (2,) if name.startswith("map") else ()
        found[name] = torch.stack(
            [
                torch.full((*size, *trailing), empty) if plane is None else _pad(plane, size, empty)
                for plane in planes
            ]
        )
    return found


def _matrices(pairs: Sequence[Pair]) -> dict[str, Tensor]:
    found = {}
    for name, side in _MATRICES.items():
        matrices = [getattr(pair, name) for pair in pairs]
        if any(matrix is not None for matrix in matrices):
            unknown = torch.full((side, side), torch.nan)
            found[name] = torch.stack([unknown if m is None else m.float() for m in matrices])
    return found


def _points(pairs: Sequence[Pair]) -> dict[str, Tensor]:
    known = [pair.points0 is not None and pair.points1 is not None for pair in pairs]
    if not any(known):
        return {}
    none = torch.zeros(0, 2)
    points0 = [none if pair.points0 is None else pair.points0 for pair in pairs]
    points1 = [none if pair.points1 is None else pair.points1 for pair in pairs]
    counts = torch.tensor([len(points) for points in points0])
    return {
        "points0": torch.cat(points0),
        "points1": torch.cat(points1),
        "points_index": torch.arange(len(pairs)).repeat_interleave(counts),
        "points_known": torch.tensor(known),
    }
