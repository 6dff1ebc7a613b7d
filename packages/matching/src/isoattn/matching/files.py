"""Files of pairs and matches: lists of pairs as text, matches as h5 in the layout of hloc.

hloc (cvg/Hierarchical-Localization) keeps the matches of a pair in the group ``name0/name1``, where
each "/" inside a name becomes "-", as ``keypoints0`` (N, 2), ``keypoints1`` (N, 2) and ``scores``
(N,). Keypoints are pixels of the original images.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import h5py
import numpy as np
import torch
from torch import Tensor

KEYS = ("keypoints0", "keypoints1", "scores")


@dataclass(frozen=True)
class ListedPair:
    """One line of a pair list.

    Args:
        name0, name1: image files.
        homography: float64 (3, 3), image 0 -> image 1.
        intrinsics0, intrinsics1: float64 (3, 3) K.
        pose: float64 (4, 4), camera 0 -> camera 1.
    """

    name0: str
    name1: str
    homography: Tensor | None = None
    intrinsics0: Tensor | None = None
    intrinsics1: Tensor | None = None
    pose: Tensor | None = None


@dataclass(frozen=True)
class StoredMatches:
    """The matches of one pair, as read from a file.

    Args:
        keypoints0, keypoints1: float32 (N, 2), (x, y).
        scores: float32 (N,).
    """

    keypoints0: Tensor
    keypoints1: Tensor
    scores: Tensor


def read_pair_list(path: str | Path) -> list[ListedPair]:
    """A text file with one pair a line; empty lines and those that begin with # are left out.

    A line is ``name0 name1``; or these and the nine numbers of a homography; or, as SuperGlue's
    lists have it, ``name0 name1 turn0 turn1`` (0: not turned), K0, K1 (nine numbers each) and
    T_0to1 (sixteen).

    Raises:
        FileNotFoundError: no such file.
        ValueError: no pair, or a line of another form; names the line.
    """
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    rows = [(n, line.split()) for n, line in enumerate(lines, 1) if not line.startswith("#")]
    pairs = [_parse(path, number, words) for number, words in rows if words]
    if not pairs:
        raise ValueError(f"{path} lists no pair: each line is two image names")
    return pairs


def _parse(path: str | Path, line: int, words: list[str]) -> ListedPair:
    counts = {2: "names", 11: "homography", 38: "cameras"}
    try:
        numbers = torch.tensor([float(word) for word in words[2:]], dtype=torch.float64)
    except ValueError as error:
        raise ValueError(
            f"{path}, line {line}: {error}; names with spaces cannot be read"
        ) from None
    if len(words) not in counts or not bool(numbers.isfinite().all()):
        raise ValueError(
            f"{path}, line {line}: {len(words)} words; a line is two names, or two names and nine "
            "numbers (homography), or SuperGlue's 38 words (turns, K0, K1, pose), all finite"
        )
    if len(words) == 2:
        return ListedPair(words[0], words[1])
    if len(words) == 11:
        return ListedPair(words[0], words[1], homography=numbers.reshape(3, 3))
    if bool(numbers[:2].any()):
        raise ValueError(
            f"{path}, line {line}: images turned by {words[2]} and {words[3]} quarters are not "
            "supported: store them upright, with the K of the upright image, and write 0 0"
        )
    intrinsics = numbers[2:20].reshape(2, 3, 3)
    pose = numbers[20:].reshape(4, 4)
    return ListedPair(words[0], words[1], None, intrinsics[0], intrinsics[1], pose)


def write_pair_list(path: str | Path, pairs: Iterable[ListedPair]) -> None:
    """Write names, and homographies where there are any, one pair a line.

    Raises:
        ValueError: a name with a space in it, which could not be read back.
    """
    lines = []
    for pair in pairs:
        if len(f"{pair.name0} {pair.name1}".split()) != 2:
            raise ValueError(f"Names with spaces cannot be listed: {pair.name0!r}, {pair.name1!r}")
        numbers = [] if pair.homography is None else pair.homography.flatten().tolist()
        lines.append(" ".join([pair.name0, pair.name1, *(repr(number) for number in numbers)]))
    Path(path).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def pair_group(name0: str, name1: str) -> str:
    """The group of a pair in hloc's files: "a/b.jpg", "c.jpg" -> "a-b.jpg/c.jpg"."""
    return "/".join(name.replace("/", "-") for name in (name0, name1))


