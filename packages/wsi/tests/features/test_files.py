"""Files that are whole or absent."""

import os
import platform
from pathlib import Path

import pytest

from isoattn.wsi.features.files import remove_stale, whole_file


def test_a_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "a.txt"
    with whole_file(target) as partial:
        partial.write_text("new")
        assert not target.exists()
    assert target.read_text() == "new" and list(target.parent.iterdir()) == [target]


def test_a_failure_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")
    with pytest.raises(RuntimeError), whole_file(target) as partial:
        partial.write_text("half")
        raise RuntimeError
    assert target.read_text() == "old" and list(tmp_path.iterdir()) == [target]


def test_what_a_dead_process_left_is_removed(tmp_path: Path) -> None:
    node = platform.node()
    dead = 2**22 + 7  # above any process id
    stale = tmp_path / f".a.h5.{node}.{dead}.partial"
    mine = tmp_path / f".b.h5.{node}.{os.getpid()}.partial"
    elsewhere = tmp_path / f".c.h5.another-machine.{dead}.partial"
    for path in (stale, mine, elsewhere):
        path.touch()
    assert remove_stale(tmp_path) == 1
    assert not stale.exists() and mine.exists() and elsewhere.exists()
