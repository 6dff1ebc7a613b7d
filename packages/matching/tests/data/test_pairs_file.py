"""The user's own pairs: with homographies, with matches, with cameras, or with nothing."""

from pathlib import Path

import pytest
import torch

from isoattn.matching.data import PairsFile, ResizeOptions, collate
from isoattn.matching.files import MatchWriter
from isoattn.matching.supervision import supervise


@pytest.fixture
def folder(tmp_path, write_picture) -> Path:
    write_picture(tmp_path / "a" / "1.png", seed=1, size=(40, 48))
    write_picture(tmp_path / "2.png", seed=2, size=(40, 48))
    (tmp_path / "pairs.txt").write_text("a/1.png 2.png 1 0 8 0 1 0 0 0 1\n2.png a/1.png\n")
    return tmp_path


def test_homographies_where_there_are_any(folder):
    source = PairsFile(str(folder), "pairs.txt", resize=ResizeOptions())
    data = source.pairs("train", 0)
    assert source.labelled and source.splits == () and len(data) == 2
    batch = collate([data[0], data[1]])
    truth = supervise(batch)
    assert truth.known_B.tolist() == [True, False] and truth.counts().tolist() == [25, 0]
    assert batch["name0"] == ["a/1.png", "2.png"]
    assert [path.name for path in source.files("test")] == ["pairs.txt", "2.png", "1.png"]


def test_given_matches(folder):
    # M11: own matches are a source of supervision.
    points = torch.tensor([[8.0, 8.0], [30.0, 19.0]])
    with MatchWriter(folder / "matches.h5") as writer:
        writer.add("a/1.png", "2.png", points, points + 8, torch.ones(2))
    (folder / "pairs.txt").write_text("2.png a/1.png\na/1.png a/1.png\n")
    source = PairsFile(str(folder), "pairs.txt", "matches.h5", ResizeOptions())
    assert source.labelled
    data = source.pairs("train", 0)
    batch = collate([data[0], data[1]])
    truth = supervise(batch)
    # The file has the pair the other way round.
    assert truth.known_B.tolist() == [True, False]
    assert truth.i.tolist() == [14, 23] and truth.j.tolist() == [7, 16]
    double = PairsFile(str(folder), "pairs.txt", "matches.h5", ResizeOptions(longer=96)).pairs(
        "train", 0
    )[0]
    torch.testing.assert_close(double.points1, 2 * points + 0.5)


def test_cameras_alone_can_be_scored_not_trained_on(folder):
    camera = "40 0 20 0 40 24 0 0 1"
    pose = "1 0 0 -1 0 1 0 0 0 0 1 0 0 0 0 1"
    (folder / "pairs.txt").write_text(f"a/1.png 2.png 0 0 {camera} {camera} {pose}")
    source = PairsFile(str(folder), "pairs.txt", resize=ResizeOptions(longer=96))
    assert not source.labelled
    pair = source.pairs("test", 0)[0]
    assert pair.pose[0, 3] == -1 and float(pair.intrinsics0[0, 0]) == pytest.approx(80.0)
    assert float(pair.intrinsics1[0, 2]) == pytest.approx(40.5)


def test_what_is_missing_is_named(folder):
    (folder / "pairs.txt").write_text("a/1.png 3.png\n4.png 2.png")
    with pytest.raises(
        FileNotFoundError, match=r"names 2 images that are not below .*3.png, 4.png"
    ):
        PairsFile(str(folder), "pairs.txt").pairs("test", 0)
    with pytest.raises(FileNotFoundError, match="is not a folder. Give the folder of the images"):
        PairsFile(str(folder / "gone"), "pairs.txt").pairs("test", 0)
    with pytest.raises(FileNotFoundError):
        PairsFile(str(folder), "gone.txt").pairs("test", 0)