class MatchWriter:
    """Writes matches in hloc's layout; the file is there, complete, when the block ends.

    Args:
        path: of the h5 file; one that exists is replaced.

    Example:
        >>> with MatchWriter("matches.h5") as writer:  # doctest: +SKIP
        ...     writer.add("query/1.jpg", "map/2.jpg", keypoints0, keypoints1, scores)
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._partial = self.path.with_name(f"{self.path.name}.partial-{os.getpid()}")

    def __enter__(self) -> MatchWriter:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = h5py.File(self._partial, "w")
        return self

    def add(
        self, name0: str, name1: str, keypoints0: Tensor, keypoints1: Tensor, scores: Tensor
    ) -> None:
        """Write a pair; it may have no match.

        Args:
            name0, name1: of the images.
            keypoints0, keypoints1: (N, 2), pixels (x, y) of the original images.
            scores: (N,).

        Raises:
            ValueError: shapes that do not fit, or a pair whose group is there already.
        """
        count = len(scores)
        if keypoints0.shape != (count, 2) or keypoints1.shape != (count, 2) or scores.ndim != 1:
            raise ValueError(
                f"{name0}, {name1}: keypoints (N, 2), keypoints (N, 2) and scores (N,) are needed, "
                f"got {tuple(keypoints0.shape)}, {tuple(keypoints1.shape)}, {tuple(scores.shape)}"
            )
        group = pair_group(name0, name1)
        if group in self._file:
            raise ValueError(
                f"{self.path} has the pair {group} already: it was added twice, or two names "
                'differ in "/" and "-" only'
            )
        made = self._file.create_group(group)
        for key, values in zip(KEYS, (keypoints0, keypoints1, scores), strict=True):
            made.create_dataset(key, data=values.detach().cpu().float().numpy())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()
        if kind is None:
            self._partial.replace(self.path)
        else:
            self._partial.unlink(missing_ok=True)


def stored_pairs(path: str | Path) -> list[tuple[str, str]]:
    """The pairs of an h5 file, by the names of its groups, in which "/" has become "-"."""
    with _open(Path(path)) as file:
        return [(first, second) for first in file for second in file[first]]


def read_matches(path: str | Path, name0: str, name1: str) -> StoredMatches:
    """The matches of a pair; where the file has it the other way round, turned.

    Raises:
        FileNotFoundError: no such file.
        KeyError: the file has no such pair.
        ValueError: damaged, or not in hloc's layout.
    """
    with _open(Path(path)) as file:
        keys = KEYS
        group = pair_group(name0, name1)
        if group not in file:
            group, keys = pair_group(name1, name0), ("keypoints1", "keypoints0", "scores")
        if group not in file:
            raise KeyError(
                f"{path} has no matches of {name0} and {name1}, in neither order; it has "
                f"{sum(len(file[first]) for first in file)} pairs"
            )
        lacking = [key for key in KEYS if key not in file[group]]
        if lacking:
            raise ValueError(
                f"{path}: the pair {group} lacks {', '.join(lacking)}; matches by keypoints are "
                "needed, not by indices"
            )
        arrays = [np.asarray(file[group][key], dtype=np.float32) for key in keys]
    return StoredMatches(*(torch.from_numpy(array) for array in arrays))


def _open(path: Path) -> h5py.File:
    if not path.is_file():
        raise FileNotFoundError(f"There is no file of matches {path}")
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise ValueError(f"{path} is no h5 file, or damaged: {error}") from error
