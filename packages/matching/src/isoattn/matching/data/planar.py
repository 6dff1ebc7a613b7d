"""Benchmarks of real photographs related by homographies: HPatches and the Oxford sequences."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

import numpy as np
import torch
from torch import Tensor

from isoattn.matching.data.batch import Pair
from isoattn.matching.data.frames import ResizeOptions, load_view, resized_homography
from isoattn.matching.data.photos import Split
from isoattn.matching.data.source import ListedPairs, PairSource, existing_folder

# The usual 108 of the 116 sequences: these eight have images too large for many a method.
LARGE_SEQUENCES = frozenset(
    ["i_contruction", "i_crownnight", "i_dc", "i_pencils", "i_whitebuilding"]
    + ["v_artisans", "v_astronautis", "v_talent"]
)
SHORTER_480 = ResizeOptions(shorter=480)


@dataclass(frozen=True)
class PlanarPair:
    """Two image files and the file of the homography between them.

    Args:
        path0, path1: the images.
        homography: the file.
        strata: of the pair.
    """

    path0: Path
    path1: Path
    homography: Path
    strata: dict[str, float] = field(default_factory=dict)


def read_homography(path: Path) -> Tensor:
    """A 3 x 3 matrix, float64: plain text with any spaces, or OpenCV's XML storage.

    Raises:
        FileNotFoundError: no such file.
        ValueError: other than nine numbers; names the file.
    """
    text = path.read_text(encoding="utf-8")
    if text.lstrip().startswith("<?xml"):
        text = "".join(data.text or "" for data in ElementTree.fromstring(text).iter("data"))
    words = text.split()
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        numbers = []
    if len(numbers) != 9 or not np.isfinite(numbers).all():
        raise ValueError(
            f"{path} holds {len(words)} words, a homography is nine finite numbers in three rows"
        )
    return torch.tensor(numbers, dtype=torch.float64).reshape(3, 3)


class PlanarPairs(PairSource):
    """Listed pairs of photographs, each with a homography file; one list without splits."""

    resize: ResizeOptions
    root: Path

    @abstractmethod
    def _list(self) -> list[PlanarPair]:
        """All pairs, in order."""

    @cached_property
    def items(self) -> list[PlanarPair]:
        """All pairs, in order."""
        return self._list()

    def pairs(self, split: Split, seed: int) -> ListedPairs[PlanarPair]:
        """All pairs, whichever split is asked for."""
        return ListedPairs(self.items, self._load)

    def describe(self) -> dict[str, Any]:
        """The pairs and the size."""
        listed = [(self._name(item.path0), self._name(item.path1)) for item in self.items]
        return {"resize": asdict(self.resize), "pairs": listed}

    def files(self, split: Split) -> Sequence[Path]:
        """Images and homographies."""
        items = self.items
        return sorted({path for i in items for path in (i.path0, i.path1, i.homography)})

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def _load(self, index: int, item: PlanarPair) -> Pair:
        view0, view1 = load_view(item.path0, self.resize), load_view(item.path1, self.resize)
        return Pair(
            view0.image_HW,
            view1.image_HW,
            index,
            self._name(item.path0),
            self._name(item.path1),
            view0.scale,
            view1.scale,
            homography=resized_homography(read_homography(item.homography), view0, view1),
            strata=dict(item.strata),
        )


class HPatches(PlanarPairs):
    """HPatches sequences (Balntas et al., CVPR 2017): image 1 against images 2 to 6 of each.

    ``root/<i_*|v_*>/1.ppm .. 6.ppm`` and ``H_1_2 .. H_1_6``. Errors are measured in the resized
    images, as LoFTR and its successors do. The stratum ``illumination`` is 1 in ``i_*``.

    Args:
        root: folder with the sequences.
        subset: ``all``, ``i`` (illumination) or ``v`` (viewpoint).
        large: include the eight sequences that the usual 108 leave out.
        resize: of both images; the shorter side 480 by default.
    """

    def __init__(
        self,
        root: str,
        subset: Literal["all", "i", "v"] = "all",
        large: bool = False,
        resize: ResizeOptions = SHORTER_480,
    ) -> None:
        if subset not in ("all", "i", "v"):
            raise ValueError(f"subset must be all, i or v, got {subset!r}")
        self.root = Path(root)
        self.subset = subset
        self.large = large
        self.resize = resize

    def _list(self) -> list[PlanarPair]:
        hint = "Unpack hpatches-sequences-release and point root to it"
        existing_folder(self.root, "HPatches", hint)
        prefixes = ("i_", "v_") if self.subset == "all" else (f"{self.subset}_",)
        names = sorted(path.name for path in self.root.iterdir() if path.is_dir())
        wanted = [name for name in names if name.startswith(prefixes)]
        chosen = [name for name in wanted if self.large or name not in LARGE_SEQUENCES]
        if not chosen:
            raise FileNotFoundError(
                f"HPatches: {self.root} has no folder {' or '.join(p + '*' for p in prefixes)}. "
                f"{hint}; nothing is downloaded."
            )
        found = [
            PlanarPair(
                self.root / name / "1.ppm",
                self.root / name / f"{k}.ppm",
                self.root / name / f"H_1_{k}",
                {"illumination": float(name.startswith("i_")), "target": float(k)},
            )
            for name in chosen
            for k in range(2, 7)
        ]
        _check_files(found)
        return found


class OxfordSequence(PlanarPairs):
    """One sequence of Mikolajczyk et al. (IJCV 2005), such as graf: image 1 against the others.

    ``root/img1.png`` (or ppm, jpg) and ``root/H1to2p`` and so on.

    Args:
        root: folder of the sequence.
        resize: of both images.
    """

    def __init__(self, root: str, resize: ResizeOptions = SHORTER_480) -> None:
        self.root = Path(root)
        self.resize = resize

    def _list(self) -> list[PlanarPair]:
        existing_folder(self.root, "Oxford sequence", "Give the folder with img1 and H1to2p")
        images = {
            int(match[1]): path
            for path in sorted(self.root.iterdir())
            if (match := re.fullmatch(r"img(\d)\.(?:png|ppm|jpg)", path.name))
        }
        homographies = {k: self.root / f"H1to{k}p" for k in images if k > 1}
        if 1 not in images or not homographies:
            raise FileNotFoundError(
                f"Oxford sequence: {self.root} has no img1 and img2 (png, ppm or jpg): give the "
                "folder of one sequence"
            )
        found = [
            PlanarPair(images[1], images[k], homographies[k], {"target": float(k)})
            for k in sorted(homographies)
        ]
        _check_files(found)
        return found


def _check_files(items: Sequence[PlanarPair]) -> None:
    paths = [path for item in items for path in (item.path0, item.path1, item.homography)]
    missing = sorted({str(path) for path in paths if not path.is_file()})
    if missing:
        raise FileNotFoundError(
            f"{len(missing)} files are missing, such as {', '.join(missing[:3])}: the download is "
            "incomplete"
        )
