"""Bags from feature files: h5 in the layout of TRIDENT or CLAM, and pt files of CLAM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import h5py
import numpy as np
import torch
from torch import Tensor

from isoattn.wsi.bags.bag import UNLABELLED, Bag, BagError, check_shape
from isoattn.wsi.bags.labels import class_order, read_labels, shown
from isoattn.wsi.bags.split import SplitOptions, split_slides
from isoattn.wsi.bags.task import BagReader, BagSource, BagTask, Split
from isoattn.wsi.features.formats import FeatureFileError, read_features

ENDINGS = (".h5", ".hdf5", ".pt")
"""In this order where a slide has several files: h5 files know where the tiles lie."""
SUBFOLDERS = ("", "h5_files", "pt_files", "features")

OnMissing = Literal["error", "skip"]


class FeatureReader(BagReader):
    """Reads one file a bag, when it is asked for.

    Args:
        names: of the bags.
        paths: of their files.
        in_dim: I; ``None``: whatever the file has.
    """

    def __init__(
        self, names: Sequence[str], paths: Sequence[Path], in_dim: int | None = None
    ) -> None:
        self.names = list(names)
        self.paths = list(paths)
        self.in_dim = in_dim

    def read(self, index: int) -> Bag:
        """The bag, checked."""
        name = self.names[index]
        try:
            found = read_features(self.paths[index])
        except FeatureFileError as error:
            raise BagError(f"Bag {name!r}: {error}") from error
        coords = None if found.coords_N2 is None else torch.from_numpy(found.coords_N2)
        step = _step(found.side, found.attributes)
        return Bag(found.features_ND, coords, step, found.side).checked(name, self.in_dim)

    def shape(self, index: int) -> tuple[int, int]:
        """Tiles and features, without reading the features."""
        found = tuple(self._peek(index)[0])
        check_shape(self.names[index], found, self.in_dim)
        return found[0], found[1]

    def digest(self, index: int) -> list[Any]:
        """Shape, and the first and last tile."""
        return list(self._peek(index))

    def _peek(self, index: int) -> tuple[tuple[int, ...], Tensor]:
        """Shape of the features, and their first and last row."""
        name, path = self.names[index], self.paths[index]
        try:
            if path.suffix == ".pt":
                # mapped: only the rows that are looked at are read
                data = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
                rows = data[0] if data.ndim == 3 and data.shape[0] == 1 else data
                return tuple(rows.shape), rows[[0, -1]].clone() if len(rows) else rows
            with h5py.File(path, "r") as file:
                data = file["features"]
                shape = tuple(data.shape)
                front = (0,) if data.ndim == 3 and shape[0] == 1 else ()
                shape = shape[len(front) :]
                if not shape[0]:
                    return shape, torch.empty(0)
                return shape, torch.from_numpy(np.stack([data[(*front, i)] for i in (0, -1)]))
        except Exception as error:  # torch and h5py raise what they like for a damaged file
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise BagError(
                f"Bag {name!r}: {path} cannot be read ({reason}): it is damaged, unfinished or no "
                "file of features; extract them anew"
            ) from error


class FeatureFolder(BagSource):
    """A folder with one feature file a slide, and a table with its label.

    Args:
        root: folder of ``ID.h5`` (``features`` and, for places, ``coords``; TRIDENT, CLAM) or
            ``ID.pt`` (a bare tensor, CLAM); its subfolders h5_files, pt_files, features too.
        labels: CSV with one row a slide; ``None``: no labels, all files of the folder, to predict.
        id_column: of the table; the file's name without ending. Text: "001" is not "1".
        label_column: class names.
        patient_column: slides of one patient stay in one part of the split; ``None``: each slide is
            a patient of its own.
        site_column: where a slide comes from, for ``split.sites``.
        split_column: train, val, test or empty, in the same table; else the split is drawn.
        classes: class names in the order of the outputs; ``None``: sorted.
        on_missing: what to do about slides without a file: ``error``, or ``skip``, which counts
            them.
        split: of the slides.

    Raises:
        ValueError: options that contradict each other.
    """

    def __init__(
        self,
        root: str,
        labels: str | None = None,
        id_column: str = "slide_id",
        label_column: str = "label",
        patient_column: str | None = None,
        site_column: str | None = None,
        split_column: str | None = None,
        classes: list[str] | None = None,
        on_missing: OnMissing = "error",
        split: SplitOptions = SplitOptions(),  # noqa: B008 - frozen
    ) -> None:
        if on_missing not in get_args(OnMissing):
            raise ValueError(
                f"on_missing must be one of {', '.join(get_args(OnMissing))}, got {on_missing!r}"
            )
        if split_column is not None and split.file is not None:
            raise ValueError("split_column gives the split already: drop split.file or it")
        self.root = Path(root)
        self.labels = labels
        self.id_column = id_column
        self.label_column = label_column
        self.patient_column = patient_column
        self.site_column = site_column
        self.split_column = split_column
        self.classes = classes
        self.on_missing = on_missing
        self.split = split

    def load(self) -> BagTask:
        """The task; sizes are looked at, features are not read."""
        files = find_files(self.root)
        if self.labels is None:
            return self._unlabelled(files)
        table = read_labels(
            self.labels,
            id_column=self.id_column,
            label_column=self.label_column,
            patient_column=self.patient_column,
            site_column=self.site_column,
            split_column=self.split_column,
        )
        split = split_slides(table, self.split)
        present = [name in files for name in table.ids]
        absent = [name for name, there in zip(table.ids, present, strict=True) if not there]
        if absent and self.on_missing == "error":
            raise FileNotFoundError(_missing(self.root, absent, len(table.ids), list(files)))
        classes = tuple(self.classes or class_order(table.labels))
        unknown = sorted(set(table.labels) - set(classes))
        if unknown:
            raise ValueError(
                f"The labels {shown(unknown)} are not among the classes {list(classes)}: "
                "complete classes, or leave these slides out"
            )
        kept = torch.tensor([i for i, there in enumerate(present) if there], dtype=torch.int64)
        names = [table.ids[i] for i in kept.tolist()]
        labels = torch.tensor([classes.index(label) for label in table.labels])
        return BagTask(
            name=self.root.name,
            ids=tuple(names),
            labels=labels[kept],
            classes=classes,
            split=_kept(split, torch.tensor(present)),
            **_opened(names, files),
            facts={
                "source": "feature files",
                "skipped": {"no feature file": len(absent)} if absent else {},
            },
        )

    def _unlabelled(self, files: Mapping[str, Path]) -> BagTask:
        names = sorted(files)
        none = torch.empty(0, dtype=torch.int64)
        return BagTask(
            name=self.root.name,
            ids=tuple(names),
            labels=torch.full((len(names),), UNLABELLED),
            classes=tuple(self.classes or ()),
            split=Split(none, none, none),
            **_opened(names, files),
            facts={"source": "feature files"},
        )


def find_files(root: Path) -> dict[str, Path]:
    """The feature file of each slide id, sorted by id.

    Raises:
        FileNotFoundError: no such folder, or none in it.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"There is no folder {root}: give the one with the feature files")
    found: dict[str, Path] = {}
    for ending in ENDINGS:
        for folder in SUBFOLDERS:
            for path in (root / folder).glob(f"*{ending}"):
                found.setdefault(path.name.removesuffix(ending), path)
    if not found:
        raise FileNotFoundError(
            f"The folder {root} has no feature files ({', '.join(ENDINGS)}): extract features "
            "first, or point root to them"
        )
    return dict(sorted(found.items()))


