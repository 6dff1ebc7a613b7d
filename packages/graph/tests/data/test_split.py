"""Splits are functions of labels, options and seed; what cannot be is said."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isoattn.graph.data.split import SplitOptions, draw_split, split_from_masks

Y = torch.arange(300) % 3


@settings(deadline=None)
@given(
    kind=st.sampled_from(["random", "stratified"]),
    fractions=st.tuples(st.floats(0, 0.5), st.floats(0, 0.3), st.floats(0, 0.2)),
    seed=st.integers(0, 99),
    unlabelled=st.integers(0, 50),
)
def test_drawn_splits_are_disjoint_labelled_and_repeatable(
    kind: str, fractions: tuple[float, float, float], seed: int, unlabelled: int
) -> None:
    y = Y.clone()
    y[:unlabelled] = -1
    options = SplitOptions(kind, fractions=fractions, seed=seed)  # type: ignore[arg-type]
    first, again = (draw_split(y, "multiclass", options) for _ in range(2))
    for part, nodes in first.items():
        assert torch.equal(nodes, again[part])
        assert bool((y[nodes] >= 0).all())
    for part, fraction in zip(("train", "val", "test"), fractions, strict=True):
        assert abs(len(first[part]) - fraction * (300 - unlabelled)) <= 3  # type: ignore[index]


def test_seed_and_index_are_independent_draws() -> None:
    drawn = [
        tuple(draw_split(Y, "multiclass", SplitOptions("random", seed=s, index=i)).train.tolist())
        for s in range(3)
        for i in range(3)
    ]
    assert len(set(drawn)) == 9


def test_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    draw_split(Y, "multiclass", SplitOptions("per_class", val=50, test=50))
    assert torch.equal(torch.get_rng_state(), before)


def test_per_class() -> None:
    options = SplitOptions("per_class", per_class=5, val=40, test=60)
    split = draw_split(Y, "multiclass", options)
    assert torch.bincount(Y[split.train]).tolist() == [5, 5, 5]
    assert (len(split.val), len(split.test)) == (40, 60)


def test_stratified_keeps_shares() -> None:
    y = torch.tensor([0] * 80 + [1] * 20)
    split = draw_split(y, "multiclass", SplitOptions("stratified"))
    assert torch.bincount(y[split.train]).tolist() == [40, 10]
    assert torch.bincount(y[split.test]).tolist() == [20, 5]


def test_masks_that_overlap_are_refused_by_name() -> None:
    masks = torch.eye(3, dtype=torch.bool)
    assert split_from_masks(*masks).val.tolist() == [1]
    with pytest.raises(ValueError, match=r"1 node\(s\) into val and test, such as \[1\]"):
        split_from_masks(masks[0], masks[1], masks[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "half"}, "must be one of public, full, .* got 'half'"),
        ({"kind": "public", "fractions": (0.5, 0.2, 0.3)}, "fractions belong to kind random"),
        ({"kind": "random", "fractions": (0.9, 0.2, 0.3)}, "together at most 1; got"),
        ({"kind": "random", "per_class": 3}, "split per_class belongs to kind per_class"),
        ({"kind": "per_class", "per_class": 0}, "split per_class is too small: 0"),
        ({"kind": "random", "index": -1}, "split index must be 0 or more, got -1"),
    ],
)
def test_options_that_do_not_fit(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SplitOptions(**options)


def test_requests_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="class 0 has 100 labelled nodes, per_class asks for 200"):
        draw_split(Y, "multiclass", SplitOptions("per_class", per_class=200))
    with pytest.raises(ValueError, match="240 nodes are left .* ask for 1500: lower them"):
        draw_split(Y, "multiclass", SplitOptions("per_class"))
    with pytest.raises(ValueError, match="multilabel: use random"):
        draw_split(torch.zeros(4, 2), "multilabel", SplitOptions("stratified"))
    with pytest.raises(ValueError, match="'public' is no drawn split"):
        draw_split(Y, "multiclass", SplitOptions("public"))
    with pytest.raises(ValueError, match="texas has no split 'full': use public, random"):
        SplitOptions("full").only("texas", "public")
    with pytest.raises(ValueError, match="cora has one public split: index must be 0, got 3"):
        SplitOptions("public", index=3).single("cora")
