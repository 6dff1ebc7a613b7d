"""Datasets that decode image files when they are asked for, a batch at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from isoattn.core.training import item_generator
from isoattn.vision.data.batch import Batch
from isoattn.vision.data.decode import Mode, decode
from isoattn.vision.data.folder import find_bad, list_files
from isoattn.vision.data.transforms import Normalise, to_tensor

log = logging.getLogger(__name__)

Transform = Callable[[Image.Image], Image.Image]
RandomTransform = Callable[[Image.Image, torch.Generator], Image.Image]


class FolderImages(Dataset[Batch]):
    """Labelled image files.

    Args:
        root: data root.
        paths: relative to the root.
        labels_N: int64 (N,).
        ids_N: int64 (N,), stable ids.
        mode: ``"RGB"`` or ``"L"``.
        normalise: from uint8 to the model's input.
        transform: used without ``augment``.
        augment: random transforms in order; they see RGB pictures.
        seed: data seed of ``augment``.
    """

    def __init__(
        self,
        root: Path,
        paths: Sequence[str],
        labels_N: Tensor,
        ids_N: Tensor,
        *,
        mode: Mode,
        normalise: Normalise,
        transform: Transform,
        augment: Sequence[RandomTransform] = (),
        seed: int = 0,
    ) -> None:
        self.root = root
        self.paths = list(paths)
        self.labels_N = labels_N
        self.ids_N = ids_N
        self.mode: Mode = mode
        self.normalise = normalise
        self.transform = transform
        self.augment = tuple(augment)
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose augmentation is drawn."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Batch:
        return {key: value[0] for key, value in self.__getitems__([index]).items()}

    def __getitems__(self, indices: list[int]) -> Batch:
        chosen_B = torch.tensor(indices)
        images_BCHW = torch.stack([self._picture(i) for i in indices])
        return {
            "image": self.normalise(images_BCHW),
            "label": self.labels_N[chosen_B],
            "index": self.ids_N[chosen_B],
        }

    def _picture(self, index: int) -> Tensor:
        path = self.root / self.paths[index]
        if not self.augment:
            return to_tensor(self.transform(decode(path, self.mode)))
        generator = item_generator(self.seed, self.epoch, int(self.ids_N[index]))
        # Colour operations need colours, also where the model wants grey.
        image = decode(path)
        for step in self.augment:
            image = step(image, generator)
        return to_tensor(image.convert(self.mode))


class PredictFolder(Dataset[Batch]):
    """Every readable image below a folder, in the order of names; the rest is reported.

    All files are decoded once when the dataset is made, so that ``bad`` is complete before the
    first prediction.

    Args:
        root: folder to search, with all its subfolders; hidden files are no candidates.
        transform: picture -> picture of the model's size.
        normalise: from uint8 to the model's input.
        mode: ``"RGB"`` or ``"L"``.

    Attributes:
        paths: readable images, relative to the root.
        bad: every other file with the reason.

    Raises:
        ValueError: no folder, or no readable image in it.
    """

    def __init__(
        self, root: str | Path, *, transform: Transform, normalise: Normalise, mode: Mode = "RGB"
    ) -> None:
        self.root = Path(root)
        if not self.root.is_dir():
            raise ValueError(f"predict_dir {root} is not a folder")
        files = [path.relative_to(self.root).as_posix() for path in list_files(self.root)]
        self.bad = find_bad(self.root, files)
        for path, reason in self.bad.items():
            log.warning("not predicted: %s %s", path, reason)
        self.paths = [path for path in files if path not in self.bad]
        self.transform = transform
        self.normalise = normalise
        self.mode: Mode = mode
        if not self.paths:
            reasons = "; ".join(f"{path} {reason}" for path, reason in list(self.bad.items())[:5])
            raise ValueError(
                f"predict_dir {root} has no readable image among {len(files)} files. {reasons}"
            )

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Batch:
        return {key: value[0] for key, value in self.__getitems__([index]).items()}

    def __getitems__(self, indices: list[int]) -> Batch:
        paths = [self.paths[i] for i in indices]
        pictures = [self.transform(decode(self.root / path, self.mode)) for path in paths]
        return {
            "image": self.normalise(torch.stack([to_tensor(picture) for picture in pictures])),
            "index": torch.tensor(indices),
            "path": paths,
        }
