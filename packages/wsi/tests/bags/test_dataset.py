"""Streaming: what is drawn is a function of seed, epoch and bag."""

import pytest
import torch

from isoattn.wsi.bags import BagDataset, Difficulty, MeetingBags, NeedleBags
from isoattn.wsi.bags.dataset import moments


@pytest.fixture(scope="module")
def task():
    return NeedleBags(Difficulty(bags=24, tiles=(20, 40), features=4)).load()


def tiles_of(item):
    return item[0].features[:, 0].tolist()


def test_all_tiles_without_a_limit(task):
    data = BagDataset(task, task.split.val)
    assert len(data) == len(task.split.val)
    bag, label, index, name = data[2]
    assert index == int(task.split.val[2]) and name == task.ids[index]
    assert label == int(task.labels[index])
    assert torch.equal(bag.features, task.reader.read(index).features)


def test_drawn_tiles_stay_in_order_and_depend_on_seed_epoch_and_bag_alone(task):
    data = BagDataset(task, task.split.train, max_tokens=10, seed=3)
    first = [tiles_of(data[i]) for i in range(len(data))]
    assert [tiles_of(data[i]) for i in reversed(range(len(data)))] == first[::-1]
    assert all(len(tiles) == 10 for tiles in first)
    whole = task.reader.read(data[0][2]).features[:, 0].tolist()
    assert [whole.index(x) for x in first[0]] == sorted(whole.index(x) for x in first[0])
    data.set_epoch(1)
    second = [tiles_of(data[i]) for i in range(len(data))]
    assert second != first
    data.set_epoch(0)
    assert tiles_of(data[4]) == first[4]
    turned = BagDataset(task, task.split.train.flip(0), max_tokens=10, seed=3)
    assert tiles_of(turned[0]) == first[-1]
    other = BagDataset(task, task.split.train, max_tokens=10, seed=4)
    assert tiles_of(other[0]) != first[0]


def test_places_are_drawn_with_the_tiles():
    task = MeetingBags(Difficulty(bags=16, tiles=(60, 70), features=4, marked=0.03)).load()
    bag = BagDataset(task, task.split.train, max_tokens=5)[0][0]
    whole = task.reader.read(0)
    place = {
        tuple(x): tuple(c)
        for x, c in zip(whole.features.tolist(), whole.coords.tolist(), strict=True)
    }
    assert [place[tuple(x)] for x in bag.features.tolist()] == [
        tuple(c) for c in bag.coords.tolist()
    ]


def test_weights_draw_each_class_as_often(task):
    members = torch.cat(
        [task.split.train[task.labels[task.split.train] == 0], task.split.train[1:2]]
    )
    assert task.labels[members].tolist() == [0] * 6 + [1]
    data = BagDataset(task, members, seed=0, weights=torch.tensor([1 / 6, 1.0]))
    drawn = []
    for epoch in range(60):
        data.set_epoch(epoch)
        drawn += [data[i][1] for i in range(len(data))]
    assert abs(sum(drawn) / len(drawn) - 0.5) < 0.08
    data.set_epoch(7)
    once = data.drawn.tolist()
    data.set_epoch(8)
    assert data.drawn.tolist() != once
    data.set_epoch(7)
    assert data.drawn.tolist() == once


def test_the_global_generator_is_left_alone(task):
    before = torch.get_rng_state()
    data = BagDataset(task, task.split.train, max_tokens=3, weights=torch.ones(2))
    data.set_epoch(3)
    _ = data[0]
    assert torch.equal(torch.get_rng_state(), before)


def test_moments_are_those_of_all_tiles(task):
    everything = torch.cat([task.reader.read(i).features for i in task.split.train.tolist()])
    mean, deviation = moments(task, task.split.train)
    torch.testing.assert_close(mean, everything.double().mean(0))
    torch.testing.assert_close(deviation, everything.double().std(0, correction=0))


def test_moments_do_not_cancel(task):
    class Shifted:
        def read(self, index):
            bag = task.reader.read(index)
            return type(bag)(1e-3 * bag.features.double() + 1e4)

    from dataclasses import replace

    far = replace(task, reader=Shifted())
    _, want = moments(task, task.split.train)
    _, got = moments(far, task.split.train)
    torch.testing.assert_close(got, 1e-3 * want, rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_tokens": 0}, "max_tokens must be 1 or more, or None for all; got 0"),
        ({"weights": torch.zeros(2)}, "leave no bag to draw"),
    ],
)
def test_messages(task, options, words):
    with pytest.raises(ValueError, match=words):
        BagDataset(task, task.split.train, **options)
