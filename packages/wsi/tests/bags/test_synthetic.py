"""Made bags: deterministic, with a known answer that an oracle finds and a mean does not."""

import pytest
import torch

from isoattn.wsi.bags import Difficulty, MeetingBags, NeedleBags
from isoattn.wsi.bags.synthetic import FIRST, SECOND, distances
from isoattn.wsi.metrics import macro_auc

SOURCES = pytest.mark.parametrize("source", [NeedleBags, MeetingBags])


@pytest.fixture(scope="module")
def tasks():
    return {source: source().load() for source in (NeedleBags, MeetingBags)}


def auc(scores, labels):
    scores = torch.tensor(scores)
    return macro_auc(torch.stack([-scores, scores], 1), labels)


@SOURCES
def test_a_seed_is_the_data(tasks, source):
    task = tasks[source]
    again, other = source().load(), source(seed=1).load()
    for index in (0, 7, 100):
        a, b = task.reader.read(index), again.reader.read(index)
        assert torch.equal(a.features, b.features) and torch.equal(a.coords, b.coords)
        assert task.reader.shape(index) == tuple(a.features.shape)
        assert a.features.shape != other.reader.read(index).features.shape or not torch.equal(
            a.features, other.reader.read(index).features
        )
        torch.testing.assert_close(a.cells() * 256 + a.coords.min(0).values, a.coords)


@SOURCES
def test_parts_and_classes_are_balanced(tasks, source):
    task = tasks[source]
    sizes = [len(members) for _, members in task.split.items()]
    assert sizes == [120, 60, 60]
    assert all(task.labels[m].float().mean() == 0.5 for _, m in task.split.items())


@SOURCES
def test_the_oracle_knows_and_the_mean_does_not(tasks, source):
    task = tasks[source]
    oracle = [task.reader.oracle(i) for i in range(len(task.ids))]
    assert auc(oracle, task.labels) > 0.97
    direction = task.reader.directions_3I[FIRST] - task.reader.directions_3I[SECOND]
    means = [float(task.reader.read(i).features.mean(0) @ direction) for i in range(len(task.ids))]
    assert auc(means, task.labels) < 0.75


def test_needles_have_mimics_and_their_share_is_set(tasks):
    task = tasks[NeedleBags]
    for index in range(20):
        types = task.reader.tile_types(index)
        want = FIRST if task.labels[index] else SECOND
        assert set(types.tolist()) == {0, want}
        assert int((types > 0).sum()) == max(1, round(0.04 * len(types)))


def test_types_meet_in_positive_bags_alone(tasks):
    task = tasks[MeetingBags]
    counts = torch.zeros(2, 2)
    for index in range(len(task.ids)):
        types, cells = task.reader.tile_types(index), task.reader.read(index).cells()
        gap = distances(cells[types == FIRST], cells[types == SECOND])
        assert int(gap.min()) == 1 if task.labels[index] else int(gap.min()) > 2
        counts[task.labels[index]] += torch.tensor(
            [int((types == FIRST).sum()), int((types == SECOND).sum())]
        )
    torch.testing.assert_close(counts[:, 0], counts[:, 1])


def touching(task, index):
    """Share of the tiles of the second type that touch one of the first."""
    types, cells = task.reader.tile_types(index), task.reader.read(index).cells()
    gap = distances(cells[types == SECOND], cells[types == FIRST]).amin(1)
    return float((gap == 1).float().mean())


@pytest.mark.parametrize(("meeting", "want"), [(1.0, 1.0), (0.5, 0.5), (0.0, 0.25)])
def test_how_many_touch_is_set(meeting, want):
    difficulty = Difficulty(bags=16, tiles=136, features=8, marked=0.03)  # four of each type
    task = MeetingBags(difficulty, meeting=meeting).load()
    for index in range(16):
        assert touching(task, index) == (want if task.labels[index] else 0.0)


def test_without_signal_nobody_can_know():
    task = NeedleBags(Difficulty(bags=120, signal=0.0)).load()
    assert abs(auc([task.reader.oracle(i) for i in range(120)], task.labels) - 0.5) < 0.15


@SOURCES
def test_the_global_generator_is_left_alone(tasks, source):
    before = torch.get_rng_state()
    source().load().reader.read(3)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Difficulty(bags=15), "16 bags, 9 tiles and 3 features at least"),
        (lambda: Difficulty(tiles=(50, 40)), r"fewest before most; got .*tiles=\[50, 40\]"),
        (lambda: Difficulty(marked=0.5), r"marked lies in \(0, 0.2\].*got marked=0.5"),
        (lambda: MeetingBags(Difficulty()), "needs room for tiles that are far apart"),
        (lambda: MeetingBags(meeting=1.5), r"meeting is a share in \[0, 1\], got 1.5"),
    ],
)
def test_messages(call, words):
    with pytest.raises(ValueError, match=words):
        call()
