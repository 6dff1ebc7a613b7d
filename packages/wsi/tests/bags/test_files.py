"""Feature files: layouts, ids as text, what is refused by name, what is left out and counted."""

import pickle
import re

import h5py
import numpy as np
import pytest
import torch

from isoattn.wsi.bags import BagError, FeatureFolder, SplitOptions


def source(folder, **options):
    given = {"patient_column": "case", "site_column": "hospital", **options}
    return FeatureFolder(str(folder / "features"), str(folder / "slides.csv"), **given)


def test_a_folder_and_a_table(folder):
    task = source(folder).load()
    assert task.ids[:2] == ("000", "001") and task.classes == ("normal", "tumour")
    assert task.labels[:5].tolist() == [0, 0, 1, 1, 0] and task.in_dim == 5
    assert task.name == "features" and task.facts["skipped"] == {}
    assert [task.reader.shape(i) for i in (0, 5)] == [(3, 5), (8, 5)]
    bag = task.reader.read(5)
    assert bag.features.shape == (8, 5) and bag.step == 512
    assert bag.cells().tolist() == [[i % 3, i // 3] for i in range(8)]
    patients = [number // 2 for number in range(24)]
    parts = [{patients[i] for i in members.tolist()} for _, members in task.split.items()]
    assert not parts[0] & parts[1] and not parts[0] & parts[2] and not parts[1] & parts[2]


def test_the_reader_goes_to_other_processes(folder):
    reader = pickle.loads(pickle.dumps(source(folder).load().reader))
    assert reader.read(3).tiles == 6


def test_overlapping_tiles_are_nearer_than_their_side(tmp_path, write_h5):
    coords = np.array([[0, 0], [384, 0]])
    write_h5(
        tmp_path / "a.h5",
        np.zeros((2, 3), np.float32),
        coords,
        patch_size=256,
        patch_size_level0=512,
        overlap=64,
    )
    bag = FeatureFolder(str(tmp_path)).load().reader.read(0)
    assert (bag.step, bag.side) == (384, 512) and bag.cells().tolist() == [[0, 0], [1, 0]]


def test_files_of_clam(tmp_path):
    for sub in ("h5_files", "pt_files"):
        (tmp_path / sub).mkdir()
    features = torch.randn(4, 6)
    torch.save(features, tmp_path / "pt_files" / "a.pt")
    torch.save(features, tmp_path / "pt_files" / "b.b.pt")
    with h5py.File(tmp_path / "h5_files" / "a.h5", "w") as file:
        file["features"] = features.numpy()
        coords = file.create_dataset("coords", data=np.array([[0, 0], [0, 1024], [9, 5], [8, 8]]))
        coords.attrs.update(patch_size=256, patch_level=1, downsample=np.array([4.0, 4.0]))
    task = FeatureFolder(str(tmp_path)).load()
    assert task.ids == ("a", "b.b") and task.labels.tolist() == [-1, -1]
    assert [len(members) for _, members in task.split.items()] == [0, 0, 0]
    assert task.reader.shape(1) == (4, 6)
    assert torch.equal(task.reader.read(0).features, features)
    assert task.reader.read(0).step == 1024
    bare = task.reader.read(1)
    assert torch.equal(bare.features, features) and bare.coords is None
    assert torch.equal(task.reader.digest(1)[1], features[[0, -1]])


def test_an_axis_of_one_in_front_is_dropped(tmp_path, write_h5):
    write_h5(tmp_path / "a.h5", np.ones((1, 4, 3), np.float16), np.zeros((4, 2), np.int64))
    task = FeatureFolder(str(tmp_path)).load()
    assert task.reader.shape(0) == (4, 3) and task.reader.read(0).features.shape == (4, 3)
    assert task.reader.digest(0)[0] == (4, 3)


def test_ids_are_not_numbers(folder):
    table = folder / "slides.csv"
    table.write_text(table.read_text().replace("\n001,", "\n1,"))
    message = (
        "1 of 24 slides of the table have no feature file in .*features: 1. Its files are of 000"
    )
    with pytest.raises(FileNotFoundError, match=message):
        source(folder).load()


def test_missing_files_may_be_left_out_and_are_counted(folder):
    for name in ("000", "023"):
        (folder / "features" / f"{name}.h5").unlink()
    with pytest.raises(FileNotFoundError, match="2 of 24 slides .*: 000, 023.*on_missing='skip'"):
        source(folder).load()
    whole = {n: part for part, names in _parts(folder, source(folder)).items() for n in names}
    task = source(folder, on_missing="skip").load()
    assert task.facts["skipped"] == {"no feature file": 2} and len(task.ids) == 22
    for part, members in task.split.items():  # the others stay where they were
        assert all(whole[task.ids[i]] == part for i in members.tolist())


def _parts(folder, given):
    from isoattn.wsi.bags import read_labels, split_slides

    table = read_labels(folder / "slides.csv", patient_column="case")
    split = split_slides(table, given.split)
    return {p: [table.ids[i] for i in m.tolist()] for p, m in split.items()}


def damage(folder, kind, write_h5):
    path = folder / "features" / "007.h5"
    if kind == "nan":
        features = np.ones((4, 5), np.float32)
        features[2, 1] = np.nan
        write_h5(path, features)
    elif kind == "empty":
        write_h5(path, np.ones((0, 5), np.float32))
    elif kind == "dimension":
        write_h5(path, np.ones((4, 6), np.float32))
    elif kind == "coords":
        write_h5(path, np.ones((4, 5), np.float32), np.zeros((3, 2), np.int64))
    elif kind == "no features":
        with h5py.File(path, "w") as file:
            file["coords"] = np.zeros((4, 2), np.int64)
    elif kind == "truncated":
        path.write_bytes(path.read_bytes()[:700])
    elif kind == "zero bytes":
        path.write_bytes(b"")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("empty", "Bag '007' has no tiles"),
        ("dimension", "Bag '007' has 6 features a tile, the others have 5"),
        ("no features", "Bag '007': .*007.h5 cannot be read"),
        ("truncated", "Bag '007': .*007.h5 cannot be read .*extract them anew"),
        ("zero bytes", "Bag '007': .*007.h5 cannot be read"),
    ],
)
def test_damaged_files_stop_the_load(folder, kind, words, write_h5):
    damage(folder, kind, write_h5)
    with pytest.raises(BagError, match=words):
        source(folder).load()


def test_all_damaged_files_are_named_at_once(folder, write_h5):
    damage(folder, "zero bytes", write_h5)
    write_h5(folder / "features" / "001.h5", np.ones((0, 5), np.float32))
    with pytest.raises(BagError, match=r"Bag '001' has no tiles.*\. 1 more cannot be used: 007"):
        source(folder).load()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("nan", "Bag '007': .*not finite, such as in the rows .2."),
        ("coords", "Bag '007': .*4 rows of features and coordinates of shape .3, 2."),
    ],
)
def test_bad_numbers_stop_the_read(folder, kind, words, write_h5):
    damage(folder, kind, write_h5)
    task = source(folder).load()
    with pytest.raises(BagError, match=words):
        task.reader.read(7)


