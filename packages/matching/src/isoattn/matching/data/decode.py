"""Image files to 8-bit grey, one way for every format, depth and orientation.

* Orientation from EXIF is applied.
* Integer pixels of more than 8 bits are scaled by the bit depth, never clipped: in a 16-bit file
  65535 is white (Pillow's own conversion makes nearly all of such a file white). Cameras and
  microscopes put 12 bits into files of 16: where no pixel exceeds 4095, that is white.
* Transparency is laid on white; palettes become colours before they become grey. Of a file of many
  pages the first counts.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

SUFFIXES = frozenset(
    [".bmp", ".gif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".pnm", ".ppm"]
    + [".tif", ".tiff", ".webp"]
)
_ORIENTATION = 0x0112
_TIFF_BITS = 258


class DecodeError(ValueError):
    """A file that is not a readable image.

    Args:
        path: the file.
        reason: what is wrong with it. Left out by loader workers, which rebuild an exception from
            its finished message.
    """

    def __init__(self, path: str, reason: str | None = None) -> None:
        super().__init__(path if reason is None else f"Cannot read image {path}: {reason}")
        self.path = path
        self.reason = reason or path


class _UnknownScale(ValueError):
    """Pixels whose black and white the file does not define."""


def decode_grey(path: str | Path) -> Image.Image:
    """Decode a file completely: an upright 8-bit grey image.

    Raises:
        DecodeError: missing, empty, truncated, not an image, or of a kind whose scale is unknown.
    """
    file = Path(path)
    if not file.is_file():
        raise DecodeError(str(path), "is not a file" if file.exists() else "does not exist")
    if file.stat().st_size == 0:
        raise DecodeError(str(path), "is empty (0 bytes)")
    try:
        with Image.open(file) as image:
            image.load()
            return _upright(_flatten(image), image.getexif().get(_ORIENTATION, 1))
    except UnidentifiedImageError as error:
        raise DecodeError(str(path), "is not an image of a known format") from error
    except _UnknownScale as error:
        raise DecodeError(str(path), str(error)) from error
    except Exception as error:  # Pillow's readers answer damage with almost any type
        reason = f"is damaged ({type(error).__name__}: {error})"
        raise DecodeError(str(path), reason) from error


def to_unit(image: Image.Image) -> Tensor:
    """An 8-bit grey image as float32 (H, W) in [0, 1]."""
    return torch.from_numpy(np.array(image)).float() / 255


def _flatten(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        return _scale_integers(image)
    if image.mode == "F":
        return _scale_floats(image)
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        white = Image.new("RGBA", layer.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, layer).convert("L")
    return (image.convert("RGB") if image.mode in ("P", "PA") else image).convert("L")


def _upright(flat: Image.Image, orientation: int) -> Image.Image:
    exif = Image.Exif()
    exif[_ORIENTATION] = orientation
    flat.info["exif"] = exif.tobytes()
    return ImageOps.exif_transpose(flat)


def _scale_integers(image: Image.Image) -> Image.Image:
    bits = 16
    if image.mode == "I" and image.format == "TIFF":
        bits = int(np.max(image.tag_v2.get(_TIFF_BITS, 32)))  # type: ignore[attr-defined]
    pixels = np.asarray(image).astype(np.int64)
    if pixels.min() < 0:
        raise _UnknownScale("has negative pixels, so its black and white are not known")
    if bits == 16 and pixels.max() < 2**12:
        bits = 12
    scaled = np.rint(pixels * (255.0 / (2**bits - 1))).clip(0, 255).astype(np.uint8)
    clear = image.info.get("transparency")
    if isinstance(clear, int):
        scaled[pixels == clear] = 255
    return Image.fromarray(scaled)


def _scale_floats(image: Image.Image) -> Image.Image:
    pixels = np.asarray(image)
    if not np.isfinite(pixels).all() or pixels.min() < 0 or pixels.max() > 1:
        raise _UnknownScale("has float pixels outside [0, 1], so its white is not known")
    return Image.fromarray(np.rint(pixels * 255).astype(np.uint8))
