"""Two image files, matched: points, the geometry they agree on, and how both are written down.

Shape suffixes: K matches; 33 a matrix; a last 2 is (x, y) in pixels of the image files.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isoattn.apps.base.errors import UserError
from isoattn.apps.base.files import write_atomic
from isoattn.matching.data import DecodeError, ResizeOptions
from isoattn.matching.data.frames import View, load_view
from isoattn.matching.drawing import save_matches
from isoattn.matching.files import MatchWriter
from isoattn.matching.geometry import essential_matrix, warp_points
from isoattn.matching.matches import Matches
from isoattn.matching.metrics import (
    HOMOGRAPHY_RANSAC,
    POSE_RANSAC,
    estimate_homography,
    estimate_pose,
    line_distance,
)
from isoattn.matching.models import Matcher

Intrinsics = tuple[float, float, float, float]
"""fx, fy, cx, cy in pixels of the file."""
LONGER = {True: 640, False: 320}
RANSAC_PX = {"homography": 3.0, "pose": 0.5}
COARSE_PX = 6.0
"""For a matcher whose matches are cells of 8 pixels, either way."""


@dataclass(frozen=True)
class Geometry:
    """What most of the matches agree on.

    Args:
        kind: ``homography`` or ``pose``.
        matrix_33: H, image 0 -> image 1 in pixels of the files, or E on normalised points.
        rotation_33, translation_3: of a pose, camera 0 -> camera 1; the translation has length 1.
        inlier_K: bool, the matches that agree.
    """

    kind: str
    matrix_33: Tensor
    inlier_K: Tensor
    rotation_33: Tensor | None = None
    translation_3: Tensor | None = None


@dataclass(frozen=True)
class TwoViews:
    """Two images and their matches.

    Args:
        paths: the files.
        views: as they were matched.
        matches: in pixels of the views.
        stored: the same in pixels of the files.
        geometry: ``None``: too few matches, or none agree.
        threshold: confidence that the matches exceed.
        ransac_px: pixels of the views.
    """

    paths: tuple[Path, Path]
    views: tuple[View, View]
    matches: Matches
    stored: Matches
    geometry: Geometry | None
    threshold: float
    ransac_px: float

    def lines(self) -> list[str]:
        """What is printed: sizes, number of matches, the matrix."""
        names = [path.name for path in self.paths]
        sizes = " and ".join(f"{v.size[1]} x {v.size[0]}" for v in self.views)
        count = len(self.matches)
        found = [f"{names[0]} | {names[1]}: {count} match{plural(count)} at {sizes}"]
        found[0] += f" (confidence > {self.threshold:g})"
        if self.geometry is None:
            return [*found, "no geometry: too few matches agree. A lower --threshold gives more."]
        inliers = (
            f"{int(self.geometry.inlier_K.sum())} of {count} match{plural(count)} within "
            f"{self.ransac_px:g} px"
        )
        if self.geometry.kind == "homography":
            title = f"homography, pixels of {names[0]} -> pixels of {names[1]}; {inliers}"
            return [*found, title, *_rows(self.geometry.matrix_33)]
        assert self.geometry.rotation_33 is not None and self.geometry.translation_3 is not None
        return [
            *found,
            f"essential matrix, x1^T E x0 = 0 on normalised points; {inliers}",
            *_rows(self.geometry.matrix_33),
            "rotation, camera 0 -> camera 1",
            *_rows(self.geometry.rotation_33),
            "direction of the translation",
            *_rows(self.geometry.translation_3[None]),
        ]

    def facts(self) -> dict[str, Any]:
        """The same as plain data."""
        facts: dict[str, Any] = {
            "images": [str(path) for path in self.paths],
            "matched_at": [list(view.size) for view in self.views],
            "matches": len(self.matches),
            "threshold": self.threshold,
            "ransac_px": self.ransac_px,
            "geometry": None,
        }
        found = self.geometry
        if found is not None:
            name = "homography" if found.kind == "homography" else "essential"
            facts |= {"geometry": found.kind, name: found.matrix_33.tolist()}
            facts["inliers"] = int(found.inlier_K.sum())
            if found.rotation_33 is not None and found.translation_3 is not None:
                facts["rotation"] = found.rotation_33.tolist()
                facts["translation"] = found.translation_3.tolist()
        return facts


@torch.no_grad()
def match_images(
    matcher: Matcher,
    paths: tuple[Path, Path],
    *,
    longer: int | None = None,
    threshold: float | None = None,
    top: int | None = None,
    ransac_px: float | None = None,
    intrinsics: tuple[Intrinsics, Intrinsics] | None = None,
    seed: int = 0,
) -> TwoViews:
    """Match two files and estimate what relates them.

    Args:
        matcher: in evaluation mode.
        paths: the image files.
        longer: pixels of the longer side at which they are matched; ``None``: 640, or 320 for a
            matcher without a fine part.
        threshold: confidence that a match must exceed; ``None``: the matcher's.
        top: the most confident matches, this many; ``None``: all.
        ransac_px: pixels of the views by which an inlier may be off; ``None``: 3 for a homography,
            0.5 for a pose, 6 for either without a fine part.
        intrinsics: of both cameras, for a pose; ``None``: a homography.
        seed: of RANSAC.

    Raises:
        UserError: an unreadable image.
    """
    resize = ResizeOptions(longer=longer or LONGER[matcher.has_fine])
    try:
        view0, view1 = (load_view(path, resize) for path in paths)
    except DecodeError as error:
        raise UserError(str(error)) from error
    images = (view.image_HW[None, None] for view in (view0, view1))
    matches = matcher(*images, threshold=threshold)
    matches = matches if top is None else matches.topk(top)
    scales = (torch.tensor(view.scale) for view in (view0, view1))
    stored = matches.scaled(*scales, half_pixel=True)
    kind = "homography" if intrinsics is None else "pose"
    pixels = ransac_px or (RANSAC_PX[kind] if matcher.has_fine else COARSE_PX)
    scale = sum(view0.scale + view1.scale) / 4
    if intrinsics is None:
        found = _homography(stored, pixels * scale, seed)
    else:
        found = _pose(stored, pixels * scale, intrinsics, seed)
    used = matcher.threshold if threshold is None else threshold
    return TwoViews(paths, (view0, view1), matches, stored, found, used, pixels)


def write_views(folder: Path, stem: str, views: TwoViews) -> list[str]:
    """Write ``STEM.png``, ``STEM.h5`` and ``STEM.json``; returns their names."""
    stored, geometry = views.stored, views.geometry
    with MatchWriter(folder / f"{stem}.h5") as writer:
        name0, name1 = (path.name for path in views.paths)
        writer.add(name0, name1, stored.keypoints0, stored.keypoints1, stored.confidence)
    write_atomic(folder / f"{stem}.json", json.dumps(views.facts(), indent=2) + "\n")
    title = views.lines()[0]
    if geometry is not None:
        title += f"; green: {int(geometry.inlier_K.sum())} that agree on a {geometry.kind}"
    save_matches(
        folder / f"{stem}.png",
        views.views[0].image_HW,
        views.views[1].image_HW,
        views.matches,
        correct=None if geometry is None else geometry.inlier_K,
        title=title,
    )
    return [f"{stem}.{suffix}" for suffix in ("png", "h5", "json")]


def _homography(stored: Matches, pixels: float, seed: int) -> Geometry | None:
    options = replace(HOMOGRAPHY_RANSAC, threshold=pixels, repeats=1, seed=seed)
    (matrix_33,) = estimate_homography(stored.keypoints0, stored.keypoints1, options)
    if matrix_33 is None:
        return None
    matrix_33 = matrix_33 / matrix_33[2, 2]
    moved_K2 = warp_points(stored.keypoints0.double()[None], matrix_33[None])[0]
    error_K = (moved_K2 - stored.keypoints1).norm(dim=-1)
    return Geometry("homography", matrix_33, error_K <= pixels)


def _pose(
    stored: Matches, pixels: float, intrinsics: tuple[Intrinsics, Intrinsics], seed: int
) -> Geometry | None:
    camera0_33, camera1_33 = (_camera(each) for each in intrinsics)
    options = replace(POSE_RANSAC, threshold=pixels, repeats=1, seed=seed)
    (found,) = estimate_pose(stored.keypoints0, stored.keypoints1, camera0_33, camera1_33, options)
    if found is None:
        return None
    rotation_33, translation_3 = found
    pose_44 = torch.eye(4, dtype=torch.float64)
    pose_44[:3, :3], pose_44[:3, 3] = rotation_33, translation_3
    essential_33 = essential_matrix(pose_44)
    fundamental_33 = torch.linalg.inv(camera1_33).T @ essential_33 @ torch.linalg.inv(camera0_33)
    distance_K = line_distance(
        stored.keypoints0.double(), stored.keypoints1.double(), fundamental_33
    )
    return Geometry("pose", essential_33, distance_K <= pixels, rotation_33, translation_3)


def _camera(values: Intrinsics) -> Tensor:
    fx, fy, cx, cy = values
    return torch.tensor([[fx, 0, cx], [0, fy, cy], [0, 0, 1]], dtype=torch.float64)


def plural(count: int) -> str:
    """The ending of ``matches``."""
    return "" if count == 1 else "es"


def _rows(matrix: Tensor) -> list[str]:
    return ["  " + " ".join(f"{value: 13.6g}" for value in row) for row in matrix.tolist()]
