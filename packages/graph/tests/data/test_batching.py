"""Each batch is a function of (seed, epoch, index), whatever is asked for before it."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isoattn.graph.data import BatchOptions, BlockModel, FarRecall, SplitOptions
from isoattn.graph.data.batching import Incoming, TrainBatches, full_batch
from isoattn.graph.task import NodeBatch, NodeTask

TASK = BlockModel(nodes=60, degree=6, split=SplitOptions("random", seed=3)).load()
PARTITION = BatchOptions("partition", size=14)
NEIGHBOR = BatchOptions("neighbor", size=7, fanout=(3, 2))


def same(first: NodeBatch, second: NodeBatch) -> bool:
    pairs = [(first.y, second.y), (first.target, second.target)]
    pairs += [(first.graph.x, second.graph.x), (first.graph.edge_index, second.graph.edge_index)]
    return all(torch.equal(a, b) for a, b in pairs)


def induced_by_hand(task: NodeTask, nodes: torch.Tensor) -> set[tuple[int, int]]:
    inside = set(nodes.tolist())
    return {(a, b) for a, b in task.graph.edge_index.T.tolist() if a in inside and b in inside}


@pytest.mark.parametrize("options", [PARTITION, NEIGHBOR], ids=["partition", "neighbor"])
def test_a_batch_depends_on_seed_epoch_and_index_alone(options: BatchOptions) -> None:
    one, other = (TrainBatches(TASK, options, seed=4) for _ in range(2))
    other.set_epoch(1)
    list(map(other.__getitem__, range(len(other))))
    state = torch.get_rng_state()
    for dataset in (one, other):
        dataset.set_epoch(2)
    for index in reversed(range(len(one))):
        assert same(one[index], other[index])
    assert torch.equal(torch.get_rng_state(), state)
    other.set_epoch(3)
    assert not same(one[0], other[0])
    assert not same(one[0], TrainBatches(TASK, options, seed=5)[0])
    with pytest.raises(IndexError, match=f"batch {len(one)} of {len(one)}"):
        one[len(one)]


@pytest.mark.parametrize("nodes", ["all", "train"])
def test_partition_covers_each_node_once(nodes: str) -> None:
    options = BatchOptions("partition", size=14, nodes=nodes)  # type: ignore[arg-type]
    dataset = TrainBatches(TASK, options, seed=0)
    batches = list(map(dataset.__getitem__, range(len(dataset))))
    seen = torch.cat([batch.graph.node for batch in batches if batch.graph.node is not None])
    expected = torch.arange(60) if nodes == "all" else TASK.split.train
    assert torch.equal(seen.sort().values, expected)
    sizes = [len(batch.y) for batch in batches]
    assert max(sizes) <= 14 and max(sizes) - min(sizes) <= 1
    assert sum(int(batch.target.sum()) for batch in batches) == len(TASK.split.train)
    for batch in batches:
        assert batch.target.any()
        assert batch.graph.node is not None
        assert torch.equal(batch.graph.x, TASK.graph.x[batch.graph.node])
        assert torch.equal(batch.y, TASK.y[batch.graph.node])
        real = {(a, b) for a, b in batch.graph.node[batch.graph.edge_index].T.tolist()}
        assert real == induced_by_hand(TASK, batch.graph.node)
    if nodes == "train":
        assert all(bool(batch.target.all()) for batch in batches)


def test_neighbours_are_real_and_within_the_fanout() -> None:
    dataset = TrainBatches(TASK, NEIGHBOR, seed=0)
    counted = 0
    for index in range(len(dataset)):
        batch = dataset[index]
        assert batch.graph.node is not None
        seeds = int(batch.target.sum())
        counted += seeds
        assert len(batch.y) <= seeds * (1 + 3 + 3 * 2)
        assert len(torch.unique(batch.graph.node)) == len(batch.y)
        real = {(a, b) for a, b in batch.graph.node[batch.graph.edge_index].T.tolist()}
        assert real == induced_by_hand(TASK, batch.graph.node)
    assert counted == len(TASK.split.train)


@settings(deadline=None)
@given(seed=st.integers(0, 999), count=st.integers(1, 6), size=st.integers(0, 60))
def test_sampling_without_replacement(seed: int, count: int, size: int) -> None:
    incoming = Incoming(TASK.graph.edge_index, 60)
    generator = torch.Generator().manual_seed(seed)
    nodes = torch.randperm(60, generator=generator)[:size]
    _, position = incoming.of(nodes)
    degree = torch.bincount(position, minlength=size)
    taken = incoming.sampled(nodes, count, generator)
    assert len(taken) == int(degree.clamp(max=count).sum())
    for node in nodes[:3]:
        own, _ = incoming.of(node[None])
        some = incoming.sampled(node[None], count, generator)
        assert len(torch.unique(some)) == len(some)
        assert set(some.tolist()) <= set(own.tolist())


def test_sampling_takes_each_neighbour_equally_often(
    small_task: Callable[..., NodeTask],
) -> None:
    star = small_task([(0, i) for i in range(1, 5)], 5)
    incoming = Incoming(star.graph.edge_index, 5)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.cat([incoming.sampled(torch.tensor([0]), 2, generator) for _ in range(500)])
    assert torch.allclose(torch.bincount(drawn)[1:] / 1000, torch.tensor(0.25), atol=0.05)


def test_direction_is_that_of_messages() -> None:
    incoming = Incoming(torch.tensor([[0, 1], [1, 2]]), 3)  # 0 -> 1 -> 2
    assert incoming.of(torch.tensor([2]))[0].tolist() == [1]
    assert incoming.of(torch.tensor([0]))[0].tolist() == []


def test_several_graphs_stay_whole() -> None:
    task = FarRecall(graphs=12, pairs=3).load()
    dataset = TrainBatches(task, BatchOptions("partition", size=24), seed=0)
    assert len(dataset) == 3
    for index in range(3):
        batch = dataset[index]
        assert batch.graph.segments is not None and batch.target.any()
        assert torch.unique(batch.graph.segments, return_counts=True)[1].tolist() == [6] * 4
    train = BatchOptions("partition", size=18, nodes="train")
    trained = [TrainBatches(task, train, seed=0)[i] for i in range(1)][0].graph.segments
    assert trained is not None
    with_train = task.graph.segments[task.split.train]  # type: ignore[index]
    assert set(trained.tolist()) <= set(with_train.tolist())


def test_full_batches() -> None:
    batch = TrainBatches(TASK, BatchOptions(), seed=0)[0]
    assert batch.graph is TASK.graph and int(batch.target.sum()) == len(TASK.split.train)
    assert int(full_batch(TASK, "test").target.sum()) == len(TASK.split.test)
    assert bool(full_batch(TASK, None).target.all())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "cluster"}, "must be full, partition or neighbor, got 'cluster'"),
        ({"size": 3}, "size belongs to mode partition or neighbor, got mode full"),
        ({"mode": "partition", "size": 0}, "size must be 1 or more, got 0"),
        ({"mode": "neighbor", "nodes": "all"}, "nodes belongs to mode partition"),
        ({"mode": "partition", "nodes": "val"}, "must be all or train, got 'val'"),
        ({"mode": "partition", "fanout": (3,)}, "fanout belongs to mode neighbor"),
        ({"mode": "neighbor", "fanout": (3, 0)}, r"fanout is a number above 0.*got \[3, 0\]"),
    ],
)
def test_options_that_do_not_fit(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BatchOptions(**options)


def test_parts_without_train_nodes_are_refused(small_task: Callable[..., NodeTask]) -> None:
    task = small_task([(0, 1)], 10, train=[2])
    with pytest.raises(ValueError, match="gives 5 batches of small, whose 1 train nodes"):
        TrainBatches(task, BatchOptions("partition", size=2), seed=0)
    with pytest.raises(ValueError, match="small has no labelled train node"):
        TrainBatches(small_task([(0, 1)], 4, train=[]), BatchOptions(), seed=0)
