"""Image files to 8-bit RGB or grey, one way for every format, depth and orientation.

* Orientation from EXIF is applied.
* Integer pixels of more than 8 bits are scaled by the bit depth, never clipped: in a 16-bit file
  65535 is white. (Converting such an image with ``convert("RGB")`` turns nearly all of it white:
  pytorch/vision#2218.)
* Transparency, in whichever form, is laid on a plain background, white by default.
* Palette, CMYK, one-bit and other modes go through Pillow's conversion. Of an animation or a file
  of many pages the first frame counts.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image, UnidentifiedImageError

Mode = Literal["RGB", "L"]

_EXIF_ORIENTATION = 0x0112
_TIFF_BITS = 258
_TURN = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


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


def decode(source: str | Path | bytes, mode: Mode = "RGB", *, background: int = 255) -> Image.Image:
    """Decode a file, or its bytes, completely.

    Args:
        source: path, or the content of a file.
        mode: ``"RGB"`` or ``"L"``.
        background: grey level 0..255 under transparent pixels.

    Returns:
        An 8-bit image of that mode, upright.

    Raises:
        DecodeError: missing, empty, truncated, not an image, or of a kind whose scale is unknown.
    """
    name = "<bytes>" if isinstance(source, bytes) else str(source)
    if not isinstance(source, bytes):
        path = Path(source)
        if not path.is_file():
            raise DecodeError(name, "is not a file" if path.exists() else "does not exist")
        if path.stat().st_size == 0:
            raise DecodeError(name, "is empty (0 bytes)")
    elif not source:
        raise DecodeError(name, "is empty (0 bytes)")
    try:
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
            image.load()
            turn = _TURN.get(image.getexif().get(_EXIF_ORIENTATION, 1))
            flat = _flatten(image, background).convert(mode)
    except Exception as error:
        # Pillow's readers answer damaged files with almost any type, not only OSError.
        raise DecodeError(name, _reason(error)) from error
    return flat.transpose(turn) if turn is not None else flat


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "is not an image of a known format"
    if isinstance(error, _UnknownScale):
        return str(error)
    return f"is damaged ({type(error).__name__}: {error})"


def _flatten(image: Image.Image, background: int) -> Image.Image:
    """8 bits, no alpha; colours still in any of Pillow's 8-bit modes."""
    if image.mode.startswith("I"):
        return _scale_integers(image, background)
    if image.mode == "F":
        return _scale_floats(image)
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        canvas = Image.new("RGBA", layer.size, (background, background, background, 255))
        return Image.alpha_composite(canvas, layer).convert("RGB")
    # A palette must become colours before it becomes grey, or its numbers would be taken for grey.
    return image.convert("RGB") if image.mode in ("P", "PA") else image


def _scale_integers(image: Image.Image, background: int) -> Image.Image:
    bits = 16
    if image.mode == "I" and image.format == "TIFF":
        bits = int(np.max(image.tag_v2.get(_TIFF_BITS, 32)))  # type: ignore[attr-defined]
    pixels = np.asarray(image).astype(np.int64)
    if pixels.min() < 0:
        raise _UnknownScale("has negative pixels, so its black and white are not known")
    scaled = np.rint(pixels * (255.0 / (2**bits - 1))).clip(0, 255).astype(np.uint8)
    clear = image.info.get("transparency")
    if isinstance(clear, int):
        scaled[pixels == clear] = background
    return Image.fromarray(scaled)


def _scale_floats(image: Image.Image) -> Image.Image:
    pixels = np.asarray(image)
    if not np.isfinite(pixels).all() or pixels.min() < 0 or pixels.max() > 1:
        raise _UnknownScale("has float pixels outside [0, 1], so its white is not known")
    return Image.fromarray(np.rint(pixels * 255).astype(np.uint8))
