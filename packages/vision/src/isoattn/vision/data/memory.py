"""A dataset of small images held in memory as uint8; a whole batch is indexed at once.

Shape suffixes: N images, B batch, C channels, H, W pixels.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset

from isoattn.core.training import item_uniform
from isoattn.vision.data.batch import Batch
from isoattn.vision.data.sources import LabelledImages
from isoattn.vision.data.transforms import Normalise


def shift_images(images_BCHW: Tensor, offsets_B2: Tensor, reach: int) -> Tensor:
    """Move each image by its own (down, right) offset, filling with zeros.

    Args:
        images_BCHW: any dtype.
        offsets_B2: int64, each in [-reach, reach].
        reach: largest offset.

    Returns:
        (B, C, H, W) in the same dtype.
    """
    batch, _, height, width = images_BCHW.shape
    padded = F.pad(images_BCHW, (reach, reach, reach, reach))
    rows_BH = torch.arange(height) + (reach - offsets_B2[:, :1])
    columns_BW = torch.arange(width) + (reach - offsets_B2[:, 1:])
    items_B11 = torch.arange(batch)[:, None, None]
    moved_BHWC = padded.permute(0, 2, 3, 1)[items_B11, rows_BH[:, :, None], columns_BW[:, None, :]]
    return moved_BHWC.permute(0, 3, 1, 2)


class MemoryImages(Dataset[Batch]):
    """Normalised float32 images from a uint8 tensor, optionally shifted and mirrored per epoch.

    Args:
        data: the images.
        mean, std: of pixel values in [0, 1], one a channel.
        seed: data seed; needed where anything is random.
        shift: reach of a random shift in pixels, 0 for none.
        flip: mirror left-right with probability one half.
    """

    def __init__(
        self,
        data: LabelledImages,
        *,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        seed: int = 0,
        shift: int = 0,
        flip: bool = False,
    ) -> None:
        self.data = data
        self.seed = seed
        self.shift = shift
        self.flip = flip
        self.epoch = 0
        self.normalise = Normalise(mean, std)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose shifts are drawn."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Batch:
        batch = self.__getitems__([index])
        return {key: value[0] for key, value in batch.items()}

    def __getitems__(self, indices: list[int]) -> Batch:
        chosen_B = torch.tensor(indices)
        ids_B = self.data.ids_N[chosen_B]
        images_BCHW = self._augment(self.data.images_NCHW[chosen_B], ids_B)
        return {
            "image": self.normalise(images_BCHW),
            "label": self.data.labels_N[chosen_B],
            "index": ids_B,
        }

    def _augment(self, images_BCHW: Tensor, ids_B: Tensor) -> Tensor:
        if not self.shift and not self.flip:
            return images_BCHW
        uniform_B3 = item_uniform(self.seed, self.epoch, ids_B, 3)
        if self.flip:
            mirrored_B111 = uniform_B3[:, 2, None, None, None] < 0.5
            images_BCHW = torch.where(mirrored_B111, images_BCHW.flip(-1), images_BCHW)
        if self.shift:
            offsets_B2 = (uniform_B3[:, :2] * (2 * self.shift + 1)).long() - self.shift
            images_BCHW = shift_images(images_BCHW, offsets_B2, self.shift)
        return images_BCHW
