"""Every depth, mode and orientation decodes to the picture it means; damage has one error."""

import io
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from isoattn.vision.data import DecodeError, decode

RAMP = np.linspace(0, 65535, 64 * 64).round().astype(np.uint16).reshape(64, 64)


def pixels(source: str | Path | bytes, mode: str = "RGB", **options: int) -> np.ndarray:
    return np.asarray(decode(source, mode, **options)).astype(int)  # type: ignore[arg-type]


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("kind", ["png", "tiff", "pgm", "tiff-big-endian"])
def test_16_bits_are_scaled_not_clipped(kind: str, mode: str, tmp_path: Path) -> None:
    # pytorch/vision 2218: 99.6 % of these pixels came out as 255.
    path = tmp_path / "ramp.bin"
    if kind == "png":
        path.write_bytes(saved(Image.fromarray(RAMP), "PNG"))
    elif kind == "tiff":
        path.write_bytes(saved(Image.fromarray(RAMP), "TIFF"))
    elif kind == "pgm":
        path.write_bytes(b"P5 64 64 65535\n" + RAMP.astype(">u2").tobytes())
    else:
        big = Image.frombytes("I;16B", (64, 64), RAMP.astype(">u2").tobytes())
        path.write_bytes(saved(big, "TIFF"))
    got = pixels(path, mode)
    grey = got if mode == "L" else got[..., 0]
    assert got.shape == ((64, 64) if mode == "L" else (64, 64, 3))
    assert grey.reshape(-1)[0] == 0 and grey.reshape(-1)[-1] == 255
    assert (np.diff(grey.reshape(-1)) >= 0).all()
    assert abs(grey.mean() / 255 - 0.5) < 0.01
    assert np.array_equal(grey, np.rint(RAMP / 257))
    assert (grey == 255).mean() < 0.005


def test_32_bit_integers_by_their_depth_and_floats_by_their_range(tmp_path: Path) -> None:
    values = np.array([[0, 2**31 - 1]], dtype=np.int32)
    got = pixels(saved(Image.fromarray(values), "TIFF"), "L")
    assert got.tolist() == [[0, 127]]  # half of an unsigned 32-bit range
    unit = np.array([[0.0, 0.5, 1.0]], dtype=np.float32)
    assert pixels(saved(Image.fromarray(unit), "TIFF"), "L").tolist() == [[0, 128, 255]]
    for bad in ([[0.0, 3.0]], [[0.0, np.nan]]):
        with pytest.raises(DecodeError, match=r"float pixels outside \[0, 1\]"):
            decode(saved(Image.fromarray(np.array(bad, dtype=np.float32)), "TIFF"))
    with pytest.raises(DecodeError, match="negative pixels"):
        decode(saved(Image.fromarray(np.array([[-1, 5]], dtype=np.int32)), "TIFF"))


def png16(colour_type: int, samples: np.ndarray) -> bytes:
    """A 16-bit PNG written by hand, for the kinds that Pillow reads and does not write."""
    import zlib

    height, width = samples.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in samples)

    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 16, colour_type, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def test_16_bit_colour_and_grey_with_alpha() -> None:
    colour = np.stack([RAMP, RAMP[::-1], np.zeros_like(RAMP)], axis=-1)
    got = pixels(png16(2, colour))
    assert (np.abs(got[..., 0] - RAMP / 257) <= 1).all()
    assert (np.abs(got[..., 1] - RAMP[::-1] / 257) <= 1).all()
    opaque = np.stack([RAMP, np.full_like(RAMP, 65535)], axis=-1)
    assert (np.abs(pixels(png16(4, opaque), "L") - RAMP / 257) <= 1).all()
    clear = np.stack([RAMP, np.zeros_like(RAMP)], axis=-1)
    assert (pixels(png16(4, clear), "L") == 255).all()


def test_16_bit_grey_with_a_transparent_level() -> None:
    image = Image.fromarray(RAMP)
    level = int(RAMP[10, 10])
    got = pixels(saved(image, "PNG", transparency=level), "L", background=7)
    assert got[10, 10] == 7
    assert got[-1, -1] == 255 and got[0, 0] == 0


ORIENTATIONS = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.T,
    6: lambda a: np.rot90(a, 1),
    7: lambda a: a[::-1, ::-1].T,
    8: lambda a: np.rot90(a, -1),
}


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_exif_orientation_is_applied(orientation: int, kind: str, tmp_path: Path) -> None:
    upright = np.zeros((24, 40), dtype=np.uint8)
    upright[:8, :20] = 255  # a mark at the top left: no symmetry
    stored = Image.fromarray(np.ascontiguousarray(ORIENTATIONS[orientation](upright)))
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"quality": 95} if kind == "JPEG" else {"lossless": True} if kind == "WEBP" else {}
    path = tmp_path / "turned"
    stored.convert("RGB").save(path, kind, exif=exif, **options)
    got = pixels(path, "L")
    assert got.shape == (24, 40)
    assert np.abs(got - upright.astype(int)).max() < 30


