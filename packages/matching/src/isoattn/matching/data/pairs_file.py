"""The user's own pairs: a list of image files, with or without ground truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from isoattn.matching.data.batch import Pair
from isoattn.matching.data.frames import ResizeOptions, load_view, resized_homography
from isoattn.matching.data.photos import Split
from isoattn.matching.data.source import ListedPairs, PairSource, existing_folder
from isoattn.matching.files import ListedPair, read_matches, read_pair_list

LONGER_640 = ResizeOptions(longer=640)


class PairsFile(PairSource):
    """Pairs of a text file; one list, the same whichever split is asked for.

    Ground truth is what a line holds (a homography, or cameras and their pose, which can be scored
    and not trained on), or given matches (see :mod:`isoattn.matching.files`). A pair without any
    can be predicted; in training it contributes nothing.

    Args:
        root: folder that the names are relative to.
        pairs: the list, relative to the root or absolute.
        matches: h5 file in hloc's layout with matches to train on, in pixels of the stored images;
            pairs that it lacks have none.
        resize: of both images.
    """

    def __init__(
        self,
        root: str,
        pairs: str,
        matches: str | None = None,
        resize: ResizeOptions = LONGER_640,
    ) -> None:
        self.root = Path(root)
        self.pairs_path = self.root / pairs
        self.matches_path = self.root / matches if matches is not None else None
        self.resize = resize

    @cached_property
    def items(self) -> list[ListedPair]:
        """The pairs of the list."""
        existing_folder(self.root, "Pairs", "Give the folder of the images")
        items = read_pair_list(self.pairs_path)
        names = sorted({name for item in items for name in (item.name0, item.name1)})
        missing = [name for name in names if not (self.root / name).is_file()]
        if missing:
            raise FileNotFoundError(
                f"{self.pairs_path} names {len(missing)} images that are not below {self.root}, "
                f"such as {', '.join(missing[:3])}"
            )
        return items

    @property
    def labelled(self) -> bool:  # type: ignore[override]
        """Whether any pair has something to train on."""
        return self.matches_path is not None or any(
            item.homography is not None for item in self.items
        )

    def pairs(self, split: Split, seed: int) -> ListedPairs[ListedPair]:
        """All pairs."""
        return ListedPairs(self.items, self._load)

    def describe(self) -> dict[str, Any]:
        """The names and the size."""
        names = [(item.name0, item.name1) for item in self.items]
        return {"resize": asdict(self.resize), "pairs": names}

    def files(self, split: Split) -> Sequence[Path]:
        """The list, the matches and the images."""
        names = {name for item in self.items for name in (item.name0, item.name1)}
        listed = [self.root / name for name in sorted(names)]
        own = [self.pairs_path, *([self.matches_path] if self.matches_path else [])]
        return own + listed

    def _load(self, index: int, item: ListedPair) -> Pair:
        view0 = load_view(self.root / item.name0, self.resize)
        view1 = load_view(self.root / item.name1, self.resize)
        pair = Pair(
            view0.image_HW,
            view1.image_HW,
            index,
            item.name0,
            item.name1,
            view0.scale,
            view1.scale,
        )
        if item.homography is not None:
            pair.homography = resized_homography(item.homography, view0, view1)
        if item.intrinsics0 is not None and item.intrinsics1 is not None and item.pose is not None:
            pair.intrinsics0 = view0.intrinsics(item.intrinsics0)
            pair.intrinsics1 = view1.intrinsics(item.intrinsics1)
            pair.pose = item.pose.float()
        if self.matches_path is not None:
            try:
                stored = read_matches(self.matches_path, item.name0, item.name1)
            except KeyError:
                return pair
            pair.points0 = view0.points(stored.keypoints0)
            pair.points1 = view1.points(stored.keypoints1)
        return pair