class Payload:
    def __reduce__(self):
        return (exec, ("raise SystemExit('executed')",))


def test_pt_files_with_objects_are_refused(tmp_path):
    torch.save({"x": Payload()}, tmp_path / "a.pt")
    with pytest.raises(BagError, match="Bag 'a': .*a.pt cannot be read"):
        FeatureFolder(str(tmp_path)).load()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda f: source(f, on_missing="drop"),
            ValueError,
            "on_missing must be one of error, skip",
        ),
        (
            lambda f: source(f, split_column="s", split=SplitOptions(file="x")),
            ValueError,
            "split_column gives the split already",
        ),
        (
            lambda f: source(f, classes=["normal"]).load(),
            ValueError,
            "labels tumour are not among the classes",
        ),
        (lambda f: FeatureFolder(str(f / "no")).load(), FileNotFoundError, "There is no folder"),
        (lambda f: FeatureFolder(str(f)).load(), FileNotFoundError, None),
    ],
)
def test_messages(folder, call, error, words):
    if words is None:  # an empty folder
        for path in (folder / "features").iterdir():
            path.unlink()
        words = f"The folder {re.escape(str(folder))} has no feature files"
    with pytest.raises(error, match=words):
        call(folder)


def test_a_class_list_sets_the_order(folder):
    task = source(folder, classes=["tumour", "normal", "other"]).load()
    assert task.classes == ("tumour", "normal", "other")
    assert task.labels[:5].tolist() == [1, 1, 0, 0, 1]
