"""Stop anywhere and resume: the same items in the same order, augmented the same."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import Tensor

from isoattn.vision.data import DigitsData, ImageDataModule

pytestmark = [
    # Lightning's advice on worker counts, and its use of a torch tree class that torch deprecates.
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
]

EPOCHS = 3
BATCHES = 5


class Recorder(LightningModule):
    """A linear model that writes down what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64, 10)
        self.seen: list[tuple[int, tuple[int, ...], float]] = []

    def training_step(self, batch: dict[str, Any], batch_index: int) -> Tensor:
        ids = tuple(batch["index"].tolist())
        self.seen.append((self.current_epoch, ids, float(batch["image"].double().sum())))
        return torch.nn.functional.cross_entropy(
            self.layer(batch["image"].flatten(1)), batch["label"]
        )

    def validation_step(self, batch: dict[str, Any], batch_index: int) -> None:
        self.log("val", self.layer(batch["image"].flatten(1)).mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class StopAfter(Callback):
    """Ends the process of training after some steps, as a kill would, but with a handle on it."""

    class Stopped(Exception):
        pass

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step == self.steps:
            raise self.Stopped


class Few(DigitsData):
    """Digits with epochs of five batches."""

    def __init__(self, workers: int = 0) -> None:
        super().__init__(batch_size=270, seed=5, augment="shift", num_workers=workers)


def trainer(folder: Path, *callbacks: Callback, **options: Any) -> Trainer:
    settings: dict[str, Any] = {"max_epochs": EPOCHS, "num_sanity_val_steps": 0} | options
    return Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
        enable_checkpointing=any(isinstance(c, ModelCheckpoint) for c in callbacks),
        **settings,
    )


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorder]:
    model = fresh()
    trainer(tmp_path_factory.mktemp("straight")).fit(model, datamodule=Few())
    assert len(model.seen) == EPOCHS * BATCHES
    assert sorted(i for e, ids, _ in model.seen if e == 1 for i in ids) == sorted(
        i for e, ids, _ in model.seen if e == 0 for i in ids
    )
    yield model


def fresh() -> Recorder:
    torch.manual_seed(0)
    return Recorder()


def stop_and_resume(
    folder: Path, save: dict[str, Any], stop: int, data: ImageDataModule, **options: Any
) -> tuple[int, Recorder]:
    first = fresh()
    keep = ModelCheckpoint(folder, **save)
    with pytest.raises(StopAfter.Stopped):
        trainer(folder, keep, StopAfter(stop), **options).fit(first, datamodule=data)
    [path] = sorted(folder.glob("*.ckpt"))
    done = torch.load(path, weights_only=True)["global_step"]
    torch.manual_seed(123)  # the global generator must not matter
    second = fresh()
    again = trainer(folder, ModelCheckpoint(folder, **save), **options)
    again.fit(second, datamodule=data, ckpt_path=str(path), weights_only=True)
    return done, second


EACH_STEP = {"every_n_train_steps": 1}
EACH_EPOCH = {"every_n_epochs": 1, "save_on_train_epoch_end": True}
SAVES: dict[str, tuple[dict[str, Any], list[int]]] = {
    "inside an epoch": (EACH_STEP, [1, 3, 7, 13]),
    "last batch of an epoch": ({"every_n_train_steps": 5}, [6, 11]),
    "end of an epoch": (EACH_EPOCH, [5, 7, 12]),
    "end of validation": ({"every_n_epochs": 1, "save_on_train_epoch_end": False}, [6, 10]),
}


@pytest.mark.parametrize("moment", SAVES)
def test_resume_equals_the_straight_run(moment: str, straight: Recorder, tmp_path: Path) -> None:
    options, stops = SAVES[moment]
    for stop in stops:
        folder = tmp_path / str(stop)
        done, second = stop_and_resume(folder, options, stop, Few())
        assert 0 < done <= stop
        assert second.seen == straight.seen[done:]
        assert torch.equal(second.layer.weight, straight.layer.weight)


def test_resume_with_prefetching_workers(straight: Recorder, tmp_path: Path) -> None:
    done, second = stop_and_resume(tmp_path, EACH_STEP, 7, Few(workers=2))
    assert done == 7
    assert second.seen == straight.seen[7:]
    assert torch.equal(second.layer.weight, straight.layer.weight)


def test_resume_with_a_limited_epoch(tmp_path: Path) -> None:
    options = {"limit_train_batches": 3}
    whole = fresh()
    trainer(tmp_path / "straight", **options).fit(whole, datamodule=Few())
    for number, (kind, stop) in enumerate([(EACH_EPOCH, 4), (EACH_STEP, 5)]):
        folder = tmp_path / str(number)
        done, second = stop_and_resume(folder, kind, stop, Few(), **options)
        assert second.seen == whole.seen[done:]


def test_overfitting_repeats_the_same_batches(tmp_path: Path) -> None:
    model = fresh()
    trainer(tmp_path, overfit_batches=2).fit(model, datamodule=DigitsData(batch_size=50, seed=0))
    ids = [ids for _, ids, _ in model.seen]
    assert len(ids) == 2 * EPOCHS
    assert ids[:2] == ids[2:4] == ids[4:]


def test_validation_inside_an_epoch_does_not_move_the_position(tmp_path: Path) -> None:
    options = {"val_check_interval": 2}
    whole = fresh()
    trainer(tmp_path / "straight", **options).fit(whole, datamodule=Few())
    done, second = stop_and_resume(tmp_path / "cut", EACH_STEP, 8, Few(), **options)
    assert done == 8
    assert second.seen == whole.seen[8:]
