"""Files as people name them first."""

import pytest

from isoattn.apps.base.errors import UserError
from isoattn.apps.matching.sources import evaluation_source, training_source


def leaf(spec):
    return spec["class_path"].rsplit(".", 1)[-1]


def test_a_list_has_its_images_beside_it_or_elsewhere(tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "pairs.txt").write_text("a.jpg b.jpg\n")
    beside = evaluation_source([str(tmp_path / "pairs.txt")])
    assert leaf(beside) == "PairsFile" and beside["init_args"]["root"] == str(tmp_path)
    elsewhere = evaluation_source([str(tmp_path / "pairs.txt"), str(tmp_path / "images")])
    assert elsewhere["init_args"]["root"] == str(tmp_path / "images")
    assert leaf(training_source([str(tmp_path / "pairs.txt")])) == "PairsFile"


def test_known_layouts(tmp_path):
    (tmp_path / "graf").mkdir()
    (tmp_path / "graf" / "img1.png").touch()
    assert leaf(evaluation_source([str(tmp_path / "graf")])) == "OxfordSequence"
    (tmp_path / "hp" / "v_wall").mkdir(parents=True)
    assert leaf(evaluation_source([str(tmp_path / "hp")])) == "HPatches"
    assert leaf(training_source([str(tmp_path / "graf")])) == "FolderPairs"


@pytest.mark.parametrize("names", [["no"], ["empty"], ["a.jpg"], ["pairs.txt", "a.jpg"]])
def test_what_is_no_pairs(tmp_path, monkeypatch, names):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.jpg").touch()
    (tmp_path / "pairs.txt").touch()
    with pytest.raises(UserError) as error:
        evaluation_source(names)
    assert names[0] in str(error.value) and len(str(error.value).splitlines()) < 5
