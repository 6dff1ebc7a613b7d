"""Order is a function of (seed, epoch); a loader continues with exactly the remaining batches."""

import pickle
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset

from isoattn.core.training import EpochBatchSampler, ResumableLoader


class Items(Dataset[Any]):
    """Item i is (i, epoch)."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, self.epoch


def as_list(items: list[Any]) -> list[Any]:
    return items


def loader(size: int = 23, batch: int = 4, seed: int = 7, workers: int = 0) -> ResumableLoader[Any]:
    sampler = EpochBatchSampler(size, batch, seed=seed)
    return ResumableLoader(Items(size), sampler, collate_fn=as_list, num_workers=workers)


@given(
    size=st.integers(1, 60),
    batch=st.integers(1, 20),
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 50),
)
def test_every_item_once_an_epoch(size: int, batch: int, seed: int, epoch: int) -> None:
    sampler = EpochBatchSampler(size, batch, seed=seed)
    sampler.set_epoch(epoch)
    batches = list(sampler)
    assert sorted(i for b in batches for i in b) == list(range(size))
    assert len(batches) == len(sampler)
    assert all(len(b) == batch for b in batches[:-1])
    assert batches == list(sampler)  # no hidden state


@given(
    size=st.integers(1, 60),
    batch=st.integers(1, 10),
    world=st.integers(1, 5),
    drop=st.booleans(),
)
def test_ranks_share_the_items_and_take_equal_steps(
    size: int, batch: int, world: int, drop: bool
) -> None:
    if drop and -(-size // world) < batch:
        return
    ranks = [
        EpochBatchSampler(size, batch, seed=0, rank=r, world_size=world, drop_last=drop)
        for r in range(world)
    ]
    lists = [list(r) for r in ranks]
    assert len({len(b) for b in lists}) == 1 == len({len(r) for r in ranks})
    assert all(len(b) == len(r) for b, r in zip(lists, ranks, strict=True))
    seen = [i for b in lists for group in b for i in group]
    if drop:
        assert all(len(group) == batch for b in lists for group in b)
    else:
        assert set(seen) == set(range(size))
        assert len(seen) < size + world


def test_order_changes_with_epoch_and_seed_and_not_with_the_global_generator() -> None:
    def order(seed: int, epoch: int) -> list[list[int]]:
        sampler = EpochBatchSampler(50, 8, seed=seed)
        sampler.set_epoch(epoch)
        return list(sampler)

    before = torch.get_rng_state()
    first = order(0, 0)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(99)
    assert first == order(0, 0)
    assert first != order(0, 1) != order(1, 0) != first


def test_unshuffled_and_drop_last() -> None:
    sampler = EpochBatchSampler(7, 3, seed=0, shuffle=False, drop_last=True)
    assert list(sampler) == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 0, "batch_size": 1}, "at least one item"),
        ({"size": 3, "batch_size": 0}, "batch_size must be at least 1"),
        ({"size": 3, "batch_size": 4, "drop_last": True}, "no full batch of 4"),
        ({"size": 3, "batch_size": 1, "rank": 2, "world_size": 2}, "rank must lie in 0..1"),
    ],
)
def test_impossible_samplers_say_why(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EpochBatchSampler(seed=0, **arguments)


@pytest.mark.parametrize("workers", [0, 2])
def test_resume_continues_with_exactly_the_remaining_batches(workers: int) -> None:
    straight = []
    whole = loader()
    for epoch in range(3):
        whole.set_epoch(epoch)
        straight.append(list(whole))
    for stop in (0, 1, 3, 6):
        first = loader(workers=workers)
        first.set_epoch(1)
        iterator = iter(first)
        head = [next(iterator) for _ in range(stop)]
        state = pickle.loads(pickle.dumps(first.state_dict()))
        assert state == {"epoch": 1, "batches": stop}  # prefetched batches do not count
        del iterator
        second = loader(workers=workers)
        second.load_state_dict(state)
        assert second.state_dict() == state
        assert head + list(second) == straight[1]
        assert second.state_dict() == {"epoch": 1, "batches": 6}
        second.set_epoch(2)
        assert second.state_dict() == {"epoch": 2, "batches": 0}
        assert list(second) == straight[2]


def test_a_loaded_state_survives_iterators_that_draw_nothing() -> None:
    expected = list(loader())[2:]
    resumed = loader()
    resumed.load_state_dict({"epoch": 0, "batches": 2})
    iter(resumed)
    assert list(resumed) == expected


def test_a_state_of_another_epoch_starts_the_epoch_from_its_first_batch() -> None:
    resumed = loader()
    resumed.load_state_dict({"epoch": 0, "batches": 4})
    iterator = iter(resumed)
    resumed.set_epoch(1)  # Lightning's order of calls after a state saved at an epoch's end
    fresh = loader()
    fresh.set_epoch(1)
    assert list(iterator) == list(fresh)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_dataset_is_told_the_epoch(workers: int) -> None:
    data = loader(workers=workers)
    for epoch in (0, 4):
        data.set_epoch(epoch)
        assert {e for batch in data for _, e in batch} == {epoch}


@pytest.mark.parametrize("workers", [0, 1])
def test_iterating_leaves_the_global_generator_alone(workers: int) -> None:
    data = loader(workers=workers)
    before = torch.get_rng_state()
    list(data)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"epoch": 0, "batches": 7}, "Data or batch size are not those"),
        ({"epoch": -1, "batches": 0}, "Data or batch size are not those"),
        ({"position": 3}, "another kind of loader"),
    ],
)
def test_states_that_do_not_fit_are_refused(state: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        loader().load_state_dict(state)
