"""Folders of images with one folder a class: scanned into an index that hides nothing.

Classes are the folder names in plain string order: ``1``, ``10``, ``2``. Tools that sort
naturally number them otherwise, so the list of names travels with the model and labels are compared
by name.
"""

from __future__ import annotations

import csv
import logging
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from isoattn.vision.data.decode import DecodeError, decode
from isoattn.vision.data.sources import SPLITS, Split

log = logging.getLogger(__name__)

SUFFIXES = frozenset(
    [".bmp", ".gif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".pnm", ".ppm"]
    + [".tif", ".tiff", ".webp"]
)


@dataclass
class FolderIndex:
    """The images of one split.

    Args:
        paths: relative to the data root, with forward slashes.
        labels: class number of each path.
        unsupported: files whose suffix is no image's.
        bad: unreadable images that were left out, with the reason.
    """

    paths: list[str]
    labels: list[int]
    unsupported: list[str] = field(default_factory=list)
    bad: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, positions: Iterable[int]) -> FolderIndex:
        """The images at these positions."""
        chosen = list(positions)
        return FolderIndex([self.paths[i] for i in chosen], [self.labels[i] for i in chosen])

    def without_bad(self, root: Path, split: str) -> FolderIndex:
        """Decode every image once; unreadable ones are left out, logged and kept in ``bad``."""
        bad = find_bad(root, self.paths)
        if bad:
            log.warning(
                "%s: %d of %d images cannot be read and are left out: %s%s",
                split,
                len(bad),
                len(self),
                "; ".join(f"{path} ({reason})" for path, reason in list(bad.items())[:10]),
                "; ..." if len(bad) > 10 else "",
            )
        kept = self.take(i for i, path in enumerate(self.paths) if path not in bad)
        kept.unsupported, kept.bad = self.unsupported, bad
        emptied = set(self.labels) - set(kept.labels)
        if emptied:
            example = next(
                p for p, label in zip(self.paths, self.labels, strict=True) if label in emptied
            )
            raise ValueError(
                f"{split}: no image of {len(emptied)} class(es) can be read, such as {example} "
                f"({bad[example]})"
            )
        return kept


def list_files(folder: Path) -> list[Path]:
    """All visible files below a folder, sorted at each level; links to folders are not followed.

    Raises:
        ValueError: a hidden folder holds images; names it.
    """
    files: list[Path] = []
    for current, folders, names in os.walk(folder):
        for name in sorted(folders):
            if name.startswith("."):
                _refuse_hidden(Path(current) / name)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        files.extend(Path(current) / name for name in sorted(names) if not name.startswith("."))
    return files


def _refuse_hidden(folder: Path) -> None:
    if any(
        Path(name).suffix.lower() in SUFFIXES for _, _, names in os.walk(folder) for name in names
    ):
        raise ValueError(
            f"The hidden folder {folder} holds images, which would become a class or duplicates. "
            "Remove it, or rename it if it is meant."
        )


def class_folders(folder: Path) -> list[str]:
    """Names of the visible subfolders in plain string order.

    Raises:
        ValueError: there is none; says what is there instead.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder")
    for entry in sorted(folder.iterdir()):
        if entry.is_dir() and entry.name.startswith("."):
            _refuse_hidden(entry)
    names = sorted(e.name for e in folder.iterdir() if e.is_dir() and not e.name.startswith("."))
    if not names:
        loose = sum(e.suffix.lower() in SUFFIXES for e in folder.iterdir())
        raise ValueError(
            f"{folder} has no class folders ({loose} images lie in it directly). Put the images of "
            "each class into a folder of its own; for images without labels use predict_dir."
        )
    return names


def scan(root: Path, below: str, class_names: Sequence[str]) -> FolderIndex:
    """Index ``root/below``, which has a folder for each class.

    Args:
        root: data root; paths are relative to it.
        below: folder with the class folders, relative to the root (``""`` for the root itself).
        class_names: label i is ``class_names[i]``.

    Raises:
        ValueError: the class folders are not those of ``class_names``, or one has no image; names
            them.
    """
    folder = root / below if below else root
    found = class_folders(folder)
    if set(found) != set(class_names):
        missing, extra = (
            sorted(set(class_names) - set(found)),
            sorted(set(found) - set(class_names)),
        )
        raise ValueError(
            f"The classes of {folder} are not those of training: missing {missing[:10]}, "
            f"unknown {extra[:10]}. Every split needs the same class folders."
        )
    index = FolderIndex([], [])
    for label, name in enumerate(class_names):
        before = len(index)
        for path in list_files(folder / name):
            relative = path.relative_to(root).as_posix()
            if path.suffix.lower() in SUFFIXES:
                index.paths.append(relative)
                index.labels.append(label)
            else:
                index.unsupported.append(relative)
        if len(index) == before:
            raise ValueError(
                f"The class folder {folder / name} has no image (suffixes: "
                f"{' '.join(sorted(SUFFIXES))}). Add images or remove the folder."
            )
    if index.unsupported:
        log.warning(
            "%s: %d files are not images by their suffix and are left out, such as %s",
            folder,
            len(index.unsupported),
            ", ".join(index.unsupported[:5]),
        )
    return index


def read_split_file(file: Path, known: Iterable[str]) -> dict[str, Split]:
    """Read a CSV with the columns ``path`` and ``split`` (train, val or test).

    Args:
        file: the CSV; paths are relative to the data root.
        known: paths that exist.

    Returns:
        Split of each path; images that the file does not list are in none.

    Raises:
        ValueError: other columns, another split name, a path twice or one that does not exist.
    """
    with file.open(newline="", encoding="utf-8") as stream:
        reader = csv.DictReader(stream)
        if not {"path", "split"} <= set(reader.fieldnames or []):
            raise ValueError(f"{file} needs the columns path and split, got {reader.fieldnames}")
        rows = [(row["path"], row["split"]) for row in reader]
    existing = set(known)
    splits: dict[str, Split] = {}
    for line, (path, split) in enumerate(rows, start=2):
        if split not in SPLITS:
            raise ValueError(f"{file}, line {line}: split is train, val or test, got {split!r}")
        if path in splits or path not in existing:
            fault = "is listed twice" if path in splits else "is no image below the data root"
            raise ValueError(f"{file}, line {line}: {path!r} {fault}")
        splits[path] = split
    return splits


def find_bad(root: Path, paths: Sequence[str]) -> dict[str, str]:
    """Decode every file once; unreadable ones with the reason, in the order given."""

    def reason(path: str) -> str | None:
        try:
            decode(root / path)
        except DecodeError as error:
            return error.reason
        return None

    # Decoders release Python's lock, so threads are enough.
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        reasons = pool.map(reason, paths)
        return {path: why for path, why in zip(paths, reasons, strict=True) if why is not None}
