"""Class folders are scanned in one documented order; what is left out is counted."""

import io
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from PIL import Image
from torch import Tensor

from isoattn.vision import ImageFolderData
from isoattn.vision.data import DecodeError, PredictFolder

Maker = Callable[..., Path]
CLASSES = ["1", "2", "10"]


def truncate(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def write_jpeg(path: Path, shade: int) -> None:
    stream = io.BytesIO()
    Image.effect_noise((32, 32), shade).convert("RGB").save(stream, "JPEG")
    path.write_bytes(stream.getvalue())


def three(make: Maker, classes: list[str] = CLASSES, each: int = 3) -> Path:
    for split in ("train", "val", "test"):
        make(f"data/{split}", classes, each)
    return make("data/train", classes, each).parent


def data(root: Path, **options: Any) -> ImageFolderData:
    return ImageFolderData(str(root), **{"image_size": 8, "seed": 0, "batch_size": 4} | options)


def gather(loader: Any) -> dict[str, Tensor]:
    batches = list(loader)
    return {key: torch.cat([b[key] for b in batches]) for key in batches[0]}


def test_classes_are_in_plain_string_order(make_folder: Maker) -> None:
    # deit 130: torchvision numbers these 1, 10, 2 and timm 1, 2, 10, and 27 of 7000 were right.
    module = data(three(make_folder))
    assert module.class_names == ["1", "10", "2"]
    assert module.num_classes == 3
    for loader in (module.train_dataloader(), module.val_dataloader(), module.test_dataloader()):
        for index, label in zip(*map(gather(loader).get, ("index", "label")), strict=True):  # type: ignore[arg-type]
            assert Path(module.paths[index]).parent.name == module.class_names[label]


def test_a_model_with_another_order_is_scored_by_name(make_folder: Maker) -> None:
    root = three(make_folder)
    plain, natural = data(root), data(root)
    natural.check_classes(["1", "2", "10"])
    mine, theirs = gather(plain.test_dataloader()), gather(natural.test_dataloader())
    assert torch.equal(mine["image"], theirs["image"])
    names = [plain.class_names[i] for i in mine["label"]]
    assert names == [natural.class_names[i] for i in theirs["label"]]
    assert not torch.equal(mine["label"], theirs["label"])
    with pytest.raises(ValueError, match=r"model lacks: \['10'\].*Rename the folders"):
        plain.check_classes(["1", "2"])


def test_batches(make_folder: Maker) -> None:
    module = data(three(make_folder), image_size=(8, 12), in_chans=3)
    assert module.image_size == (8, 12)
    batch = next(iter(module.train_dataloader()))
    assert batch["image"].shape == (4, 3, 8, 12) and batch["image"].dtype == torch.float32
    grey = data(three(make_folder), in_chans=1)
    assert len(grey.mean) == len(grey.std) == 1
    assert next(iter(grey.train_dataloader()))["image"].shape == (4, 1, 8, 8)
    splits = [
        set(gather(loader)["index"].tolist())
        for loader in (module.train_dataloader(), module.val_dataloader(), module.test_dataloader())
    ]
    assert [len(s) for s in splits] == [9, 9, 9] and len(set.union(*splits)) == 27


@pytest.mark.parametrize("augment", ["crop_flip", "rand_augment"])
@pytest.mark.parametrize("channels", [1, 3])
def test_augmentation_depends_on_seed_epoch_and_item_alone(
    augment: str, channels: int, make_folder: Maker
) -> None:
    root = three(make_folder)

    def images(epoch: int, **options: Any) -> Tensor:
        module = data(root, **{"augment": augment, "in_chans": channels} | options)
        loader = module.train_dataloader()
        loader.set_epoch(epoch)
        items = gather(loader)
        return items["image"][items["index"].argsort()]

    state = torch.get_rng_state()
    base = images(1)
    assert torch.equal(state, torch.get_rng_state())
    for same in ({"batch_size": 9}, {"batch_size": 1}, {"num_workers": 2}):
        assert torch.equal(base, images(1, **same)), same
    assert not torch.equal(base, images(2))
    assert not torch.equal(base, images(1, seed=1))
    assert torch.equal(images(1, augment="none"), images(2, augment="none"))


def test_classes_that_differ_between_splits_are_named(make_folder: Maker) -> None:
    root = three(make_folder)
    shutil.rmtree(root / "val" / "10")
    make_folder("data/val", ["11"])
    with pytest.raises(ValueError, match=r"val are not those.*missing \['10'\], unknown \['11'\]"):
        data(root).setup("fit")


@pytest.mark.parametrize("where", ["train", "val", "train/1"])
def test_hidden_folders_with_images_are_refused(where: str, make_folder: Maker) -> None:
    root = three(make_folder)
    shutil.copytree(root / "train" / "1", root / where / ".ipynb_checkpoints")
    with pytest.raises(ValueError, match=r"hidden folder .*\.ipynb_checkpoints holds images"):
        data(root).setup("fit")


def test_hidden_files_and_folders_without_images_do_not_matter(make_folder: Maker) -> None:
    root = three(make_folder)
    (root / "train" / ".cache").mkdir()
    (root / "train" / "1" / ".DS_Store").touch()
    module = data(root)
    assert module.class_names == ["1", "10", "2"]
    assert set(module.skipped().values()) == {0}


def test_empty_classes_are_refused(make_folder: Maker) -> None:
    root = three(make_folder)
    (root / "train" / "3").mkdir()
    (root / "train" / "3" / "notes.txt").touch()
    for split in ("val", "test"):
        make_folder(f"data/{split}", ["3"])
    with pytest.raises(ValueError, match=r"class folder .*3 has no image .*\.jpg"):
        data(root).setup("fit")


def test_files_that_are_no_images_are_counted(
    make_folder: Maker, caplog: pytest.LogCaptureFixture
) -> None:
    root = three(make_folder)
    for name in ("notes.txt", "table.csv"):
        (root / "train" / "1" / name).touch()
    module = data(root)
    assert module.skipped()["no image by suffix"] == 2
    assert "train/1/notes.txt" in caplog.text
    assert len(gather(module.train_dataloader())["label"]) == 9


def test_an_unreadable_image_raises_by_default(make_folder: Maker) -> None:
    root = three(make_folder)
    truncate(root / "train" / "10" / "01.png")
    for workers in (0, 1):
        with pytest.raises(DecodeError, match=r"train/10/01\.png: is damaged"):
            gather(data(root, num_workers=workers).train_dataloader())


def test_unreadable_images_can_be_skipped_and_are_counted(
    make_folder: Maker, caplog: pytest.LogCaptureFixture
) -> None:
    root = three(make_folder)
    whole = data(root)
    truncate(root / "train" / "10" / "01.png")
    (root / "val" / "1" / "00.png").write_bytes(b"")
    write_jpeg(root / "test" / "2" / "x.jpg", 60)
    truncate(root / "test" / "2" / "x.jpg")
    module = data(root, on_bad_image="skip", augment="none")
    train, val = gather(module.train_dataloader()), gather(module.val_dataloader())
    assert len(train["label"]) == 8 and len(val["label"]) == 8
    assert module.skipped() == {
        "unreadable in train": 1,
        "unreadable in val": 1,
        "unreadable in test": 1,
        "no image by suffix": 0,
        "not in split file": 0,
    }
    for name in ("train/10/01.png", "val/1/00.png", "test/2/x.jpg"):
        assert name in caplog.text
    assert "is empty" in caplog.text
    assert module.fingerprint() != whole.fingerprint()
    # Ids stay what they are when a file is left out.
    assert module.paths[int(train["index"][0])].startswith("train/")
    assert "train/10/01.png" in module.paths


def test_a_class_with_no_readable_image_stops(make_folder: Maker) -> None:
    root = three(make_folder)
    for path in (root / "train" / "2").iterdir():
        truncate(path)
    with pytest.raises(ValueError, match=r"train: no image of 1 class\(es\) can be read.*train/2"):
        data(root, on_bad_image="skip").setup("fit")


def test_without_val_a_part_of_train_is_taken(make_folder: Maker) -> None:
    make_folder("data/train", CLASSES, 10)
    module = data(make_folder("data/train", CLASSES, 10).parent, val_fraction=0.2)
    val, train = gather(module.val_dataloader()), gather(module.train_dataloader())
    assert val["label"].bincount().tolist() == [2, 2, 2]
    assert train["label"].bincount().tolist() == [8, 8, 8]
    assert not set(val["index"].tolist()) & set(train["index"].tolist())
    with pytest.raises(ValueError, match="has no test images: add a folder test"):
        module.test_dataloader()
    module.fingerprint()


def test_a_single_root_is_split_by_seed(make_folder: Maker) -> None:
    root = make_folder("data", CLASSES, 10)
    splits = {}
    for seed in (0, 1):
        module = data(root, split_seed=seed)
        splits[seed] = [
            set(gather(module.plain_dataloader(s))["index"].tolist())
            for s in ("train", "val", "test")
        ]
    assert [len(s) for s in splits[0]] == [21, 3, 6]
    assert len(set.union(*splits[0])) == 30
    assert splits[0] == [
        set(gather(data(root).plain_dataloader(s))["index"].tolist())
        for s in ("train", "val", "test")
    ]
    assert splits[0] != splits[1]
    assert data(root).fingerprint() != data(root, split_seed=1).fingerprint()


def test_classes_too_small_to_split_are_named(make_folder: Maker) -> None:
    make_folder("data", ["many"], 10)
    root = make_folder("data", ["few"], 2)
    with pytest.raises(ValueError, match="Class few has one item left and cannot be split for val"):
        data(root).setup("fit")


def split_csv(root: Path, rows: list[str], header: str = "path,split") -> str:
    file = root.parent / "split.csv"
    file.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return str(file)


def test_a_single_root_is_split_by_file(
    make_folder: Maker, caplog: pytest.LogCaptureFixture
) -> None:
    root = make_folder("data", ["a", "b"], 4)
    rows = [f"{c}/0{i}.png,{s}" for c in "ab" for i, s in enumerate(["train", "val", "test"])]
    module = data(root, split_file=split_csv(root, rows))
    for number, split in enumerate(("train", "val", "test")):
        index = gather(module.plain_dataloader(split))["index"]  # type: ignore[arg-type]
        assert [module.paths[i] for i in index] == [f"a/0{number}.png", f"b/0{number}.png"]
    assert module.skipped()["not in split file"] == 2
    assert "does not list 2 images" in caplog.text


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["a/00.png,train", "a/00.png,val"], "line 3: 'a/00.png' is listed twice"),
        (["a/99.png,train"], "line 2: 'a/99.png' is no image below the data root"),
        (["a/00.png,training"], "split is train, val or test, got 'training'"),
        (["a/00.png,train"], "puts no image into val"),
    ],
)
def test_split_files_that_do_not_fit(rows: list[str], message: str, make_folder: Maker) -> None:
    root = make_folder("data", ["a", "b"], 2)
    with pytest.raises(ValueError, match=message):
        data(root, split_file=split_csv(root, rows)).setup("fit")


