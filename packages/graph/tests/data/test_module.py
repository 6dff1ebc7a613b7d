"""The data module: what a model is told, what is refused, and a run that resumes mid-epoch."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import Tensor

from isoattn.graph.data import BatchOptions, BlockModel, KnnGraph, NodeData, TaskSource
from isoattn.graph.graph import Graph
from isoattn.graph.task import NodeBatch, NodeTask

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
]

EPOCHS = 3
BATCHES = 4
MODES = {
    "partition": BatchOptions("partition", size=25),
    "train only": BatchOptions("partition", size=13, nodes="train"),
    "neighbor": BatchOptions("neighbor", size=13, fanout=(4, 2)),
}


class Given(TaskSource):
    def __init__(self, task: NodeTask) -> None:
        self.task = task

    def load(self) -> NodeTask:
        return self.task


def blocks(**options: Any) -> BlockModel:
    return BlockModel(nodes=100, classes=4, features=5, degree=5, **options)


class Recorder(LightningModule):
    """A linear model on neighbour sums that writes down what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(5, 4)
        self.seen: list[tuple[int, tuple[int, ...], int, float]] = []
        self.counted: list[int] = []

    def logits(self, batch: NodeBatch) -> Tensor:
        source, target = batch.graph.edge_index
        return self.layer(batch.graph.x.index_add(0, target, batch.graph.x[source]))

    def training_step(self, batch: NodeBatch, batch_index: int) -> Tensor:
        assert batch.graph.node is not None
        loss = torch.nn.functional.cross_entropy(
            self.logits(batch)[batch.target], batch.y[batch.target]
        )
        ids = tuple(batch.graph.node.tolist())
        self.seen.append((self.current_epoch, ids, batch.graph.num_edges, float(loss.detach())))
        return loss

    def validation_step(self, batch: NodeBatch, batch_index: int) -> None:
        self.counted.append(int(batch.target.sum()))

    def predict_step(self, batch: NodeBatch, batch_index: int) -> Tensor:
        return self.logits(batch)[batch.target]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class StopAfter(Callback):
    class Stopped(Exception):
        pass

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step == self.steps:
            raise self.Stopped


def trainer(folder: Path, *callbacks: Callback) -> Trainer:
    return Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        devices=1,
        max_epochs=EPOCHS,
        logger=False,
        num_sanity_val_steps=0,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
        enable_checkpointing=any(isinstance(c, ModelCheckpoint) for c in callbacks),
    )


def fresh() -> Recorder:
    torch.manual_seed(0)
    return Recorder()


@pytest.mark.parametrize("mode", MODES)
def test_resume_equals_the_straight_run(mode: str, tmp_path: Path) -> None:
    def data() -> NodeData:
        return NodeData(blocks(), MODES[mode], seed=5)

    straight = fresh()
    trainer(tmp_path / "straight").fit(straight, datamodule=data())
    assert len(straight.seen) == EPOCHS * BATCHES
    assert straight.counted == [25] * EPOCHS
    each_step = {"every_n_train_steps": 1}
    each_epoch = {"every_n_epochs": 1, "save_on_train_epoch_end": True}
    for stop, save in ((3, each_step), (6, each_step), (6, each_epoch)):
        folder = tmp_path / f"{stop}{len(save)}"
        with pytest.raises(StopAfter.Stopped):
            trainer(folder, ModelCheckpoint(folder, **save), StopAfter(stop)).fit(
                fresh(), datamodule=data()
            )
        [path] = folder.glob("*.ckpt")
        done = torch.load(path, weights_only=True)["global_step"]
        assert done == (stop if save is each_step else 4)
        torch.manual_seed(123)  # the global generator must not matter
        second = fresh()
        trainer(folder, ModelCheckpoint(folder, **save)).fit(
            second, datamodule=data(), ckpt_path=str(path), weights_only=True
        )
        assert second.seen == straight.seen[done:]
        assert torch.equal(second.layer.weight, straight.layer.weight)


def test_prefetching_workers_give_the_same_batches() -> None:
    runs = []
    for workers in (0, 2):
        loader = NodeData(
            blocks(), MODES["neighbor"], seed=1, num_workers=workers
        ).train_dataloader()
        loader.set_epoch(1)
        runs.append([batch.graph.node.tolist() for batch in loader])
    assert runs[0] == runs[1] and len(runs[0]) == BATCHES


def test_what_a_model_must_know() -> None:
    data = NodeData()
    assert isinstance(data.source, KnnGraph)
    data.prepare_data()
    data.setup("fit")
    assert (data.in_dim, data.num_classes) == (64, 10) and data.class_names[3] == "3"
    assert "constant_features" in {finding.kind for finding in data.report.warnings}
    [batch] = data.val_dataloader()
    assert int(batch.target.sum()) == len(data.task.split.val) and batch.graph.node is None
    [batch] = data.test_dataloader()
    assert int(batch.target.sum()) == len(data.task.split.test)
    [batch] = data.predict_dataloader()
    assert bool(batch.target.all())
    with pytest.raises(ValueError, match="NodeData has no seed"):
        data.train_dataloader()
    data.data_seed = 3
    assert len(data.train_dataloader()) == 1


def test_damaged_data_are_refused_at_setup() -> None:
    task = blocks().load()
    x = task.graph.x.clone()
    x[7] = float("nan")
    data = NodeData(Given(replace(task, graph=Graph(x, task.graph.edge_index))))
    with pytest.raises(ValueError, match=r"block_model cannot be trained on: features_not_finite"):
        data.setup("fit")


def test_inductive_prediction_on_another_graph(tmp_path: Path) -> None:
    other = BlockModel(nodes=30, classes=4, features=5, seed=9)
    data = NodeData(blocks(), predict_source=other, seed=0)
    logits = trainer(tmp_path).predict(fresh(), datamodule=data)
    assert logits is not None and [tuple(part.shape) for part in logits] == [(30, 4)]
    data.check_features(5)
    wrong = NodeData(blocks(), predict_source=BlockModel(features=6))
    with pytest.raises(ValueError, match="has 6 features a node, the model takes 5"):
        wrong.check_features(5)


def test_classes_are_mapped_by_name(small_task: Callable[..., NodeTask]) -> None:
    task = small_task([(0, 1)], 4)
    task = replace(task, classes=("b", "a"), y=torch.tensor([0, 1, 0, -1]))
    data = NodeData(Given(task))
    before = data.fingerprint()
    assert data.fingerprint() == before
    data.check_classes(["a", "b", "c"])
    assert data.task.y.tolist() == [1, 0, 1, -1] and data.num_classes == 3
    assert data.fingerprint() != before
    assert data.predict_task.classes == ("a", "b", "c")
    with pytest.raises(ValueError, match=r"classes that the model lacks .*\['b'\]"):
        data.check_classes(["a", "c"])


def test_class_counts(small_task: Callable[..., NodeTask]) -> None:
    task = replace(small_task([(0, 1)], 6, train=[0, 2, 4, 1], classes=3), y=torch.arange(6) % 2)
    assert NodeData(Given(task)).class_counts() == [3, 1, 0]


def test_what_was_left_out_is_counted(small_task: Callable[..., NodeTask]) -> None:
    task = replace(
        small_task([(0, 1)], 4),
        facts={"edges": {"self_loops_dropped": 2, "duplicates_dropped": 0, "entries": 2}},
    )
    assert NodeData(Given(task)).skipped() == {"self_loops_dropped": 2}