def _step(side: float | None, attributes: Mapping[str, Any]) -> float | None:
    """Level-0 pixels from tile to tile: the side of a tile, less the overlap of TRIDENT's."""
    size, overlap = attributes.get("patch_size"), attributes.get("overlap")
    if side is None or not size or not overlap:
        return side
    return side * (1.0 - float(overlap) / float(size))


def _opened(names: Sequence[str], files: Mapping[str, Path]) -> dict[str, Any]:
    """Reader and number of features; every file is looked at.

    Raises:
        BagError: what is wrong with the first that cannot be used, and the names of the others.
    """
    reader = FeatureReader(names, [files[name] for name in names])
    bad: dict[str, BagError] = {}
    for index, name in enumerate(names):
        try:
            shape = reader.shape(index)
        except BagError as error:
            bad[name] = error
        else:
            reader.in_dim = reader.in_dim or shape[1]
    if bad:
        first, *others = bad
        also = f". {len(others)} more cannot be used: {shown(others)}" if others else ""
        raise BagError(f"{bad[first]}{also}") from bad[first]
    return {"reader": reader, "in_dim": reader.in_dim}


def _kept(split: Split, present: Tensor) -> Split:
    """The split without the slides that are absent, renumbered."""
    place = present.long().cumsum(0) - 1
    return Split(*(place[members[present[members]]] for _, members in split.items()))


def _missing(root: Path, absent: Sequence[str], total: int, have: Sequence[str]) -> str:
    return (
        f"{len(absent)} of {total} slides of the table have no feature file in {root}: "
        f"{shown(absent)}. Its files are of {shown(have)}. Make them, correct the ids, or set "
        "on_missing='skip' to leave these slides out and count them."
    )