def test_split_files_need_their_columns_and_a_single_root(make_folder: Maker) -> None:
    root = make_folder("data", ["a", "b"], 2)
    with pytest.raises(ValueError, match="needs the columns path and split, got"):
        data(root, split_file=split_csv(root, [], header="file,part")).setup("fit")
    with pytest.raises(ValueError, match="split_file is for a single root"):
        data(three(make_folder), split_file="x.csv")


def test_roots_without_classes_say_what_they_hold(make_folder: Maker, tmp_path: Path) -> None:
    root = make_folder("data", ["a"], 2)
    with pytest.raises(ValueError, match=r"has no class folders \(2 images lie in it directly\)"):
        data(root / "a")
    with pytest.raises(ValueError, match="is not a folder"):
        data(tmp_path / "nowhere")


def test_fingerprints_see_content_and_names(make_folder: Maker) -> None:
    root = three(make_folder)
    first = data(root).fingerprint()
    assert first == data(root, batch_size=2, num_workers=1, seed=9).fingerprint()
    assert first != data(root, crop_pct=0.875).fingerprint()
    (root / "train" / "1" / "00.png").rename(root / "train" / "1" / "zz.png")
    renamed = data(root).fingerprint()
    shutil.copy(root / "train" / "2" / "00.png", root / "train" / "1" / "zz.png")
    assert len({first, renamed, data(root).fingerprint()}) == 3


