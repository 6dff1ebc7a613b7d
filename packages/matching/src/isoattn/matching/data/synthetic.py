"""Sources whose pairs are drawn from photographs: the packaged ones, or any folder."""

from __future__ import annotations

import logging
import os
from abc import abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from isoattn.core.training import derive_seed
from isoattn.matching.data.decode import DecodeError
from isoattn.matching.data.homography_pairs import HomographyPairs
from isoattn.matching.data.photos import (
    SPLITS,
    PhotoFile,
    Split,
    builtin_photos,
    divide,
    folder_photos,
)
from isoattn.matching.data.sampling import HomographyOptions, PhotometricOptions
from isoattn.matching.data.source import PairSource

log = logging.getLogger(__name__)


class DrawnPairs(PairSource):
    """Homography pairs of photographs; validation and test are the same in every epoch and run.

    Args:
        size: (H, W) of the views, or the side of square ones.
        homography, photometric: how far they are apart.
        train_pairs: pairs in an epoch.
        val_pairs, test_pairs: pairs in the fixed sets.
        eval_seed: of the fixed sets.
    """

    splits = SPLITS

    def __init__(
        self,
        size: int | tuple[int, int],
        homography: HomographyOptions,
        photometric: PhotometricOptions,
        train_pairs: int,
        val_pairs: int,
        test_pairs: int,
        eval_seed: int,
    ) -> None:
        size = (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
        counts: dict[Split, int] = {"train": train_pairs, "val": val_pairs, "test": test_pairs}
        if min(counts.values()) < 1 or min(size) < 16:
            raise ValueError(
                f"Drawn pairs need one pair or more in each split and views of 16 pixels or more a "
                f"side; got {counts} and size {size}"
            )
        self.size = size
        self.homography = homography
        self.photometric = photometric
        self.counts = counts
        self.eval_seed = eval_seed

    @abstractmethod
    def photos(self, split: Split) -> Sequence[PhotoFile]:
        """The photographs of a split."""

    def pairs(self, split: Split, seed: int) -> HomographyPairs:
        """Drawn anew each epoch in training; fixed otherwise."""
        train = split == "train"
        return HomographyPairs(
            self.photos(split),
            self.counts[split],
            self.size,
            seed=seed if train else derive_seed(self.eval_seed, split),
            homography=self.homography,
            photometric=self.photometric,
            fixed=not train,
        )

    def describe(self) -> dict[str, Any]:
        """Sizes, counts and options."""
        return {
            "size": self.size,
            "counts": self.counts,
            "homography": asdict(self.homography),
            "photometric": asdict(self.photometric),
            "eval_seed": self.eval_seed,
        }

    def files(self, split: Split) -> Sequence[Path]:
        """The photographs that are files."""
        return [photo.path for photo in self.photos(split) if photo.path is not None]


class BuiltinPairs(DrawnPairs):
    """Pairs from the photographs inside scikit-image and scikit-learn; nothing is downloaded.

    Training sees 14 photographs and parts of four textures; chelsea, coffee, flower and rocket are
    held out: validation takes views of their left halves, test of their right ones. Of each texture
    (brick, grass, gravel, a checkerboard) every split has a part of its own. The stratum
    ``texture`` says which pairs are of them.

    Args:
        size: (H, W) of the views, or the side of square ones.
        homography: jitter, rotation, scale and translation between the views.
        photometric: contrast, brightness, gamma and noise of each view.
        textures: whether the textures take part.
        train_pairs: pairs in an epoch.
        val_pairs, test_pairs: pairs in the fixed sets.
        eval_seed: of the fixed sets.
    """

    def __init__(
        self,
        size: int | tuple[int, int] = (128, 128),
        homography: HomographyOptions = HomographyOptions(),  # noqa: B008 - frozen
        photometric: PhotometricOptions = PhotometricOptions(),  # noqa: B008 - frozen
        textures: bool = True,
        train_pairs: int = 1600,
        val_pairs: int = 96,
        test_pairs: int = 192,
        eval_seed: int = 0,
    ) -> None:
        super().__init__(
            size, homography, photometric, train_pairs, val_pairs, test_pairs, eval_seed
        )
        self.textures = textures

    def photos(self, split: Split) -> list[PhotoFile]:
        """The packaged photographs of a split."""
        return builtin_photos(split, self.textures)

    def describe(self) -> dict[str, Any]:
        """Sizes, counts, options, and which photo has which part."""
        parts = {
            split: [(photo.name, photo.box) for photo in self.photos(split)] for split in SPLITS
        }
        return super().describe() | {"photos": parts}


class FolderPairs(DrawnPairs):
    """Pairs from any folder of photographs.

    ``root/train``, ``root/val`` and ``root/test`` are taken as they are; of what is missing, and of
    a root without ``train``, a part of the photographs is set aside by seed.

    Args:
        root: folder; its subfolders are searched too.
        size: (H, W) of the views, or the side of square ones.
        homography: jitter, rotation, scale and translation between the views.
        photometric: contrast, brightness, gamma and noise of each view.
        train_pairs: pairs in an epoch.
        val_pairs, test_pairs: pairs in the fixed sets.
        val_fraction, test_fraction: of the photographs, where the folder does not say.
        split_seed: of that choice.
        eval_seed: of the fixed sets.
        on_bad_image: ``"raise"`` when one is met, or ``"skip"``: all are decoded beforehand, the
            unreadable ones are left out, logged and counted.
    """

    def __init__(
        self,
        root: str,
        size: int | tuple[int, int] = (128, 128),
        homography: HomographyOptions = HomographyOptions(),  # noqa: B008 - frozen
        photometric: PhotometricOptions = PhotometricOptions(),  # noqa: B008 - frozen
        train_pairs: int = 1600,
        val_pairs: int = 96,
        test_pairs: int = 192,
        val_fraction: float = 0.1,
        test_fraction: float = 0.1,
        split_seed: int = 0,
        eval_seed: int = 0,
        on_bad_image: Literal["raise", "skip"] = "raise",
    ) -> None:
        super().__init__(
            size, homography, photometric, train_pairs, val_pairs, test_pairs, eval_seed
        )
        if on_bad_image not in ("raise", "skip"):
            raise ValueError(f"on_bad_image must be raise or skip, got {on_bad_image!r}")
        self.root = Path(root)
        self.val_fraction = val_fraction
        self.test_fraction = test_fraction
        self.split_seed = split_seed
        self.on_bad_image = on_bad_image
        self._bad = 0

    @cached_property
    def _divided(self) -> dict[Split, list[PhotoFile]]:
        found = folder_photos(self.root)
        if self.on_bad_image == "skip":
            found = {split: self._readable(photos) for split, photos in found.items()}
        fractions: dict[Split, float] = {"test": self.test_fraction, "val": self.val_fraction}
        for split, fraction in fractions.items():
            if split not in found:
                found["train"], found[split] = divide(
                    found["train"], fraction, seed=self.split_seed, stream=split
                )
        return found

    def photos(self, split: Split) -> list[PhotoFile]:
        """The photographs of a split."""
        return self._divided[split]

    def skipped(self) -> dict[str, int]:
        """Unreadable photographs."""
        _ = self._divided
        return {"unreadable": self._bad} if self._bad else {}

    def describe(self) -> dict[str, Any]:
        """Sizes, counts and options, and which photograph is in which split."""
        parts = {split: [photo.name for photo in photos] for split, photos in self._divided.items()}
        return super().describe() | {"photos": parts}

    def _readable(self, photos: list[PhotoFile]) -> list[PhotoFile]:
        # Decoders release Python's lock, so threads are enough.
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            faults = list(pool.map(_fault, photos))
        kept = [photo for photo, fault in zip(photos, faults, strict=True) if fault is None]
        bad = [fault for fault in faults if fault is not None]
        self._bad += len(bad)
        if bad:
            log.warning("%d photographs are left out: %s", len(bad), "; ".join(bad[:10]))
        if not kept:
            raise ValueError(f"No photograph of {self.root} can be read, such as: {bad[0]}")
        return kept


def _fault(photo: PhotoFile) -> str | None:
    try:
        photo.load(max_side=64)
    except DecodeError as error:
        return str(error)
    return None
