"""The user's table: text stays text, and each message names rows and remedy."""

import pytest

from isoattn.wsi.bags import read_labels
from isoattn.wsi.bags.labels import class_order


@pytest.fixture
def table(tmp_path):
    def write(text, encoding="utf-8"):
        path = tmp_path / "slides.csv"
        path.write_text(text, encoding=encoding)
        return path

    return write


def test_ids_are_text(table):
    found = read_labels(table("slide_id,label\n001,1\n1,0\n1e3,0\n"))
    assert found.ids == ("001", "1", "1e3")
    assert found.labels == ("1", "0", "0")
    assert found.patients == found.ids and found.sites is None and found.parts is None


def test_a_table_of_predictions_names_its_slides_too(table):
    assert read_labels(table("slide,label\n001,1\n")).ids == ("001",)
    both = table("slide,slide_id,label\nx,001,1\n")
    assert read_labels(both).ids == ("001",)
    with pytest.raises(ValueError, match="not the column 'id'"):
        read_labels(table("slide,label\n001,1\n"), id_column="id")


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_separators_quotes_blanks_and_a_byte_order_mark(table, separator):
    rows = [["id", "class", "case", "site", "part"], ["a b", ' "x, y"', "p", "s", ""]]
    path = table("\n".join(separator.join(r) for r in rows).replace(' "x, y"', '"x, y"') + "\n\n")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    found = read_labels(
        path,
        id_column="id",
        label_column="class",
        patient_column="case",
        site_column="site",
        split_column="part",
    )
    assert (found.ids, found.labels, found.patients) == (("a b",), ("x, y",), ("p",))
    assert found.sites == ("s",) and found.parts == ("",)


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("slides,label\na,0\n", {}, "not the column 'slide_id'.*Did you mean 'slides'.*id_column"),
        ("slide_id,y\na,0\n", {}, "not the column 'label'.*Its columns: slide_id, y"),
        ("slide_id,label,label\na,0,1\n", {}, "twice the column 'label'"),
        (
            "slide_id,label\na,0\nb,1\na,1\nb,1\n",
            {},
            "lists slides twice: 'a' in rows 2 and 4, 'b' in rows 3 and 5",
        ),
        ("slide_id,label\na,0\nb,\n", {}, "column 'label' is empty in row 3: fill it in"),
        ("slide_id,label\n,0\n,1\n", {}, "column 'slide_id' is empty in rows 2, 3"),
        ("slide_id,label,p\na,0,\n", {"patient_column": "p"}, "column 'p' is empty in row 2"),
        ("slide_id,label\na,0,9\n", {}, "row 2 have not the 2 cells of the header"),
        ("slide_id,label\n", {}, "has no rows below its header"),
    ],
)
def test_what_is_refused(table, text, options, words):
    with pytest.raises(ValueError, match=words):
        read_labels(table(text), **options)


def test_what_is_no_table(tmp_path, table):
    with pytest.raises(FileNotFoundError, match=r"There is no table .*absent.csv"):
        read_labels(tmp_path / "absent.csv")
    with pytest.raises(ValueError, match="slides.csv is no text in UTF-8"):
        read_labels(table("slide_id,label\nä,1\n", encoding="latin-1"))


def test_classes_are_ordered_by_number_or_name():
    assert class_order(["10", "9", "0", "9"]) == ("0", "9", "10")
    assert class_order(["tumour", "normal", "10"]) == ("10", "normal", "tumour")