class Mean(LightningModule):
    def predict_step(self, batch: dict[str, Any], batch_index: int) -> dict[str, Any]:
        return {"path": batch["path"], "mean": batch["image"].mean((1, 2, 3))}


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_prediction_names_every_image_and_reports_the_rest(
    workers: int, make_folder: Maker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make_folder("new", ["x/deep", "y"], 3)
    (folder / "readme.md").write_text("no picture")
    (folder / "y" / "empty.jpg").touch()
    shutil.copy(folder / "y" / "00.png", folder / "no_suffix")
    # The training data are elsewhere; the classes are the model's.
    module = data(tmp_path / "gone", predict_dir=str(folder), num_workers=workers)
    module.check_classes(["cat", "dog"])
    assert module.num_classes == 2
    trainer = Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False
    )
    outputs = trainer.predict(Mean(), datamodule=module)
    assert outputs is not None
    paths = [path for output in outputs for path in output["path"]]  # type: ignore[index]
    assert paths == [
        "no_suffix",
        *(f"x/deep/0{i}.png" for i in range(3)),
        *(f"y/0{i}.png" for i in range(3)),
    ]
    bad = module.predict_folder.bad
    assert bad == {
        "readme.md": "is not an image of a known format",
        "y/empty.jpg": "is empty (0 bytes)",
    }
    assert module.skipped()["unreadable in predict_dir"] == 2
    assert "not predicted: y/empty.jpg is empty" in caplog.text
    with pytest.raises(ValueError, match="has no train images"):
        module.train_dataloader()


def test_prediction_prepares_images_as_evaluation_does(make_folder: Maker) -> None:
    root = three(make_folder)
    evaluated = data(root)
    folder = PredictFolder(
        root / "test",
        transform=evaluated.dataset("test").transform,  # type: ignore[attr-defined]
        normalise=evaluated.dataset("test").normalise,  # type: ignore[attr-defined]
    )
    assert [f"test/{path}" for path in folder.paths] == evaluated.indices["test"].paths
    assert torch.equal(
        folder.__getitems__(list(range(9)))["image"], gather(evaluated.test_dataloader())["image"]
    )


def test_prediction_without_a_readable_image_stops(tmp_path: Path) -> None:
    module = data(tmp_path / "gone", predict_dir=str(tmp_path / "none"))
    with pytest.raises(ValueError, match="is not a folder"):
        module.predict_dataloader()
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "a.txt").write_text("x")
    with pytest.raises(ValueError, match="no readable image among 1 files. a.txt is not an image"):
        module.predict_dataloader()


def test_logging_is_quiet_when_nothing_is_wrong(
    make_folder: Maker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="isoattn")
    gather(data(three(make_folder), on_bad_image="skip").train_dataloader())
    assert not caplog.records
