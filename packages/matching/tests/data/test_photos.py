"""The packaged photographs: which are there, and that no pixel serves two splits."""

import importlib.util

import numpy as np
import pytest
import torch
from PIL import Image

from isoattn.matching.data import DecodeError, photos
from isoattn.matching.data.photos import (
    SPLITS,
    PhotoFile,
    builtin_photos,
    checkerboard,
    divide,
    folder_photos,
    halvings,
    level_for,
    package_file,
)

HELD_OUT = {"chelsea", "coffee", "flower", "rocket"}
TEXTURES = {"brick", "checker", "grass", "gravel"}


def test_what_is_trained_on_and_what_is_held_out():
    names = {split: {photo.name for photo in builtin_photos(split)} for split in SPLITS}
    assert len(names["train"]) == 18 and not names["train"] & HELD_OUT
    assert names["val"] == names["test"] == HELD_OUT | TEXTURES
    for split, share in (("train", 4 / 18), ("val", 4 / 16), ("test", 4 / 16)):
        textures = [photo.texture for photo in builtin_photos(split)]
        assert sum(textures) / len(textures) == share
    assert not any("motorcycle" in name for name in set().union(*names.values()))
    for split in SPLITS:
        found = builtin_photos(split)
        assert {photo.name for photo in found if photo.texture} == TEXTURES
        assert not TEXTURES & {photo.name for photo in builtin_photos(split, textures=False)}


def test_no_pixel_is_in_two_splits():
    boxes = [{photo.name: photo.box for photo in builtin_photos(split)} for split in SPLITS]
    for first, second in ((0, 1), (0, 2), (1, 2)):
        for name in boxes[first].keys() & boxes[second].keys():
            a, b = boxes[first][name], boxes[second][name]
            width = min(a[2], b[2]) - max(a[0], b[0])
            height = min(a[3], b[3]) - max(a[1], b[1])
            assert width <= 0 or height <= 0, name


def test_every_photo_loads():
    for split in SPLITS:
        for file in builtin_photos(split):
            photo = file.load(max_side=256)
            assert max(photo.size) <= 256 and min(photo.size) >= 64, file.name
            assert float(photo.levels[0].min()) >= 0 and float(photo.levels[0].max()) <= 1
            assert float(photo.levels[0].std()) > 0.01, file.name


def test_the_parts_are_those_of_the_photo():
    def read() -> Image.Image:
        image = Image.new("L", (64, 32))
        image.paste(200, (32, 0, 64, 32))
        return image

    left = PhotoFile("a", read, (0.0, 0.0, 0.5, 1.0)).load(1024)
    right = PhotoFile("a", read, (0.5, 0.0, 1.0, 0.5)).load(1024)
    assert left.size == (32, 32) and not left.levels[0].any()
    assert right.size == (16, 32) and torch.allclose(right.levels[0], torch.tensor(200 / 255))


def test_halvings():
    image = torch.rand(70, 130, generator=torch.Generator().manual_seed(0))
    levels = halvings(image)
    assert [tuple(level.shape) for level in levels] == [(70, 130), (35, 65), (17, 32)]
    torch.testing.assert_close(levels[1][0, 0], image[:2, :2].mean())
    photo = photos.Photo("a", levels)
    assert [level_for(photo, f) for f in (0.3, 1.0, 1.5, 2.7, 100)] == [0, 0, 1, 1, 2]


def test_the_checkerboard_is_drawn_once_and_for_all():
    board = checkerboard()
    assert board.size == (512, 512) and board is checkerboard()
    light = torch.from_numpy(np.array(board.resize((32, 32), Image.Resampling.NEAREST)))
    rows, columns = torch.meshgrid(torch.arange(32), torch.arange(32), indexing="ij")
    odd = (rows + columns) % 2 == 1
    assert light[odd].min() >= 190 and light[~odd].max() < 70
    assert len(light[odd].unique()) > 10  # places can be told apart


def test_a_package_that_is_not_there(monkeypatch):
    with pytest.raises(FileNotFoundError, match="installed scikit-image has no file data/lion.png"):
        package_file("skimage", "data", "lion.png")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(FileNotFoundError, match="the package scikit-learn, which is not installed"):
        package_file("sklearn", "datasets/images", "china.jpg")


def test_a_folder_with_its_own_splits(tmp_path, write_picture):
    for split in ("train", "val"):
        write_picture(tmp_path / split / "b" / "1.png")
        write_picture(tmp_path / split / "0.jpg")
        (tmp_path / split / "notes.txt").write_text("x")
        write_picture(tmp_path / split / ".hidden" / "2.png")
    found = folder_photos(tmp_path)
    assert sorted(found) == ["train", "val"]
    assert [photo.name for photo in found["val"]] == ["val/0.jpg", "val/b/1.png"]
    assert [photo.name for photo in folder_photos(tmp_path / "val")["train"]] == [
        "0.jpg",
        "b/1.png",
    ]


def test_folders_that_cannot_be_used(tmp_path, write_picture):
    with pytest.raises(ValueError, match="gone is not a folder"):
        folder_photos(tmp_path / "gone")
    with pytest.raises(ValueError, match=r"has no image \(suffixes: .bmp"):
        folder_photos(tmp_path)
    write_picture(tmp_path / "small.png", size=(8, 40))
    [photo] = folder_photos(tmp_path)["train"]
    with pytest.raises(DecodeError, match=r"small.png: is 40 x 8, views need 16 pixels a side"):
        photo.load(1024)


def test_dividing_photos():
    files = [PhotoFile(str(k), checkerboard) for k in range(10)]
    kept, aside = divide(files, 0.3, seed=0, stream="val")
    assert len(kept) == 7 and len(aside) == 3
    assert sorted([*kept, *aside], key=lambda f: f.name) == files
    assert divide(files, 0.3, seed=0, stream="val") == (kept, aside)
    assert divide(files, 0.3, seed=1, stream="val") != (kept, aside)
    assert [len(part) for part in divide(files[:2], 0.01, seed=0, stream="val")] == [1, 1]
    for few, fraction in ((files[:1], 0.5), (files, 1.0)):
        with pytest.raises(ValueError, match="cannot be divided by the fraction .* for val: give"):
            divide(few, fraction, seed=0, stream="val")
