"""Indices with arrays of objects are read; what a pickle could run is not."""

import io
import pickle
import zipfile

import numpy as np
import pytest

from isoattn.matching.data.npz import read_index


def objects(*items: object) -> np.ndarray:
    array = np.empty(len(items), dtype=object)
    for number, item in enumerate(items):
        array[number] = item
    return array


class Payload:
    def __reduce__(self):
        return (print, ("executed",))


def test_arrays_of_objects(tmp_path):
    path = tmp_path / "index.npz"
    infos = objects(((0, 1), 0.4, None), ((np.int64(1), 2), np.float64(0.7), np.ones((3, 2))))
    names = objects("a.jpg", None, "c.jpg")
    matrices = objects(np.eye(3), None, np.eye(3, dtype=np.float32))
    np.savez(path, infos=infos, names=names, matrices=matrices, plain=np.arange(4))
    found = read_index(path, ("infos",))
    assert found["infos"][1][0] == (1, 2) and float(found["infos"][1][1]) == 0.7
    assert list(found["names"]) == ["a.jpg", None, "c.jpg"]
    np.testing.assert_array_equal(found["matrices"][2], np.eye(3))
    np.testing.assert_array_equal(found["plain"], np.arange(4))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pickles_of_any_age(tmp_path, protocol):
    array = objects(np.arange(3.0), (np.int64(4), "x"))
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        stream, {"descr": "|O", "fortran_order": False, "shape": (2,)}
    )
    pickle.dump(array, stream, protocol=protocol)
    path = tmp_path / "old.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", stream.getvalue())
    found = read_index(path, ("a",))["a"]
    assert found[0].tolist() == [0, 1, 2] and int(found[1][0]) == 4 and found[1][1] == "x"


def test_nothing_in_a_pickle_is_run(tmp_path, capsys):
    path = tmp_path / "bad.npz"
    np.savez(path, infos=objects(Payload()))
    with pytest.raises(ValueError, match=r"bad.npz is no npz index.*refers to builtins.print"):
        read_index(path, ("infos",))
    assert capsys.readouterr().out == ""


def test_what_is_missing_or_damaged(tmp_path):
    path = tmp_path / "index.npz"
    with pytest.raises(FileNotFoundError, match="There is no index .*nothing is downloaded"):
        read_index(path, ())
    np.savez(path, a=np.zeros(3))
    with pytest.raises(ValueError, match="lacks b, c; it has a"):
        read_index(path, ("a", "b", "c"))
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(ValueError, match="is no npz index, or damaged"):
        read_index(path, ("a",))
