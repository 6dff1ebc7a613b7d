"""The data module: what a model is told, what is refused, and a run that resumes mid-epoch."""

import logging
from dataclasses import replace

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from isoattn.wsi.bags import (
    BagData,
    BagSource,
    Difficulty,
    FeatureFolder,
    NeedleBags,
    SplitOptions,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
]

EPOCHS, BATCHES = 3, 4
SMALL = Difficulty(bags=24, tiles=(9, 20), features=5)


class Given(BagSource):
    def __init__(self, task):
        self.task = task

    def load(self):
        return self.task


def needles(**options):
    return BagData(NeedleBags(SMALL), **{"batch_size": 3, "max_tokens": 8, "seed": 5, **options})


class Recorder(LightningModule):
    """A linear model on means that writes down what it was given."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(5, 2)
        self.seen = []

    def training_step(self, batch, _):
        means = torch.stack([x.mean(0) for x in batch["features"]])
        loss = torch.nn.functional.cross_entropy(self.layer(means), batch["label"])
        self.seen.append((self.current_epoch, tuple(batch["id"]), float(loss.detach())))
        return loss

    def validation_step(self, batch, _):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


class StopAfter(Callback):
    class Stopped(Exception):
        pass

    def __init__(self, steps):
        self.steps = steps

    def on_train_batch_start(self, trainer, *_):
        if trainer.global_step == self.steps:
            raise self.Stopped


def trainer(folder, *callbacks):
    return Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        max_epochs=EPOCHS,
        logger=False,
        num_sanity_val_steps=0,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
        enable_checkpointing=any(isinstance(c, ModelCheckpoint) for c in callbacks),
    )


def fresh():
    torch.manual_seed(0)
    return Recorder()


@pytest.mark.parametrize("sampling", ["shuffle", "weighted", "ordered"])
def test_resume_equals_the_straight_run(sampling, tmp_path):
    straight = fresh()
    trainer(tmp_path / "straight").fit(straight, datamodule=needles(sampling=sampling))
    assert len(straight.seen) == EPOCHS * BATCHES
    each_step = {"every_n_train_steps": 1}
    each_epoch = {"every_n_epochs": 1, "save_on_train_epoch_end": True}
    for stop, save in ((6, each_step), (6, each_epoch)):
        folder = tmp_path / f"{len(save)}"
        with pytest.raises(StopAfter.Stopped):
            trainer(folder, ModelCheckpoint(folder, **save), StopAfter(stop)).fit(
                fresh(), datamodule=needles(sampling=sampling)
            )
        [path] = folder.glob("*.ckpt")
        done = torch.load(path, weights_only=True)["global_step"]
        torch.manual_seed(123)  # the global generator must not matter
        second = fresh()
        trainer(folder, ModelCheckpoint(folder, **save)).fit(
            second,
            datamodule=needles(sampling=sampling),
            ckpt_path=str(path),
            weights_only=True,
        )
        assert second.seen == straight.seen[done:]
        assert torch.equal(second.layer.weight, straight.layer.weight)


def epoch_of(data, epoch):
    loader = data.train_dataloader()
    loader.set_epoch(epoch)
    return [(batch["id"], [x.sum().item() for x in batch["features"]]) for batch in loader]


def test_an_epoch_is_a_function_of_seed_and_epoch():
    one = epoch_of(needles(), 1)
    assert epoch_of(needles(), 1) == one and epoch_of(needles(num_workers=1), 1) == one
    assert epoch_of(needles(), 2) != one and epoch_of(needles(seed=6), 1) != one
    assert sorted(name for ids, _ in one for name in ids) == sorted(
        name for ids, _ in epoch_of(needles(), 2) for name in ids
    )


def test_what_a_model_must_know():
    data = BagData(NeedleBags(SMALL), batch_size=4)
    data.prepare_data()
    data.setup("fit")
    assert (data.in_dim, data.num_classes) == (5, 2)
    assert data.class_names == ["negative", "positive"]
    assert data.class_weights().tolist() == [1.0, 1.0]
    assert data.moments()[0].shape == (5,)
    counts = {
        "val": data.val_dataloader(),
        "test": data.test_dataloader(),
    }
    for part, loader in counts.items():
        ids = [i for batch in loader for i in batch["index"].tolist()]
        assert ids == getattr(data.task.split, part).tolist()
    assert isinstance(BagData().source, NeedleBags)
    with pytest.raises(ValueError, match="BagData has no seed"):
        data.train_dataloader()
    data.data_seed = 3
    assert len(data.train_dataloader()) == 3


def test_evaluation_sees_all_tiles_or_a_draw_that_stays():
    whole, drawn = needles(), needles(max_eval_tokens=4)
    assert [len(x) for b in whole.val_dataloader() for x in b["features"]] == [
        whole.task.reader.shape(i)[0] for i in whole.task.split.val.tolist()
    ]
    one, two = ([x for b in drawn.val_dataloader() for x in b["features"]] for _ in range(2))
    assert all(len(x) == 4 for x in one)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_classes_are_mapped_by_name(caplog):
    task = NeedleBags(SMALL).load()
    data = BagData(Given(task))
    before = data.fingerprint()
    assert data.fingerprint() == before == BagData(Given(task), seed=9).fingerprint()
    with caplog.at_level(logging.WARNING):
        data.check_classes(["positive", "other", "negative"])
    assert "mapped to the model's by name" in caplog.text
    assert data.task.labels[:2].tolist() == [2, 0] and data.num_classes == 3
    assert data.fingerprint() != before
    assert data.class_weights().tolist() == pytest.approx([2 / 3, 0, 2 / 3])
    with pytest.raises(ValueError, match=r"classes that the model lacks: \['positive'\]"):
        data.check_classes(["negative"])


def test_the_fingerprint_sees_features_and_split():
    task = NeedleBags(SMALL).load()
    other = NeedleBags(SMALL, seed=1).load()
    split = replace(task.split, val=task.split.test, test=task.split.val)
    prints = {
        BagData(Given(t)).fingerprint()
        for t in (task, replace(task, reader=other.reader), replace(task, split=split))
    }
    assert len(prints) == 3


def test_prediction_on_other_bags(folder):
    whole = BagData(FeatureFolder(str(folder / "features")))
    assert [i for b in whole.predict_dataloader() for i in b["id"]] == [
        f"{i:03d}" for i in range(24)
    ]
    assert all(b["label"].tolist() == [-1] for b in whole.predict_dataloader())
    data = needles(predict_source=FeatureFolder(str(folder / "features")))
    data.check_features(5)
    data.setup("predict")
    assert len([*data.predict_dataloader()]) == 8
    with pytest.raises(ValueError, match="features has 5 features a tile, the model takes 7"):
        data.check_features(7)
    part = needles()
    assert [i for b in part.predict_dataloader() for i in b["index"].tolist()] == (
        part.task.split.test.tolist()
    )


def test_files_stream(folder):
    source = FeatureFolder(
        str(folder / "features"),
        str(folder / "slides.csv"),
        patient_column="case",
        split=SplitOptions(folds=3, sites="ignore"),
    )
    data = BagData(source, batch_size=5, max_tokens=3, seed=0)
    data.setup("fit")
    batches = [*data.train_dataloader()]
    assert all(x.shape == (3, 5) for batch in batches for x in batch["features"])
    assert all(x.shape == (3, 2) for batch in batches for x in batch["cells"])
    assert data.skipped() == {}


def test_what_was_left_out_is_said(folder, caplog):
    (folder / "features" / "000.h5").unlink()
    source = FeatureFolder(
        str(folder / "features"),
        str(folder / "slides.csv"),
        patient_column="case",
        on_missing="skip",
    )
    data = BagData(source)
    with caplog.at_level(logging.WARNING):
        data.setup("fit")
    assert data.skipped() == {"no feature file": 1}
    assert "features: 1 slides left out (no feature file)" in caplog.text


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda _: BagData(sampling="random"),
            "sampling must be one of shuffle, weighted, ordered",
        ),
        (lambda _: BagData(batch_size=0), "batch_size must be 1 or more, got 0"),
        (lambda _: BagData(max_eval_tokens=0), "max_eval_tokens must be 1 or more, got 0"),
        (
            lambda f: BagData(FeatureFolder(str(f / "features"))).setup("fit"),
            "features has no bags for train: give labels and a split with such a part",
        ),
    ],
)
def test_messages(folder, call, words):
    with pytest.raises(ValueError, match=words):
        call(folder)
