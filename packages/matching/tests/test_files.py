"""Lists of pairs and hloc's files of matches, written and read back."""

import h5py
import numpy as np
import pytest
import torch

from isoattn.matching.files import (
    ListedPair,
    MatchWriter,
    pair_group,
    read_matches,
    read_pair_list,
    stored_pairs,
    write_pair_list,
)


def some(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    points = torch.rand(2, count, 2, generator=generator) * 100
    return points[0], points[1], torch.rand(count, generator=generator)


def test_the_layout_is_that_of_hloc(tmp_path):
    path = tmp_path / "out" / "matches.h5"
    first, second, scores = some(4)
    with MatchWriter(path) as writer:
        writer.add("query/night/1.jpg", "db/2.jpg", first, second, scores.half())
        writer.add("a.png", "b.png", *some(0))
    with h5py.File(path) as file:
        group = file["query-night-1.jpg/db-2.jpg"]
        assert sorted(group) == ["keypoints0", "keypoints1", "scores"]
        np.testing.assert_allclose(group["keypoints0"][()], first.numpy())
        assert group["scores"].shape == (4,) and group["scores"].dtype == np.float32
        assert file["a.png/b.png/keypoints1"].shape == (0, 2)
    assert sorted(stored_pairs(path)) == [("a.png", "b.png"), ("query-night-1.jpg", "db-2.jpg")]
    assert [p.name for p in path.parent.iterdir()] == ["matches.h5"]


def test_reading_back_either_way_round(tmp_path):
    path = tmp_path / "matches.h5"
    first, second, scores = some(5)
    with MatchWriter(path) as writer:
        writer.add("x/1.jpg", "2.jpg", first, second, scores)
    there, back = read_matches(path, "x/1.jpg", "2.jpg"), read_matches(path, "2.jpg", "x/1.jpg")
    assert torch.equal(there.keypoints0, first) and torch.equal(there.keypoints1, second)
    assert torch.equal(back.keypoints0, second) and torch.equal(back.keypoints1, first)
    assert torch.equal(back.scores, scores)
    with pytest.raises(
        KeyError, match=r"no matches of 1.jpg and 2.jpg, in neither order; it has 1"
    ):
        read_matches(path, "1.jpg", "2.jpg")


def test_a_file_is_there_when_it_is_complete(tmp_path):
    path = tmp_path / "matches.h5"
    with MatchWriter(path) as writer:
        writer.add("a", "b", *some(1))
    before = path.read_bytes()
    with pytest.raises(RuntimeError, match="stopped"), MatchWriter(path) as writer:
        writer.add("c", "d", *some(1))
        raise RuntimeError("stopped")
    assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 1


def test_what_cannot_be_written_or_read(tmp_path):
    path = tmp_path / "matches.h5"
    first, second, scores = some(3)
    with MatchWriter(path) as writer:
        with pytest.raises(ValueError, match=r"a, b: keypoints \(N, 2\).*got \(3, 2\), \(2, 2\)"):
            writer.add("a", "b", first, second[:2], scores)
        writer.add("a/b", "c", first, second, scores)
        with pytest.raises(ValueError, match=r"has the pair a-b/c already.*differ in \"/\" and"):
            writer.add("a-b", "c", first, second, scores)
    with pytest.raises(FileNotFoundError, match=r"no file of matches .*gone\.h5"):
        read_matches(tmp_path / "gone.h5", "a", "b")
    (tmp_path / "bad.h5").write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"bad\.h5 is no h5 file, or damaged"):
        stored_pairs(tmp_path / "bad.h5")
    with h5py.File(tmp_path / "sparse.h5", "w") as file:
        file.create_group("a/b").create_dataset("matches0", data=np.zeros(3))
    with pytest.raises(ValueError, match="the pair a/b lacks keypoints0, keypoints1, scores"):
        read_matches(tmp_path / "sparse.h5", "a", "b")


def test_the_group_of_a_pair():
    assert pair_group("a/b/1.jpg", "2.jpg") == "a-b-1.jpg/2.jpg"


def test_pair_lists(tmp_path):
    path = tmp_path / "pairs.txt"
    matrix = torch.tensor([[1.5, 0, 3], [0, 1, -2], [1e-4, 0, 1]], dtype=torch.float64)
    write_pair_list(path, [ListedPair("a/1.jpg", "2.jpg"), ListedPair("3", "4", matrix)])
    first, second = read_pair_list(path)
    assert (first.name0, first.name1, first.homography) == ("a/1.jpg", "2.jpg", None)
    assert torch.equal(second.homography, matrix)
    path.write_text("# a comment\n\n" + path.read_text())
    assert len(read_pair_list(path)) == 2
    with pytest.raises(ValueError, match=r"Names with spaces cannot be listed: 'a b'"):
        write_pair_list(path, [ListedPair("a b", "c")])


def test_a_list_of_superglue(tmp_path):
    path = tmp_path / "pairs.txt"
    numbers = [*range(1, 10), *range(11, 20), *range(101, 117)]
    path.write_text("a b 0 0 " + " ".join(map(str, numbers)))
    [pair] = read_pair_list(path)
    assert pair.intrinsics0.flatten().tolist() == list(range(1, 10))
    assert pair.intrinsics1.flatten().tolist() == list(range(11, 20))
    assert pair.pose.flatten().tolist() == list(range(101, 117)) and pair.homography is None
    path.write_text("a b 0 1 " + " ".join(map(str, numbers)))
    with pytest.raises(ValueError, match=r"line 1: images turned by 0 and 1 quarters"):
        read_pair_list(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "lists no pair"),
        ("a b\na\n", "line 2: 1 words; a line is two names"),
        ("a b 1 2 3", "line 1: 5 words"),
        ("a b c", "line 1: could not convert.*names with spaces cannot be read"),
        ("a b 1 2 3 4 5 6 7 8 nan", "line 1: 11 words.*all finite"),
    ],
)
def test_lines_that_are_none(tmp_path, text, message):
    path = tmp_path / "pairs.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_pair_list(path)
