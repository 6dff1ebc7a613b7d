"""The data module on the user's own folders of images."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch

from isoattn.vision.data.decode import Mode
from isoattn.vision.data.folder import FolderIndex, class_folders, read_split_file, scan
from isoattn.vision.data.module import ImageDataModule
from isoattn.vision.data.pictures import FolderImages, RandomTransform
from isoattn.vision.data.sources import SPLITS, Split, stratified_split
from isoattn.vision.data.transforms import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Normalise,
    RandAugment,
    RandomCropFlip,
    ResizeCentreCrop,
)

log = logging.getLogger(__name__)

FolderAugment = Literal["none", "crop_flip", "rand_augment"]
# Beyond this many files a fingerprint covers names and sizes, not contents.
CONTENT_LIMIT = 20_000


class ImageFolderData(ImageDataModule):
    """Images in one folder a class.

    Two layouts: ``root/train``, ``root/val`` and ``root/test`` with the same class folders in each
    (without ``val`` a part of ``train`` is taken; without ``test`` there is no test score), or a
    single root of class folders, divided by a file or by a seeded stratified split. A random split
    does not know which images belong together (one patient, one scene): use a split file then.

    Labels follow the plain string order of the folder names; see :meth:`check_classes` for scoring
    with a model that has another list.

    Args:
        root: data root.
        image_size: side, or (H, W).
        in_chans: 3 for colour, 1 for grey.
        batch_size: training batch.
        eval_batch_size: batch of the other loaders; ``None``: four times ``batch_size``.
        seed: seed of order and augmentation; ``None``: set ``data_seed`` later.
        split_file: CSV with the columns ``path`` (relative to the root) and ``split``.
        split_seed: seed of a random split.
        val_fraction: validation part of what is not test.
        test_fraction: test part of a single root without a split file.
        augment: ``"crop_flip"``: random resized crop and mirroring; ``"rand_augment"``: timm's
            RandAugment after them; ``"none"``: as in evaluation.
        crop_scale: smallest and largest area of the random crop.
        rand_augment: timm's policy string.
        crop_pct: evaluation keeps this part of the resized picture.
        mean, std: of pixel values in [0, 1]; ``None``: ImageNet's, or their average for grey.
        on_bad_image: ``"raise"`` stops at the first unreadable image that is met; ``"skip"``
            decodes all images once beforehand, leaves out the unreadable ones and counts them in
            :meth:`skipped`.
        num_workers: loader processes.
        drop_last: leave out a training batch that is not full.
        predict_dir: folder of images to predict. With it the root need not exist: the classes then
            are the model's (:meth:`check_classes`).

    Raises:
        ValueError: no class folders, hidden or empty ones, or options that do not fit.
    """

    def __init__(
        self,
        root: str,
        *,
        image_size: int | tuple[int, int] = 224,
        in_chans: Literal[1, 3] = 3,
        batch_size: int = 64,
        eval_batch_size: int | None = None,
        seed: int | None = None,
        split_file: str | None = None,
        split_seed: int = 0,
        val_fraction: float = 0.1,
        test_fraction: float = 0.2,
        augment: FolderAugment = "crop_flip",
        crop_scale: tuple[float, float] = (0.08, 1.0),
        rand_augment: str = "rand-m9-mstd0.5-inc1",
        crop_pct: float = 1.0,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
        on_bad_image: Literal["raise", "skip"] = "raise",
        num_workers: int = 0,
        drop_last: bool = False,
        predict_dir: str | None = None,
    ) -> None:
        self.root = Path(root)
        self._separate = (self.root / "train").is_dir()
        absent = predict_dir is not None and not self.root.is_dir()
        below = self.root / "train" if self._separate else self.root
        super().__init__(
            class_names=[] if absent else class_folders(below),
            in_chans=in_chans,
            image_size=(image_size, image_size) if isinstance(image_size, int) else image_size,
            mean=mean or _for_channels(IMAGENET_MEAN, in_chans),
            std=std or _for_channels(IMAGENET_STD, in_chans),
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            seed=seed,
            num_workers=num_workers,
            drop_last=drop_last,
            predict_dir=predict_dir,
            crop_pct=crop_pct,
        )
        if split_file is not None and self._separate:
            raise ValueError(
                f"{root} has a folder train, which already says what is trained on; "
                "split_file is for a single root of class folders"
            )
        self.split_file = split_file
        self.split_seed = split_seed
        self.val_fraction = val_fraction
        self.test_fraction = test_fraction
        self.augment = augment
        self.crop_scale = crop_scale
        self.rand_augment = rand_augment
        self.on_bad_image = on_bad_image
        self._unlisted = 0

    @cached_property
    def indices(self) -> dict[Split, FolderIndex]:
        """Every split's images; scanned, and with ``on_bad_image="skip"`` decoded, once."""
        if not self.root.is_dir():
            return {}
        found = self._scan_folders() if self._separate else self._divide_root()
        if self.on_bad_image == "skip":
            found = {split: index.without_bad(self.root, split) for split, index in found.items()}
        return found

    @cached_property
    def paths(self) -> list[str]:
        """Paths by item id: ``paths[batch["index"][i]]``; left-out images keep their ids."""
        return sorted(
            path for index in self.indices.values() for path in (*index.paths, *index.bad)
        )

    def skipped(self) -> dict[str, int]:
        """Files left out, by reason; scans the folders where that has not happened."""
        indices = self.indices.items()
        return {
            **super().skipped(),
            **{f"unreadable in {split}": len(index.bad) for split, index in indices},
            "no image by suffix": sum(len(index.unsupported) for _, index in indices),
            "not in split file": self._unlisted,
        }

    def _scan_folders(self) -> dict[Split, FolderIndex]:
        found: dict[Split, FolderIndex] = {
            split: scan(self.root, split, self._own_classes)
            for split in SPLITS
            if (self.root / split).is_dir()
        }
        if "val" not in found:
            log.warning(
                "%s has no folder val: %.0f %% of train, stratified with split_seed %d, is used",
                self.root,
                100 * self.val_fraction,
                self.split_seed,
            )
            train = found["train"]
            kept, val = self._split_off(train, self.val_fraction, "val")
            kept.unsupported = train.unsupported
            found |= {"train": kept, "val": val}
        return found

    def _divide_root(self) -> dict[Split, FolderIndex]:
        whole = scan(self.root, "", self._own_classes)
        if self.split_file is not None:
            found = self._by_file(whole, Path(self.split_file))
        else:
            rest, test = self._split_off(whole, self.test_fraction, "test")
            train, val = self._split_off(rest, self.val_fraction, "val")
            found = {"train": train, "val": val, "test": test}
        found["train"].unsupported = whole.unsupported
        return found

    def _by_file(self, whole: FolderIndex, file: Path) -> dict[Split, FolderIndex]:
        splits = read_split_file(file, whole.paths)
        self._unlisted = len(whole) - len(splits)
        if self._unlisted:
            log.warning("%s does not list %d images: they are not used", file, self._unlisted)
        found: dict[Split, FolderIndex] = {
            split: whole.take(i for i, path in enumerate(whole.paths) if splits.get(path) == split)
            for split in SPLITS
        }
        for split in ("train", "val"):
            if not found[split]:
                raise ValueError(f"{file} puts no image into {split}")
        return found

    def _split_off(
        self, index: FolderIndex, fraction: float, stream: str
    ) -> tuple[FolderIndex, FolderIndex]:
        kept, aside = stratified_split(
            torch.tensor(index.labels),
            fraction,
            seed=self.split_seed,
            stream=stream,
            names=self._own_classes,
        )
        return index.take(kept.tolist()), index.take(aside.tolist())

    def _build(self, split: Split, augment_seed: int | None) -> FolderImages:
        index = self.indices.get(split)
        if not index:
            raise ValueError(
                f"{self.root} has no {split} images: add a folder {split} with the class folders"
            )
        numbers = {path: number for number, path in enumerate(self.paths)}
        mode: Mode = "L" if self.in_chans == 1 else "RGB"
        return FolderImages(
            self.root,
            index.paths,
            self._relabel(torch.tensor(index.labels)),
            torch.tensor([numbers[path] for path in index.paths]),
            mode=mode,
            normalise=Normalise(self.mean, self.std),
            transform=ResizeCentreCrop(self.image_size, crop_pct=self.crop_pct),
            augment=() if augment_seed is None else self._random_transforms(),
            seed=augment_seed or 0,
        )

    def _random_transforms(self) -> tuple[RandomTransform, ...]:
        if self.augment == "none":
            return ()
        crop = RandomCropFlip(self.image_size, scale=self.crop_scale)
        if self.augment == "crop_flip":
            return (crop,)
        return (crop, RandAugment(self.rand_augment, self.image_size, self.mean))

    def _describe(self) -> dict[str, Any]:
        return {
            "augment": self.augment,
            "crop_scale": tuple(self.crop_scale),
            "rand_augment": self.rand_augment,
            "crop_pct": self.crop_pct,
        }

    def _digest(self, split: Split, update: Callable[[bytes], object]) -> None:
        index = self.indices.get(split)
        if index is None:
            return
        contents = len(self.paths) <= CONTENT_LIMIT
        for path, label in zip(index.paths, index.labels, strict=True):
            file = self.root / path
            update(f"{path}\0{self._own_classes[label]}\0{file.stat().st_size}\0".encode())
            if contents:
                update(file.read_bytes())


def _for_channels(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    return values if channels == 3 else (round(sum(values) / len(values), 4),)
