"""Splits: patients stay together, classes are spread, a seed is a split."""

import logging

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isoattn.wsi.bags import LabelTable, Split, SplitOptions, class_weights, split_slides
from isoattn.wsi.bags.split import check_leakage


def made(slides=120, patients=60, sites=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    patient = torch.randint(patients, (slides,), generator=generator).tolist()
    return LabelTable(
        ids=tuple(f"s{i}" for i in range(slides)),
        labels=tuple("ab"[p % 3 == 0] for p in patient),
        patients=tuple(f"p{p}" for p in patient),
        sites=tuple(f"h{p % sites}" for p in patient),
    )


def names(split, values):
    return {part: {values[i] for i in members.tolist()} for part, members in split.items()}


@settings(max_examples=8, deadline=None)
@given(st.integers(3, 6), st.integers(0, 50), st.integers(0, 20))
def test_every_slide_is_tested_once_and_no_patient_is_torn(folds, seed, data):
    table = made(seed=data)
    tested = []
    for fold in range(folds):
        split = split_slides(table, SplitOptions(folds=folds, fold=fold, seed=seed))
        parts = names(split, table.patients)
        assert not parts["train"] & parts["val"] and not parts["train"] & parts["test"]
        assert not parts["val"] & parts["test"]
        assert sum(len(m) for _, m in split.items()) == len(table.ids)
        tested += split.test.tolist()
    assert sorted(tested) == list(range(len(table.ids)))


def test_classes_are_spread():
    table = made(slides=300, patients=300)
    for fold in range(5):
        split = split_slides(table, SplitOptions(fold=fold))
        share = [table.labels[i] == "b" for i in split.test.tolist()]
        assert abs(sum(share) / len(share) - 1 / 3) < 0.08


def test_a_split_is_a_function_of_its_seed_and_of_nothing_else():
    table = made()
    one = split_slides(table, SplitOptions(seed=3))
    state = torch.get_rng_state()
    torch.manual_seed(99)
    again, other = split_slides(table, SplitOptions(seed=3)), split_slides(table, SplitOptions())
    torch.set_rng_state(state)
    assert torch.equal(one.test, again.test) and torch.equal(one.train, again.train)
    assert not torch.equal(one.test, other.test)


def test_sites_are_spread_or_kept_apart():
    table = made(slides=300, patients=300, sites=5)
    spread = split_slides(table, SplitOptions(sites="spread"))
    counts = torch.tensor([int(table.sites[i][1:]) for i in spread.test.tolist()]).bincount()
    assert counts.min() > 0.6 * counts.max()
    apart = names(split_slides(table, SplitOptions(sites="apart")), table.sites)
    assert not apart["train"] & apart["test"] and len(apart["test"]) == 1


def test_a_column_of_the_table_is_the_split():
    table = LabelTable(("a", "b", "c", "d"), ("x",) * 4, ("a", "b", "c", "d"), None, ())
    parts = ("Training", "validation", "", "test")
    split = split_slides(
        LabelTable(table.ids, table.labels, table.patients, None, parts), SplitOptions()
    )
    assert (split.train.tolist(), split.val.tolist(), split.test.tolist()) == ([0], [1], [3])


FILES = {
    "clam": ",train,val,test\n0,s0,s1,s2\n1,s3,,s4\n2,s5,,\n",
    "transmil": "train,train_label,val,val_label,test,test_label\n"
    "s0,1,s1,0,s2,1\ns3,0,,,s4,1\ns5,0,,,,\n",
    "own": "slide_id,split\ns0,train\ns3,train\ns5,train\ns1,val\ns2,test\ns4,test\n",
}


@pytest.mark.parametrize("kind", FILES)
def test_a_file_is_the_split(tmp_path, kind):
    path = tmp_path / "split.csv"
    path.write_text(FILES[kind], encoding="utf-8")
    table = LabelTable(tuple(f"s{i}" for i in range(7)), ("x",) * 7, tuple("abcdefg"))
    split = split_slides(table, SplitOptions(file=str(path)))
    assert split.train.tolist() == [0, 3, 5]
    assert (split.val.tolist(), split.test.tolist()) == ([1], [2, 4])


def test_leakage_is_refused(tmp_path):
    path = tmp_path / "split.csv"
    path.write_text(FILES["own"], encoding="utf-8")
    table = LabelTable(tuple(f"s{i}" for i in range(6)), ("x",) * 6, tuple("abcabc"))
    with pytest.raises(ValueError, match=r"patients are in more than one part.*b \(test, val\)"):
        split_slides(table, SplitOptions(file=str(path)))
    check_leakage(Split(torch.tensor([0, 3]), torch.tensor([1]), torch.tensor([2])), "abcabc")


def small(**changes):
    table = made(12, 12)
    return LabelTable(**{**table.__dict__, **changes})


def in_file(tmp_path, text):
    path = tmp_path / "split.csv"
    path.write_text(text, encoding="utf-8")
    return SplitOptions(file=str(path))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda _: SplitOptions(folds=2), r"folds must be 3 or more \(train, val, test\), got 2"),
        (lambda _: SplitOptions(fold=5), r"fold must lie in 0..4, got 5"),
        (lambda _: SplitOptions(sites="mixed"), "sites must be one of ignore, spread, apart"),
        (
            lambda _: split_slides(small(sites=None), SplitOptions(sites="spread")),
            "sites='spread' needs the sites: name their site_column",
        ),
        (
            lambda _: split_slides(
                small(patients=("p",) * 12, sites=tuple("ab" * 6)), SplitOptions(sites="apart")
            ),
            "patient 'p' has slides of the sites 'a' and 'b'",
        ),
        (
            lambda _: split_slides(small(patients=tuple("ab" * 6)), SplitOptions()),
            "2 patients cannot be shared out over 5 folds: lower folds",
        ),
        (
            lambda _: split_slides(small(parts=("dev",) * 12), SplitOptions()),
            r"knows the parts train, val and test .*got \['dev'\]",
        ),
        (
            lambda _: split_slides(
                small(labels=("a", *"b" * 11), parts=("", *["train"] * 11)), SplitOptions()
            ),
            "The train part has no slide of a: take fewer folds",
        ),
        (
            lambda p: split_slides(small(), in_file(p, "slide_id,split\nzz,train\n")),
            "names 1 slides that the labels lack: zz",
        ),
        (
            lambda p: split_slides(small(), in_file(p, "train,val,test\ns0,s0,s1\n")),
            "puts 's0' into train and val",
        ),
        (
            lambda p: split_slides(small(), in_file(p, "id,part\ns0,train\n")),
            "split.csv is no split: it needs the columns train, val, test, or slide_id, split",
        ),
        (
            lambda _: Split(torch.tensor([0]), torch.tensor([0]), torch.tensor([1])),
            "A bag is in two parts of the split",
        ),
    ],
)
def test_what_is_refused(tmp_path, call, words):
    with pytest.raises(ValueError, match=words):
        call(tmp_path)


def test_rare_classes_are_told_of(caplog):
    labels = ("a",) * 9 + ("b", "b", "b")
    table = LabelTable(tuple(f"s{i}" for i in range(12)), labels, tuple(f"p{i}" for i in range(12)))
    with caplog.at_level(logging.WARNING):
        split_slides(table, SplitOptions(folds=4, seed=1))
    assert "class b has 3 patients for 4 folds" in caplog.text


def test_class_weights_balance():
    weights = class_weights(torch.tensor([0, 0, 0, 1, -1]), 3)
    assert weights.tolist() == pytest.approx([4 / 9, 4 / 3, 0])
