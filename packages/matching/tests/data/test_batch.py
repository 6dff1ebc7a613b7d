"""Pairs of different sizes in one batch, padded at the bottom and on the right."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isoattn.matching.data import Pair, collate

SIDES = st.tuples(st.integers(1, 20), st.integers(1, 20))


def ones(size: tuple[int, int]) -> torch.Tensor:
    return torch.ones(size)


@given(st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=4))
@settings(deadline=None, max_examples=25)
def test_padding_and_masks(sizes):
    pairs = [Pair(ones(first), ones(second), k) for k, (first, second) in enumerate(sizes)]
    batch = collate(pairs)
    for side in (0, 1):
        image, own = batch[f"image{side}"], [pair[side] for pair in sizes]
        largest = tuple(max(size[axis] for size in own) for axis in (0, 1))
        assert image.shape == (len(sizes), 1, *largest)
        assert batch[f"size{side}"].tolist() == [list(size) for size in own]
        assert (f"mask{side}" in batch) == any(size != largest for size in own)
        mask = batch.get(f"mask{side}", torch.ones_like(image[:, 0], dtype=torch.bool))
        assert mask.dtype == torch.bool and torch.equal(mask, image[:, 0] > 0)
        for number, (height, width) in enumerate(own):
            assert mask[number, :height, :width].all()
            assert int(mask[number].sum()) == height * width


def test_a_given_size():
    batch = collate([Pair(ones((8, 9)), ones((10, 10)), 0, name0="a.png")], pad_to=(10, 10))
    assert batch["image0"].shape == (1, 1, 10, 10) and "mask0" in batch and "mask1" not in batch
    with pytest.raises(ValueError, match=r"Image a.png of pair 0 is \(8, 9\), larger than pad_to"):
        collate([Pair(ones((8, 9)), ones((8, 8)), 0, name0="a.png")], pad_to=(8, 8))


def test_what_a_pair_lacks_is_marked():
    depth = torch.full((4, 4), 3.0)
    full = Pair(
        ones((4, 4)),
        ones((4, 4)),
        3,
        "a",
        "b",
        (2.0, 1.0),
        (1.0, 1.0),
        homography=torch.eye(3),
        depth0=depth,
        depth1=depth,
        map0=torch.zeros(4, 4, 2),
        map1=torch.zeros(4, 4, 2),
        pose=torch.eye(4),
        points0=torch.zeros(5, 2),
        points1=torch.zeros(5, 2),
        strata={"rotation": 3.0},
    )
    bare = Pair(ones((6, 5)), ones((4, 4)), 7, strata={"scale": 1.5})
    batch = collate([full, bare])
    assert batch["index"].tolist() == [3, 7] and batch["name0"] == ["a", ""]
    assert batch["scale0"].tolist() == [[2.0, 1.0], [1.0, 1.0]]
    assert batch["homography"][1].isnan().all() and batch["pose"][1].isnan().all()
    assert batch["depth0"].shape == (2, 6, 5) and not batch["depth0"][1].any()
    assert not batch["depth0"][0, 4:].any() and (batch["depth0"][0, :4, :4] == 3).all()
    assert batch["map0"].shape == (2, 6, 5, 2)
    assert batch["map0"][1].isnan().all() and batch["map0"][0, 4:].isnan().all()
    assert batch["points_index"].tolist() == [0] * 5
    assert batch["points_known"].tolist() == [True, False]
    assert "intrinsics0" not in batch
    for name, values in (("rotation", [3.0, None]), ("scale", [None, 1.5])):
        got = batch["strata"][name]
        assert [None if v != v else v for v in got.tolist()] == values


def test_everything_is_single_precision_or_integer():
    pair = Pair(ones((4, 4)), ones((4, 4)), 0, homography=torch.eye(3, dtype=torch.float64))
    for key, value in collate([pair]).items():
        if isinstance(value, torch.Tensor):
            assert value.dtype in (torch.float32, torch.int64, torch.bool), key
