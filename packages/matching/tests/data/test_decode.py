"""Every depth, mode and orientation becomes the grey it means; damage has one error."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from isoattn.matching.data import DecodeError, decode_grey
from isoattn.matching.data.decode import to_unit

RAMP = np.linspace(0, 65535, 64 * 64).round().astype(np.uint16).reshape(64, 64)
NOISE = np.random.default_rng(0).integers(0, 256, (64, 48, 3), dtype=np.uint8)


def grey(path: Path) -> np.ndarray:
    image = decode_grey(path)
    assert image.mode == "L"
    return np.asarray(image).astype(int)


def test_12_bits_in_a_file_of_16_are_not_black(tmp_path: Path) -> None:
    Image.fromarray(RAMP >> 4).save(tmp_path / "twelve.png")
    Image.fromarray(RAMP >> 3).save(tmp_path / "thirteen.png")  # dark, in 16 bits
    twelve, thirteen = (
        np.asarray(decode_grey(tmp_path / f"{n}.png")) for n in ("twelve", "thirteen")
    )
    assert (twelve.min(), twelve.max(), thirteen.max()) == (0, 255, 32)


@pytest.mark.parametrize("suffix", ["png", "tiff", "pgm"])
def test_16_bits_are_scaled_not_clipped(tmp_path, suffix):
    path = tmp_path / f"ramp.{suffix}"
    if suffix == "pgm":
        path.write_bytes(b"P5 64 64 65535\n" + RAMP.astype(">u2").tobytes())
    else:
        Image.fromarray(RAMP).save(path)
    assert np.array_equal(grey(path), np.rint(RAMP / 257))


def test_other_depths(tmp_path):
    path = tmp_path / "a.tiff"
    Image.fromarray(np.array([[0, 2**31 - 1]], dtype=np.int32)).save(path)
    assert grey(path).tolist() == [[0, 127]]
    Image.fromarray(np.array([[0.0, 0.5, 1.0]], dtype=np.float32)).save(path)
    assert grey(path).tolist() == [[0, 128, 255]]
    for values, message in (
        (np.array([[0.0, 3.0]], dtype=np.float32), r"float pixels outside \[0, 1\]"),
        (np.array([[-1, 5]], dtype=np.int32), "negative pixels"),
    ):
        Image.fromarray(values).save(path)
        with pytest.raises(DecodeError, match=message):
            decode_grey(path)


def test_colour_palette_alpha_and_one_bit(tmp_path):
    path = tmp_path / "a.png"
    Image.fromarray(NOISE).save(path)
    want = np.asarray(Image.fromarray(NOISE).convert("L")).astype(int)
    assert np.array_equal(grey(path), want)
    palette = Image.new("P", (3, 1))
    palette.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    palette.putdata([0, 1, 2])
    palette.save(path)
    assert grey(path).tolist() == [[76, 150, 29]]  # colours, not numbers
    palette.save(path, transparency=1)
    assert grey(path).tolist() == [[76, 255, 29]]
    Image.new("LA", (1, 1), (9, 0)).save(path)
    assert grey(path).tolist() == [[255]]
    one = Image.new("1", (2, 1))
    one.putdata([0, 255])
    one.save(path)
    assert grey(path).tolist() == [[0, 255]]
    keyed = Image.fromarray(RAMP)
    keyed.save(path, transparency=int(RAMP[3, 3]))
    assert grey(path)[3, 3] == 255 and grey(path)[0, 0] == 0
    cmyk = Image.new("RGB", (16, 16), (200, 200, 200)).convert("CMYK")
    cmyk.save(tmp_path / "a.jpg", quality=95)
    assert np.abs(grey(tmp_path / "a.jpg") - 200).max() < 8


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF"])
def test_exif_orientation_is_applied(tmp_path, kind):
    upright = np.zeros((24, 40), dtype=np.uint8)
    upright[:8, :20] = 255  # a mark at the top left: no symmetry
    stored = {1: upright, 3: upright[::-1, ::-1], 6: np.rot90(upright), 8: np.rot90(upright, -1)}
    for orientation, pixels in stored.items():
        exif = Image.Exif()
        exif[0x0112] = orientation
        path = tmp_path / f"{orientation}.img"
        Image.fromarray(np.ascontiguousarray(pixels)).convert("RGB").save(path, kind, exif=exif)
        assert grey(path).shape == (24, 40)
        assert np.abs(grey(path) - upright.astype(int)).max() < 40


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "BMP"])
def test_truncated_files_are_an_error_that_names_them(tmp_path, kind):
    stream = io.BytesIO()
    Image.fromarray(NOISE).save(stream, kind)
    path = tmp_path / "cut.img"
    path.write_bytes(stream.getvalue()[: len(stream.getvalue()) // 2])
    with pytest.raises(DecodeError, match=r"cut\.img: is (damaged|not an image)") as caught:
        decode_grey(path)
    assert caught.value.path == str(path)


def test_empty_missing_and_foreign_files(tmp_path):
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "notes.png").write_text("not a picture")
    for path, reason in (
        (tmp_path / "empty.jpg", "is empty"),
        (tmp_path / "notes.png", "is not an image of a known format"),
        (tmp_path / "gone.png", "does not exist"),
        (tmp_path, "is not a file"),
    ):
        with pytest.raises(DecodeError, match=reason):
            decode_grey(path)


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@settings(max_examples=30, suppress_health_check=list(HealthCheck), deadline=None)
@given(
    kind=st.sampled_from(["JPEG", "PNG", "GIF", "TIFF", "BMP"]),
    position=st.floats(0, 1, exclude_max=True),
    flip=st.integers(1, 255),
)
def test_a_damaged_byte_gives_a_picture_or_a_decode_error(tmp_path, kind, position, flip):
    stream = io.BytesIO()
    Image.fromarray(NOISE[:12, :9]).save(stream, kind)
    data = bytearray(stream.getvalue())
    data[int(position * len(data))] ^= flip
    path = tmp_path / "a.img"
    path.write_bytes(data)
    try:
        assert decode_grey(path).mode == "L"
    except DecodeError:
        return


def test_the_error_survives_a_loader_worker():
    error = DecodeError("a.png", "is empty")
    assert str(DecodeError(str(error))) == str(error) == "Cannot read image a.png: is empty"


def test_pixels_as_numbers():
    unit = to_unit(Image.fromarray(np.array([[0, 51, 255]], dtype=np.uint8)))
    assert unit.dtype == torch.float32
    torch.testing.assert_close(unit, torch.tensor([[0.0, 0.2, 1.0]]))
