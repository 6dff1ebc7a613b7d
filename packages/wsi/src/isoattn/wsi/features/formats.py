"""Files of coordinates and features, in the layouts of TRIDENT and CLAM.

Written is TRIDENT's layout with additions that its readers overlook: ``mpp``, ``config_hash`` and
the status of every tile. Read are TRIDENT's (h5), CLAM's (h5, and pt with the h5 beside it) and our
own, told apart by what is in them, not by their names.

``coords`` are always the top left corners (x, y) in level-0 pixels. Magnifications are in the files
because TRIDENT has them; they are nominal, 10 / mpp rounded, and never used here.

Shape suffixes: N tiles, D features.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import h5py
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isoattn.wsi.features.files import whole_file

if TYPE_CHECKING:
    from isoattn.wsi.slides import Slide, TileGrid

Layout = Literal["isoattn", "trident", "clam"]


class FeatureFileError(ValueError):
    """A file of features that is missing, damaged, or holds something else; names it."""


@dataclass(frozen=True)
class SlideFeatures:
    """The features of a slide's tiles.

    Args:
        name: of the slide.
        features_ND: float32.
        coords_N2: int64 (x, y) in level-0 pixels; ``None`` where a bare CLAM tensor has no h5.
        side: of a tile in level-0 pixels; ``None``: not in the file.
        layout: whose file it is.
        mpp: micrometres per pixel of the tiles; ``None``: not in the file.
        attributes: everything else that the file says.
    """

    name: str
    features_ND: Tensor
    coords_N2: NDArray[np.int64] | None
    side: float | None
    layout: Layout
    mpp: float | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)


def grid_attributes(slide: Slide, grid: TileGrid, folder: str) -> dict[str, Any]:
    """What TRIDENT stores with coordinates, and our additions.

    Args:
        slide: whose tiles they are.
        grid: the tiles.
        folder: name of the output folder.
    """
    options = grid.options
    width, height = slide.dimensions
    return {
        "patch_size": options.size,
        "patch_size_level0": round(grid.side),
        "level0_magnification": round(10 / slide.mpp),
        "target_magnification": round(10 / options.mpp),
        "overlap": options.size - options.step,
        "name": slide.name,
        "savetodir": folder,
        "level0_width": width,
        "level0_height": height,
        "mpp": options.mpp,
        "level0_mpp": slide.mpp,
        "mpp_source": slide.resolution.source,
        "side_level0": grid.side,
    }


def write_coords(path: Path, slide: Slide, grid: TileGrid) -> None:
    """Write ``ID_patches.h5``: the listed tiles before they are read."""
    with whole_file(path) as partial, h5py.File(partial, "w") as file:
        coords = file.create_dataset("coords", data=grid.coords_N2)
        coords.attrs.update(grid_attributes(slide, grid, path.parent.name))
        file.create_dataset("tissue", data=grid.tissue_N)


def write_features(
    path: Path,
    slide: Slide,
    grid: TileGrid,
    batches: Iterable[tuple[NDArray[np.int64], NDArray[np.float32]]],
    *,
    status_N: NDArray[np.uint8],
    coverage_N: NDArray[np.float32],
    encoder: str,
    dim: int,
    configuration: dict[str, Any],
    config_hash: str,
) -> int:
    """Write ``ID.h5`` batch by batch; the file appears when it is complete.

    Args:
        path: the target.
        slide, grid: what was read.
        batches: positions in the grid and features (B, D) of the tiles that were read.
        status_N, coverage_N: of every tile of the grid; filled by the time the batches end.
        encoder: its name.
        dim: D.
        configuration, config_hash: see :mod:`isoattn.wsi.features.config`.

    Returns:
        number of tiles with features.
    """
    with whole_file(path) as partial, h5py.File(partial, "w") as file:
        features = file.create_dataset(
            "features", (0, dim), "float32", maxshape=(None, dim), chunks=(64, dim)
        )
        kept: list[NDArray[np.int64]] = []
        for positions, values in batches:
            features.resize(len(features) + len(values), 0)
            features[len(features) - len(values) :] = values
            kept.append(positions)
        chosen = np.concatenate(kept) if kept else np.zeros(0, dtype=np.int64)
        coords = file.create_dataset("coords", data=grid.coords_N2[chosen])
        coords.attrs.update(grid_attributes(slide, grid, path.parent.name))
        features.attrs.update(
            {"name": slide.name, "savetodir": path.parent.name, "encoder": encoder}
        )
        tiles = file.create_group("tiles")
        tiles.create_dataset("coords", data=grid.coords_N2)
        tiles.create_dataset("status", data=status_N)
        tiles.create_dataset("coverage", data=coverage_N)
        tiles.create_dataset("tissue", data=grid.tissue_N)
        tiles.attrs["status"] = "0 read, 1 damaged"
        file.attrs["config_hash"] = config_hash
        file.attrs["config"] = json.dumps(configuration, sort_keys=True)
    return len(chosen)


def stored_hash(path: Path) -> str | None:
    """The configuration hash of a file of ours; ``None``: no file, damaged, or not ours."""
    try:
        with h5py.File(path, "r") as file:
            value = file.attrs.get("config_hash")
    except (OSError, KeyError):
        return None
    return str(value) if value is not None else None


def write_clam(folder: Path, features: SlideFeatures) -> None:
    """Write CLAM's pair: ``h5_files/ID.h5`` and ``pt_files/ID.pt``, a bare tensor.

    Raises:
        FeatureFileError: there are no coordinates, which the h5 needs.
    """
    if features.coords_N2 is None:
        raise FeatureFileError(
            f"CLAM's h5 of {features.name} needs coordinates, and its source has none"
        )
    target = folder / "h5_files" / f"{features.name}.h5"
    with whole_file(target) as partial, h5py.File(partial, "w") as file:
        file.create_dataset("features", data=features.features_ND.numpy())
        coords = file.create_dataset("coords", data=features.coords_N2)
        if features.side is not None:
            # Level 0 is the level whose pixels the coordinates and this size count.
            coords.attrs.update(
                {"patch_size": round(features.side), "patch_level": 0, "name": features.name}
            )
    with whole_file(folder / "pt_files" / f"{features.name}.pt") as partial:
        torch.save(features.features_ND.clone(), partial)


def read_features(path: str | Path) -> SlideFeatures:
    """Features and coordinates of a slide, from any of the layouts.

    Raises:
        FeatureFileError: missing, damaged, another content, features that are not finite, or not as
            many coordinates as features.
    """
    path = Path(path)
    if not path.is_file():
        raise FeatureFileError(f"There is no file of features {path}")
    found = _read_pt(path) if path.suffix == ".pt" else _read_h5(path)
    values, coords = found.features_ND, found.coords_N2
    if coords is not None and coords.shape != (len(values), 2):
        raise FeatureFileError(
            f"{path} has {len(values)} rows of features and coordinates of shape {coords.shape}; "
            "one (x, y) a row is needed. Extract the slide again."
        )
    if not torch.isfinite(values).all():
        rows = (~torch.isfinite(values).all(1)).nonzero()[:5, 0].tolist()
        raise FeatureFileError(
            f"{path} has features that are not finite, such as in the rows {rows}. Extract the "
            "slide again, with precision float32."
        )
    return found


def _read_pt(path: Path) -> SlideFeatures:
    try:
        values = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError, OSError) as error:
        raise FeatureFileError(f"{path} is no file of torch, or damaged: {error}") from error
    if not isinstance(values, Tensor):
        raise FeatureFileError(
            f"{path} holds a {type(values).__name__}; CLAM's pt files hold a bare tensor (N, D)"
        )
    beside = path.parent.parent / "h5_files" / f"{path.stem}.h5"
    if not beside.is_file():
        return SlideFeatures(path.stem, _matrix(path, values), None, None, "clam")
    twin = _read_h5(beside)
    return SlideFeatures(
        path.stem,
        _matrix(path, values),
        twin.coords_N2,
        twin.side,
        "clam",
        twin.mpp,
        twin.attributes,
    )


def _read_h5(path: Path) -> SlideFeatures:
    try:
        with h5py.File(path, "r") as file:
            if "features" not in file or "coords" not in file:
                raise FeatureFileError(
                    f"{path} has {', '.join(sorted(file)) or 'nothing'}; features and coords are "
                    "needed. A file of coordinates alone comes before the features are extracted."
                )
            values = torch.from_numpy(np.asarray(file["features"], dtype=np.float32))
            coords = np.asarray(file["coords"], dtype=np.int64)
            attributes = {
                **{k: _plain(v) for k, v in file["coords"].attrs.items()},
                **{k: _plain(v) for k, v in file["features"].attrs.items()},
                **{k: _plain(v) for k, v in file.attrs.items()},
            }
    except (OSError, KeyError, TypeError) as error:
        raise FeatureFileError(f"{path} is no h5 file, or damaged: {error}") from error
    layout, side = _layout(attributes)
    mpp = attributes.get("mpp")
    return SlideFeatures(
        str(attributes.get("name", path.stem)),
        _matrix(path, values),
        coords,
        side,
        layout,
        float(mpp) if mpp is not None else None,
        attributes,
    )


def _layout(attributes: Mapping[str, Any]) -> tuple[Layout, float | None]:
    """Whose file it is, and the side of its tiles in level-0 pixels."""
    if "config_hash" in attributes:
        return "isoattn", float(attributes["side_level0"])
    if "patch_size_level0" in attributes:
        return "trident", float(attributes["patch_size_level0"])
    if "patch_size" in attributes:
        # CLAM's size counts pixels of the level that was read.
        downsample = np.atleast_1d(attributes.get("downsample", 1.0))
        level = int(attributes.get("patch_level", 0))
        if level == 0 or "downsample" in attributes:
            return "clam", float(attributes["patch_size"]) * float(downsample[0])
    return "clam", None


def _matrix(path: Path, values: Tensor) -> Tensor:
    """float32 (N, D); some writers put a batch dimension in front."""
    if values.ndim == 3 and values.shape[0] == 1:
        values = values[0]
    if values.ndim != 2:
        raise FeatureFileError(
            f"{path} has features of shape {tuple(values.shape)}, expected (N, D)"
        )
    return values.float()


def _plain(value: Any) -> Any:
    """Python values instead of numpy's and bytes."""
    if isinstance(value, bytes):
        return value.decode()
    return value.tolist() if isinstance(value, (np.generic, np.ndarray)) else value
