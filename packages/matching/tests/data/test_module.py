"""The data module: seeds, resuming, splits that must not be mixed up, what is left out."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import Tensor

from isoattn.core.training import BatchDigest
from isoattn.matching.data import (
    BuiltinPairs,
    DecodeError,
    FolderPairs,
    Motorcycle,
    PairBatch,
    PairData,
    PairsFile,
    ResizeOptions,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
]

EPOCHS, BATCHES = 2, 3


def drawn(**options: Any) -> BuiltinPairs:
    sizes = {"size": (32, 40), "train_pairs": 6, "val_pairs": 3, "test_pairs": 4, **options}
    return BuiltinPairs(**sizes)


def data(**options: Any) -> PairData:
    return PairData(drawn(), batch_size=2, **options)


class Recorder(LightningModule):
    """One number, trained on the mean of the images, that writes down what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: list[tuple[int, tuple[int, ...], float]] = []
        self.counted: list[int] = []

    def training_step(self, batch: PairBatch, batch_index: int) -> Tensor:
        loss = (self.weight - batch["image0"].mean() + batch["homography"].mean()) ** 2
        ids = tuple(batch["index"].tolist())
        self.seen.append((self.current_epoch, ids, float(loss.detach())))
        return loss

    def validation_step(self, batch: PairBatch, batch_index: int) -> None:
        self.counted.append(len(batch["index"]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


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


def test_resume_equals_the_straight_run(tmp_path):
    straight = Recorder()
    trainer(tmp_path / "straight").fit(straight, datamodule=data(seed=5))
    assert len(straight.seen) == EPOCHS * BATCHES and straight.counted == [2, 1] * EPOCHS
    assert len({ids for _, ids, _ in straight.seen}) > BATCHES  # the order changes
    folder = tmp_path / "stopped"
    saver = ModelCheckpoint(folder, every_n_train_steps=1)
    with pytest.raises(StopAfter.Stopped):
        trainer(folder, saver, StopAfter(4)).fit(Recorder(), datamodule=data(seed=5))
    [path] = folder.glob("*.ckpt")
    torch.manual_seed(123)  # the global generator must not matter
    second = Recorder()
    trainer(folder, ModelCheckpoint(folder, every_n_train_steps=1)).fit(
        second, datamodule=data(seed=5), ckpt_path=str(path), weights_only=True
    )
    assert second.seen == straight.seen[4:]
    assert torch.equal(second.weight, straight.weight)


def digest(loader: Any) -> list[str]:
    found = []
    for batch in loader:
        one = BatchDigest()
        one.update(batch)
        found.append(one.hexdigest())
    return found


def test_workers_and_batch_sizes_change_no_pair():
    runs = []
    for workers in (0, 2):
        loader = data(seed=1, num_workers=workers).train_dataloader()
        loader.set_epoch(1)
        runs.append(digest(loader))
    assert runs[0] == runs[1] and len(runs[0]) == BATCHES
    small, large = (PairData(drawn(), eval_batch_size=size).val_dataloader() for size in (1, 3))
    together = next(iter(large))
    for number, batch in enumerate(small):
        assert torch.equal(batch["image1"][0], together["image1"][number])


def test_evaluation_pairs_are_the_same_whatever_the_seed_of_the_run():
    assert digest(data(seed=0).val_dataloader()) == digest(data(seed=1).val_dataloader())
    assert digest(data(seed=0).val_dataloader()) != digest(data(seed=0).test_dataloader())
    first, second = (digest(data(seed=seed).train_dataloader()) for seed in (0, 1))
    assert first != second


def test_the_global_generator_stays_put():
    state = torch.get_rng_state()
    module = data(seed=0)
    for loader in (module.train_dataloader(), module.val_dataloader()):
        list(loader)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_seed_is_needed():
    module = data()
    with pytest.raises(ValueError, match="PairData has no seed: pass seed=..., or set data_seed"):
        module.train_dataloader()
    module.data_seed = 3
    assert len(module.train_dataloader()) == BATCHES


def test_no_pair_is_trained_on_and_scored():
    module = PairData(Motorcycle(ResizeOptions(size=(64, 96))), seed=0)
    with pytest.raises(ValueError, match="Motorcycle has no val pairs of its own: set val_source"):
        module.setup("fit")
    module = PairData(drawn(), test_source=Motorcycle(ResizeOptions(size=(64, 96))), seed=0)
    module.setup("fit")
    module.setup("test")
    [batch] = module.test_dataloader()
    assert batch["name0"] == ["motorcycle_left.png"] and batch["image0"].shape == (1, 1, 64, 96)
    [predicted] = module.predict_dataloader()
    assert predicted["name0"] == batch["name0"]


def test_data_without_ground_truth_cannot_be_trained_on(tmp_path, write_picture):
    write_picture(tmp_path / "1.png")
    (tmp_path / "pairs.txt").write_text("1.png 1.png")
    own = PairsFile(str(tmp_path), "pairs.txt")
    with pytest.raises(ValueError, match="PairsFile has no ground truth to train on: it needs"):
        PairData(own, val_source=own).setup("fit")
    module = PairData(drawn(), predict_source=own)
    module.setup("predict")
    [batch] = module.predict_dataloader()
    assert batch["name1"] == ["1.png"] and "homography" not in batch


def test_fingerprints():
    first = data(seed=0).fingerprint()
    assert first == data(seed=1, num_workers=1).fingerprint()
    others = [
        PairData(drawn(train_pairs=7)),
        PairData(drawn(textures=False)),
        PairData(drawn(eval_seed=1)),
        PairData(drawn(), test_source=Motorcycle()),
    ]
    assert len({first, *(other.fingerprint() for other in others)}) == 5


def test_a_folder_of_photographs(tmp_path, write_picture, caplog):
    for number in range(6):
        write_picture(tmp_path / f"{number}.png", seed=number, size=(60, 80))
    (tmp_path / "bad.png").write_bytes(b"no image")

    def folder(**options: Any) -> FolderPairs:
        sizes = {"size": (32, 32), "train_pairs": 12, "val_pairs": 4, "test_pairs": 4}
        return FolderPairs(str(tmp_path), **sizes, **options)

    source = folder(on_bad_image="skip")
    module = PairData(source, batch_size=4, seed=0)
    with caplog.at_level(logging.WARNING):
        module.setup("fit")
    assert module.skipped() == {"unreadable": 1}
    assert "bad.png: is not an image of a known format" in caplog.text
    names = [{photo.name for photo in source.photos(split)} for split in source.splits]
    assert sum(map(len, names)) == 6 == len(set().union(*names)) and len(names[0]) == 4
    assert [len(batch["index"]) for batch in module.train_dataloader()] == [4, 4, 4]
    before = module.fingerprint()
    write_picture(tmp_path / "5.png", seed=77, size=(60, 80))
    changed = PairData(folder(on_bad_image="skip"), seed=0)
    assert changed.fingerprint() != before
    strict = PairData(folder(), batch_size=4, seed=0)
    with pytest.raises(DecodeError, match=r"bad.png: is not an image"):
        for loader in (
            strict.train_dataloader(),
            strict.val_dataloader(),
            strict.test_dataloader(),
        ):
            list(loader)


def test_a_folder_whose_photographs_cannot_be_read(tmp_path):
    (tmp_path / "bad.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match="No photograph of .* can be read, such as: Cannot read"):
        PairData(FolderPairs(str(tmp_path), on_bad_image="skip")).setup("fit")
    with pytest.raises(ValueError, match="on_bad_image must be raise or skip, got 'warn'"):
        FolderPairs(str(tmp_path), on_bad_image="warn")


def test_sizes_are_checked():
    with pytest.raises(ValueError, match=r"need one pair or more .* got .*size \(8, 32\)"):
        drawn(size=(8, 32))
    with pytest.raises(ValueError, match="need one pair or more in each split"):
        drawn(val_pairs=0)


def test_padding_to_a_given_size():
    [batch, *_] = PairData(drawn(), batch_size=2, pad_to=(48, 40), seed=0).train_dataloader()
    assert batch["image0"].shape == (2, 1, 48, 40) and batch["mask0"][:, :32].all()
    assert not batch["mask1"][:, 32:].any()
