"""Two views of a photograph, related by a random homography that is known exactly.

The second view may look beyond the photo, where it is black; the first never does, so what the
homography calls a match is always there to be seen.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch.utils.data import Dataset

from isoattn.core.training import item_generator
from isoattn.matching.data.batch import Pair
from isoattn.matching.data.photos import Photo, PhotoFile
from isoattn.matching.data.sampling import (
    DrawnHomography,
    HomographyOptions,
    PhotometricOptions,
    distort,
    draw_homography,
    draw_window,
    render,
)
from isoattn.matching.geometry import warp_points
from isoattn.matching.models.cells import cell_points, grid_of


class HomographyPairs(Dataset[Pair]):
    """Pairs that depend on (seed, epoch, index) alone, whatever the workers.

    The photos take turns, from epoch to epoch too, so that in time every one is used.

    Args:
        photos: to take views of.
        count: pairs in an epoch.
        size: (H, W) of both views.
        seed: of everything random.
        homography: how far the views are apart.
        photometric: how their grey values differ.
        fixed: draw the same pairs in every epoch, as for evaluation.
        cache: photos that are kept decoded, their longer side at most four times that of a view.
    """

    def __init__(
        self,
        photos: Sequence[PhotoFile],
        count: int,
        size: tuple[int, int],
        *,
        seed: int,
        homography: HomographyOptions = HomographyOptions(),  # noqa: B008 - frozen
        photometric: PhotometricOptions = PhotometricOptions(),  # noqa: B008 - frozen
        fixed: bool = False,
        cache: int = 64,
    ) -> None:
        self.photos = list(photos)
        self.count = count
        self.size = size
        self.seed = seed
        self.homography = homography
        self.photometric = photometric
        self.fixed = fixed
        self.cache = cache
        self.epoch = 0
        self._loaded: OrderedDict[int, Photo] = OrderedDict()

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose pairs are drawn."""
        self.epoch = 0 if self.fixed else epoch

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Pair:
        if not 0 <= index < self.count:
            raise IndexError(f"pair {index} of {self.count}")
        generator = item_generator(self.seed, self.epoch, index, "homography")
        photo = self._photo(self.photo_of(index))
        to_photo0_33 = draw_window(photo, self.size, self.homography, generator)
        drawn = draw_homography(self.size, self.homography, generator)
        to_photo1_33 = to_photo0_33 @ torch.linalg.inv(drawn.matrix_33)
        view0, view1 = (
            distort(render(photo, to_photo_33, self.size), self.photometric, generator)
            for to_photo_33 in (to_photo0_33, to_photo1_33)
        )
        return Pair(
            view0,
            view1,
            index,
            name0=f"{photo.name}/{index}/0",
            name1=f"{photo.name}/{index}/1",
            homography=drawn.matrix_33.float(),
            strata=self._strata(photo, drawn),
        )

    def photo_of(self, index: int) -> int:
        """Number of the photo that an item of this epoch shows."""
        number = len(self.photos)
        if self.fixed and self.count < number:  # a few of many: spread over the list
            return index * number // self.count
        return (self.epoch * self.count + index) % number

    def _photo(self, number: int) -> Photo:
        if number not in self._loaded:
            self._loaded[number] = self.photos[number].load(4 * max(self.size))
            while len(self._loaded) > self.cache:
                self._loaded.popitem(last=False)
        self._loaded.move_to_end(number)
        return self._loaded[number]

    def _strata(self, photo: Photo, drawn: DrawnHomography) -> dict[str, float]:
        return {
            "rotation": drawn.rotation,
            "scale": drawn.scale,
            "overlap": overlap(drawn.matrix_33, self.size),
            "texture": float(photo.texture),
        }


def overlap(homography_33: torch.Tensor, size: tuple[int, int]) -> float:
    """The smaller of the two parts of a view, of the same size, that the other shows."""
    grid = grid_of(*size)
    points_L2 = cell_points(torch.arange(grid[0] * grid[1]), grid, homography_33.dtype)
    shares = []
    for matrix_33 in (homography_33, torch.linalg.inv(homography_33)):
        x_L, y_L = warp_points(points_L2[None], matrix_33[None])[0].unbind(-1)
        inside_L = (x_L >= 0) & (x_L <= size[1] - 1) & (y_L >= 0) & (y_L <= size[0] - 1)
        shares.append(float(inside_L.float().mean()))
    return min(shares)
