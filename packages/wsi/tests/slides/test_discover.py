"""Which files of a folder are slides."""

import shutil
from pathlib import Path

import pytest

from isoattn.wsi.slides import UnreadableSlide, find_slides


def test_a_folder(made: Path, tmp_path: Path) -> None:
    for name in ("good.tif", "trunc.svs"):
        shutil.copy(made / name, tmp_path)
    shutil.copytree(made / "series", tmp_path / "deep" / "series")
    (tmp_path / "notes.txt").write_text("no slide")
    (tmp_path / ".hidden").mkdir()
    shutil.copy(made / "good.tif", tmp_path / ".hidden" / "other.tif")
    found = [path.relative_to(tmp_path).as_posix() for path in find_slides(tmp_path)]
    # A DICOM series counts once; what cannot be read is still listed, and fails by name later.
    assert found == ["deep/series/0.dcm", "good.tif", "trunc.svs"]


def test_parts_of_an_mrxs_slide_are_no_slides(tmp_path: Path) -> None:
    (tmp_path / "a.mrxs").touch()
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "Data0000.tif").touch()
    assert find_slides(tmp_path) == [tmp_path / "a.mrxs"]


def test_files_one_by_one(made: Path) -> None:
    paths = [made / "good.svs", made / "nompp.tif"]
    assert find_slides(paths) == paths


def test_messages(tmp_path: Path) -> None:
    with pytest.raises(UnreadableSlide, match="There is no slide or folder .*gone"):
        find_slides(tmp_path / "gone")
    with pytest.raises(UnreadableSlide, match=r"has no slide; .* \.svs .* one by one"):
        find_slides(tmp_path)
    (tmp_path / "a.svs").touch()
    (tmp_path / "a.tif").touch()
    with pytest.raises(UnreadableSlide, match=r"Two slides have the name 'a'.*rename one"):
        find_slides(tmp_path)