def test_cmyk_jpeg_keeps_its_colours() -> None:
    for colour in ((255, 0, 0), (0, 255, 0), (255, 255, 255), (0, 0, 0)):
        cmyk = Image.new("RGB", (16, 16), colour).convert("CMYK")
        got = pixels(saved(cmyk, "JPEG", quality=95))
        assert np.abs(got - colour).max() < 8, colour


def test_palette_with_transparency_is_laid_on_the_background() -> None:
    image = Image.new("P", (3, 1))
    image.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    image.putdata([0, 1, 2])
    for transparency in (1, bytes([255, 0, 255])):
        data = saved(image, "PNG", transparency=transparency)
        assert pixels(data).tolist() == [[[255, 0, 0], [255, 255, 255], [0, 0, 255]]]
        assert pixels(data, background=0).tolist() == [[[255, 0, 0], [0, 0, 0], [0, 0, 255]]]
    assert pixels(saved(image, "PNG")).tolist() == [[[255, 0, 0], [0, 255, 0], [0, 0, 255]]]
    assert pixels(saved(image, "PNG"), "L").tolist() == [[76, 150, 29]]  # colours, not numbers
    assert pixels(saved(image, "GIF", transparency=0))[0, 0].tolist() == [255, 255, 255]


def test_alpha_one_bit_and_grey_alpha() -> None:
    rgba = Image.new("RGBA", (1, 1), (0, 0, 0, 128))
    assert np.abs(pixels(saved(rgba, "PNG")) - 127).max() <= 1
    assert pixels(saved(Image.new("LA", (1, 1), (9, 0)), "PNG"), "L").tolist() == [[255]]
    assert pixels(saved(Image.new("LA", (1, 1), (9, 255)), "PNG"), "L").tolist() == [[9]]
    one = Image.new("1", (2, 1))
    one.putdata([0, 255])
    assert pixels(saved(one, "PNG"), "L").tolist() == [[0, 255]]
    assert pixels(saved(one, "TIFF")).tolist() == [[[0, 0, 0], [255, 255, 255]]]
    keyed = Image.new("RGB", (1, 1), (1, 2, 3))
    assert pixels(saved(keyed, "PNG", transparency=(1, 2, 3))).tolist() == [[[255, 255, 255]]]
    levels = Image.new("L", (1, 1), 4)
    assert pixels(saved(levels, "PNG", transparency=4), "L").tolist() == [[255]]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP", "BMP"])
def test_truncated_files_are_an_error_that_names_them(kind: str, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    data = saved(Image.fromarray(noise), kind)
    path = tmp_path / "cut.img"
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(DecodeError, match=r"cut\.img: is (damaged|not an image)") as caught:
        decode(path)
    assert caught.value.path == str(path)
    assert "damaged" in caught.value.reason or "not an image" in caught.value.reason


def test_empty_missing_and_foreign_files(tmp_path: Path) -> None:
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "notes.png").write_text("not a picture")
    for source, reason in [
        (tmp_path / "empty.jpg", "is empty"),
        (tmp_path / "notes.png", "is not an image of a known format"),
        (tmp_path / "gone.png", "does not exist"),
        (tmp_path, "is not a file"),
        (b"", "is empty"),
        (b"xx", "is not an image"),
    ]:
        with pytest.raises(DecodeError, match=reason):
            decode(source)


def test_bytes_and_path_agree(tmp_path: Path) -> None:
    data = saved(Image.fromarray(RAMP), "PNG")
    (tmp_path / "a.png").write_bytes(data)
    assert np.array_equal(pixels(data), pixels(str(tmp_path / "a.png")))


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    kind=st.sampled_from(["JPEG", "PNG", "GIF", "TIFF", "BMP", "WEBP"]),
    position=st.floats(0, 1, exclude_max=True),
    flip=st.integers(1, 255),
)
def test_a_damaged_byte_gives_a_picture_or_a_decode_error(
    kind: str, position: float, flip: int
) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (12, 9, 3), dtype=np.uint8)
    data = bytearray(saved(Image.fromarray(noise), kind))
    data[int(position * len(data))] ^= flip
    try:
        image = decode(bytes(data))
    except DecodeError:
        return
    assert image.mode == "RGB"


def test_the_error_survives_a_loader_worker() -> None:
    # torch rebuilds an exception of a worker from its message alone.
    error = DecodeError("a.png", "is empty")
    rebuilt = DecodeError(str(error))
    assert str(rebuilt) == str(error) == "Cannot read image a.png: is empty"
