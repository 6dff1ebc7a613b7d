"""Bags: what is refused by name, and the grid of the tiles."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isoattn.core.training.digest import BatchDigest
from isoattn.wsi.bags import Bag, BagError, grid_cells
from isoattn.wsi.bags.bag import collate


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=2, unique=True),
    st.sampled_from([1, 224, 256, 500.5]),
    st.integers(0, 10**5),
)
def test_cells_are_the_grid_of_the_coordinates(cells, step, origin):
    want = torch.tensor(cells)
    coords = (want * step + origin).round().long()
    torch.testing.assert_close(grid_cells(coords, step), want - want.min(0).values)


def test_the_step_is_found_where_no_file_says_it():
    coords = torch.tensor([[100, 0], [612, 0], [1124, 1024], [100, 512]])
    assert Bag(torch.ones(4, 2), coords).cells().tolist() == [[0, 0], [1, 0], [2, 2], [0, 1]]
    assert Bag(torch.ones(1, 2), coords[:1]).cells().tolist() == [[0, 0]]
    assert Bag(torch.ones(1, 2)).cells() is None


def test_grids_that_are_shifted_against_each_other_are_rounded():
    coords = torch.tensor([[0, 0], [256, 0], [1000, 3], [1256, 3]])  # contours of CLAM
    assert grid_cells(coords, 256).tolist() == [[0, 0], [1, 0], [4, 0], [5, 0]]


def test_some_tiles_keep_the_step_of_all():
    coords = torch.tensor([[0, 0], [10, 0], [20, 0], [40, 0]])
    bag = Bag(torch.arange(8.0).view(4, 2), coords)
    some = bag.take(torch.tensor([0, 3]))
    assert some.cells().tolist() == [[0, 0], [4, 0]]
    assert torch.equal(some.features, bag.features[[0, 3]])
    assert Bag(bag.features).take(torch.tensor([1])).coords is None


def test_a_batch_is_plain_data_that_hashes_by_content():
    first = Bag(torch.ones(2, 3), torch.tensor([[0, 0], [9, 0]]))
    batch = collate([(first, 1, 7, "a"), (Bag(torch.zeros(1, 3)), -1, 3, "b")])
    assert batch["id"] == ["a", "b"] and batch["label"].tolist() == [1, -1]
    assert batch["index"].tolist() == [7, 3] and batch["coords"][1] is None
    assert batch["cells"][0].tolist() == [[0, 0], [1, 0]] and batch["cells"][1] is None

    def hashed(changed):
        digest = BatchDigest()
        digest.update(changed)
        return digest.hexdigest()

    other = torch.ones(2, 3)
    other[1, 2] = 1.5
    assert hashed(batch) == hashed(dict(batch))
    assert hashed(batch) != hashed({**batch, "features": [other, batch["features"][1]]})


@pytest.mark.parametrize(
    ("bag", "words"),
    [
        (Bag(torch.ones(0, 4)), "Bag 'x' has no tiles: leave it out of the labels"),
        (Bag(torch.ones(4)), r"Bag 'x' has features \(4,\)"),
        (Bag(torch.ones(2, 5)), "Bag 'x' has 5 features a tile, the others have 4"),
        (Bag(torch.ones(2, 4).long()), "Bag 'x' has features of torch.int64"),
        (
            Bag(torch.tensor([[0.0] * 4, [0, 1, float("nan"), 0], [float("inf"), 0, 0, 0]])),
            "Bag 'x' has 2 of 3 tiles with NaN or Inf features, the first is tile 1",
        ),
        (Bag(torch.ones(2, 4), torch.zeros(3, 2).long()), r"coords \(3, 2\) for 2 tiles"),
    ],
)
def test_what_is_refused(bag, words):
    with pytest.raises(BagError, match=words):
        bag.checked("x", 4)


def test_a_step_of_nothing():
    with pytest.raises(BagError, match="above 0 level-0 pixels, got 0"):
        grid_cells(torch.zeros(2, 2).long(), 0)
