"""Random homographies between two views of a photograph, and what cameras do to grey values.

Shape suffixes: 33 a matrix, 42 four corners; (x, y) in pixels, pixel centres at integers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from isoattn.matching.data.photos import Photo, level_for


@dataclass(frozen=True)
class HomographyOptions:
    """How far two views of a plane are apart.

    Args:
        jitter: each corner moves by up to this part of the side, in x and in y; what makes it more
            than a similarity.
        rotation: largest angle in degrees, either way.
        scale: largest factor; as often enlarging as shrinking, uniform in its logarithm.
        translation: largest shift as a part of the side.
        cover: smallest and largest part of the photo's tighter side that the first view shows.

    Raises:
        ValueError: a number out of range; names it.
    """

    jitter: float = 0.12
    rotation: float = 30.0
    scale: float = 1.6
    translation: float = 0.15
    cover: tuple[float, float] = (0.5, 1.0)

    def __post_init__(self) -> None:
        # Corners that move by a quarter of the side may leave no convex picture.
        _within("jitter", self.jitter, 0 <= self.jitter < 0.25, "in [0, 0.25)")
        _within("rotation", self.rotation, 0 <= self.rotation <= 180, "degrees in [0, 180]")
        _within("scale", self.scale, 1 <= self.scale <= 8, "a factor in [1, 8]")
        _within("translation", self.translation, 0 <= self.translation < 1, "in [0, 1)")
        low, high = self.cover
        _within("cover", self.cover, 0 < low <= high <= 1, "0 < smallest <= largest <= 1")


@dataclass(frozen=True)
class PhotometricOptions:
    """What happens to the grey values of each view on its own.

    Args:
        contrast: values move away from or towards the middle by a factor of up to 1 +- this.
        brightness: largest shift.
        gamma: largest exponent; as often its inverse.
        noise: largest standard deviation of Gaussian noise.

    Raises:
        ValueError: a number out of range; names it.
    """

    contrast: float = 0.3
    brightness: float = 0.1
    gamma: float = 1.4
    noise: float = 0.03

    def __post_init__(self) -> None:
        _within("contrast", self.contrast, 0 <= self.contrast < 1, "in [0, 1)")
        _within("brightness", self.brightness, 0 <= self.brightness < 1, "in [0, 1)")
        _within("gamma", self.gamma, self.gamma >= 1, "1 or more")
        _within("noise", self.noise, 0 <= self.noise < 1, "in [0, 1)")


def _within(name: str, value: object, right: bool, wording: str) -> None:
    if not right:
        raise ValueError(f"{name} must be {wording}, got {value}")


@dataclass(frozen=True)
class DrawnHomography:
    """A homography between two views of the same size.

    Args:
        matrix_33: float64, view 0 -> view 1.
        rotation: its angle in degrees, without sign.
        scale: its factor, 1 or more, without direction.
    """

    matrix_33: Tensor
    rotation: float
    scale: float


def draw_homography(
    size: tuple[int, int], options: HomographyOptions, generator: torch.Generator
) -> DrawnHomography:
    """Turn, scale, shift and jitter the corners of a view.

    Args:
        size: (H, W) of both views.
        options: how far.
        generator: of all randomness; twelve numbers are drawn, whatever the options.
    """
    drawn_12 = 2 * torch.rand(12, generator=generator, dtype=torch.float64) - 1
    angle = math.radians(options.rotation) * float(drawn_12[0])
    factor = options.scale ** float(drawn_12[1])
    corners_42 = view_corners(size)
    centre_2 = corners_42.mean(0)
    side_2 = torch.tensor([size[1], size[0]], dtype=torch.float64)
    turn_22 = factor * torch.tensor(
        [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]],
        dtype=torch.float64,
    )
    moved_42 = (corners_42 - centre_2) @ turn_22.T + centre_2
    moved_42 = moved_42 + options.translation * side_2 * drawn_12[2:4]
    moved_42 = moved_42 + options.jitter * side_2 * drawn_12[4:].reshape(4, 2)
    return DrawnHomography(
        homography_of_corners(corners_42, moved_42),
        abs(math.degrees(angle)),
        max(factor, 1 / factor),
    )


def view_corners(size: tuple[int, int]) -> Tensor:
    """Centres of the four corner pixels, clockwise from the top left, float64 (4, 2)."""
    right, bottom = size[1] - 1.0, size[0] - 1.0
    corners = [[0.0, 0.0], [right, 0.0], [right, bottom], [0.0, bottom]]
    return torch.tensor(corners, dtype=torch.float64)


def homography_of_corners(from_42: Tensor, to_42: Tensor) -> Tensor:
    """The homography that moves four points to four points, H[2, 2] = 1, float64 (3, 3)."""
    x, y = from_42.unbind(1)
    u, v = to_42.unbind(1)
    one, zero = torch.ones_like(x), torch.zeros_like(x)
    rows_x = torch.stack([x, y, one, zero, zero, zero, -u * x, -u * y], 1)
    rows_y = torch.stack([zero, zero, zero, x, y, one, -v * x, -v * y], 1)
    solution = torch.linalg.solve(torch.cat([rows_x, rows_y]), torch.cat([u, v]))
    return torch.cat([solution, one[:1]]).reshape(3, 3)


def draw_window(
    photo: Photo, size: tuple[int, int], options: HomographyOptions, generator: torch.Generator
) -> Tensor:
    """Where a view lies in a photo: float64 (3, 3), pixels of the view -> pixels of the photo.

    Args:
        photo: of any size; a view larger than it is enlarged.
        size: (H, W) of the view.
        options: how much of the photo it covers.
        generator: of all randomness; three numbers are drawn.
    """
    cover, x, y = torch.rand(3, generator=generator, dtype=torch.float64).tolist()
    low, high = options.cover
    height, width = photo.size
    factor = min(height / size[0], width / size[1]) * (low + (high - low) * cover)
    left, top = x * (width - factor * size[1]), y * (height - factor * size[0])
    shift = 0.5 * factor - 0.5
    rows = [[factor, 0.0, left + shift], [0.0, factor, top + shift], [0.0, 0.0, 1.0]]
    return torch.tensor(rows, dtype=torch.float64)


def render(photo: Photo, to_photo_33: Tensor, size: tuple[int, int]) -> Tensor:
    """A view of a photo, bilinear, 0 outside: float32 (H, W).

    Args:
        photo: halved as often as the view is smaller, so that little is aliased.
        to_photo_33: float64, pixels of the view -> pixels of the photo.
        size: (H, W) of the view.
    """
    level = level_for(photo, _factor(to_photo_33, size))
    image_HW = photo.levels[level]
    half = 2.0**-level
    to_level_33 = torch.tensor(
        [[half, 0, half / 2 - 0.5], [0, half, half / 2 - 0.5], [0, 0, 1]], dtype=torch.float64
    )
    height, width = image_HW.shape
    # grid_sample's frame, align_corners=False: -1 and 1 are the outer edges of the image.
    to_grid_33 = torch.tensor(
        [[2 / width, 0, 1 / width - 1], [0, 2 / height, 1 / height - 1], [0, 0, 1]],
        dtype=torch.float64,
    )
    matrix_33 = (to_grid_33 @ to_level_33 @ to_photo_33).float()
    x_W = torch.arange(size[1], dtype=torch.float32)
    y_H1 = torch.arange(size[0], dtype=torch.float32)[:, None]
    u_HW, v_HW, w_HW = (row[0] * x_W + (row[1] * y_H1 + row[2]) for row in matrix_33)
    # Behind the horizon there is nothing: any place outside the photo.
    w_HW = torch.where(w_HW > 1e-6, w_HW, 1e-6)
    grid_1HW2 = torch.stack([u_HW / w_HW, v_HW / w_HW], -1)[None]
    return F.grid_sample(image_HW[None, None], grid_1HW2, align_corners=False)[0, 0]


def _factor(to_photo_33: Tensor, size: tuple[int, int]) -> float:
    """Photo pixels along one pixel of the view, at its centre."""
    centre_3 = torch.tensor([(size[1] - 1) / 2, (size[0] - 1) / 2, 1.0], dtype=torch.float64)
    depth = float(to_photo_33[2] @ centre_3)
    return math.sqrt(abs(float(torch.linalg.det(to_photo_33)) / depth**3))


def distort(image_HW: Tensor, options: PhotometricOptions, generator: torch.Generator) -> Tensor:
    """Change gamma, contrast and brightness of a view and add noise; stays in [0, 1].

    Args:
        image_HW: float32 in [0, 1].
        options: how much.
        generator: of all randomness.
    """
    drawn = 2 * torch.rand(3, generator=generator) - 1
    contrast, shift, power = drawn.tolist()
    noise = options.noise * float(torch.rand((), generator=generator))
    out_HW = image_HW.pow(options.gamma**power) if options.gamma > 1 else image_HW
    out_HW = (out_HW - 0.5) * (1 + options.contrast * contrast) + 0.5
    out_HW = out_HW + options.brightness * shift
    out_HW = out_HW + noise * torch.randn(image_HW.shape, generator=generator)
    clamped_HW: Tensor = out_HW.clamp(0.0, 1.0)
    return clamped_HW
