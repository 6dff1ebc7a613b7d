"""Splits are disjoint and fixed; marked rows mean what they say; batches ignore workers."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from isoattn.vision import DigitsData, ImageDataModule, MarkedRowData, MnistData
from isoattn.vision.data.builtin import MemoryDataModule
from isoattn.vision.data.marked_row import CELL, MARK, halve
from isoattn.vision.data.memory import shift_images
from isoattn.vision.data.sources import SPLITS, load_digits, load_mnist, stratified_split

MODULES = [DigitsData, MnistData, MarkedRowData]


def epoch(data: ImageDataModule, number: int) -> dict[str, Tensor]:
    loader = data.train_dataloader()
    loader.set_epoch(number)
    batches = list(loader)
    return {key: torch.cat([b[key] for b in batches]) for key in ("image", "label", "index")}


def by_id(items: dict[str, Tensor]) -> Tensor:
    return items["image"][items["index"].argsort()]


def test_sources_are_the_real_data() -> None:
    digits, mnist = load_digits(), load_mnist()
    assert digits.images_NCHW.shape == (1797, 1, 8, 8)
    assert digits.labels_N.bincount().min() == 174 and digits.labels_N.bincount().max() == 183
    assert mnist.images_NCHW.shape == (5000, 1, 28, 28)
    assert mnist.labels_N.bincount().tolist() == [500] * 10
    assert digits.images_NCHW.max() == mnist.images_NCHW.max() == 255
    assert digits.images_NCHW.dtype == mnist.images_NCHW.dtype == torch.uint8


@pytest.mark.parametrize("module", MODULES)
def test_what_a_model_needs_is_known_before_setup(module: type[MemoryDataModule]) -> None:
    data = module()
    assert data.num_classes == 10 and data.class_names == [str(i) for i in range(10)]
    assert data.in_chans == 1 and len(data.mean) == len(data.std) == 1
    assert data.skipped() == {}
    data.setup("fit")
    batch = next(iter(data.val_dataloader()))
    assert batch["image"].dtype == torch.float32
    assert tuple(batch["image"].shape[1:]) == (1, *data.image_size)
    assert batch["label"].dtype == batch["index"].dtype == torch.int64


@pytest.mark.parametrize("module", MODULES)
def test_training_images_are_normalised(module: type[MemoryDataModule]) -> None:
    pixels = module().dataset("train").__getitems__(list(range(1000)))["image"]  # type: ignore[attr-defined]
    assert abs(float(pixels.mean())) < 0.05
    assert abs(float(pixels.std()) - 1) < 0.05


@pytest.mark.parametrize(
    ("module", "sizes"),
    [
        (DigitsData(), (1295, 142, 360)),
        (DigitsData(split="random"), None),
        (MnistData(), (3600, 400, 1000)),
        (MnistData(split_seed=3, val_fraction=0.25), (3000, 1000, 1000)),
        (MarkedRowData(), (8000, 1000, 2000)),
    ],
)
def test_splits_are_disjoint_stratified_and_fixed(
    module: MemoryDataModule, sizes: tuple[int, ...] | None
) -> None:
    ids = [set(module.images(split).ids_N.tolist()) for split in SPLITS]
    assert not ids[0] & ids[1] and not ids[0] & ids[2] and not ids[1] & ids[2]
    if sizes:
        assert tuple(len(i) for i in ids) == sizes
    for split in SPLITS:
        shares = module.images(split).labels_N.bincount(minlength=10) / len(module.images(split))
        assert (shares - 0.1).abs().max() < 0.04


def test_split_seed_decides_and_global_generator_does_not() -> None:
    torch.manual_seed(1)
    first = MnistData().images("test").ids_N
    torch.manual_seed(2)
    assert torch.equal(first, MnistData().images("test").ids_N)
    assert not torch.equal(first, MnistData(split_seed=1).images("test").ids_N)
    # The test split must not move with the size of the validation split.
    assert torch.equal(first, MnistData(val_fraction=0.3).images("test").ids_N)


def test_digits_of_the_test_writers_are_the_last_360() -> None:
    assert DigitsData().images("test").ids_N.tolist() == list(range(1437, 1797))
    assert DigitsData(split_seed=5).images("test").ids_N.tolist() == list(range(1437, 1797))


@given(
    counts=st.lists(st.integers(2, 12), min_size=1, max_size=5),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 100),
)
def test_stratified_split_puts_every_class_on_both_sides(
    counts: list[int], fraction: float, seed: int
) -> None:
    labels = torch.cat([torch.full((n,), label) for label, n in enumerate(counts)])
    kept, aside = stratified_split(labels, fraction, seed=seed, stream="x")
    assert sorted([*kept.tolist(), *aside.tolist()]) == list(range(len(labels)))
    for label, n in enumerate(counts):
        put = int((labels[aside] == label).sum())
        assert 1 <= put <= n - 1
        assert abs(put - n * fraction) <= 1


def test_a_class_of_one_item_cannot_be_split() -> None:
    with pytest.raises(ValueError, match="Class 1 has one item left"):
        stratified_split(torch.tensor([0, 0, 1]), 0.5, seed=0, stream="x")


@pytest.mark.parametrize(("rows", "distance"), [(3, 0), (2, 7), (4, 28)])
def test_labels_of_marked_rows_can_be_read_off_the_canvas(rows: int, distance: int) -> None:
    data = MarkedRowData(rows=rows, distance=distance, n_train=300, n_val=100, n_test=200)
    mnist = load_mnist()
    small = halve(mnist.images_NCHW)
    labels = {small[i].numpy().tobytes(): int(mnist.labels_N[i]) for i in range(len(mnist))}
    for split in SPLITS:
        images = data.images(split)
        assert tuple(images.images_NCHW.shape[1:]) == (1, 14 * rows, 28 + distance)
        assert data.image_size == tuple(images.images_NCHW.shape[2:])
        for canvas, label in zip(images.images_NCHW[:, 0], images.labels_N.tolist(), strict=True):
            left = canvas[:, :CELL].reshape(rows, CELL, CELL)
            marked = (left == 255).sum((1, 2))
            row = int(marked.argmax())
            assert sorted(marked.tolist()) == [0] * (rows - 1) + [MARK * MARK]
            assert not canvas[:, CELL : CELL + distance].any()
            digit = canvas[row * CELL : (row + 1) * CELL, CELL + distance :]
            assert labels[digit.contiguous().numpy().tobytes()] == label


def test_source_digits_of_test_canvases_are_never_trained_on() -> None:
    data = MarkedRowData()
    used = {split: set(data.composed(split).sources_NR.flatten().tolist()) for split in SPLITS}
    assert not used["train"] & used["test"]
    assert not used["train"] & used["val"]
    assert not used["val"] & used["test"]
    assert len(used["train"]) > 3500  # nearly the whole pool takes part
    again = MarkedRowData().composed("test")
    assert torch.equal(again.data.images_NCHW, data.images("test").images_NCHW)
    other = MarkedRowData(split_seed=1).composed("test")
    assert not torch.equal(again.data.images_NCHW, other.data.images_NCHW)
    rows = data.composed("train").marked_N.bincount() / 8000
    assert (rows - 1 / 3).abs().max() < 0.03


def test_guessing_among_the_visible_digits_scores_what_is_said() -> None:
    composed = MarkedRowData().composed("test")
    visible = load_mnist().labels_N[composed.sources_NR]
    guess = (visible == composed.data.labels_N[:, None]).double().mean()
    assert 0.36 < float(guess) < 0.44


@pytest.mark.parametrize(
    ("options", "message"),
    [({"rows": 1}, "rows >= 2"), ({"distance": -1}, "distance >= 0"), ({"n_val": 0}, "one canvas")],
)
def test_impossible_canvases_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MarkedRowData(**options).setup("fit")


@settings(deadline=None, max_examples=40)
@given(
    size=st.integers(1, 5),
    height=st.integers(1, 7),
    width=st.integers(1, 7),
    reach=st.integers(0, 4),
    seed=st.integers(0, 100),
)
def test_shift_moves_each_image_by_its_own_offset(
    size: int, height: int, width: int, reach: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(1, 255, (size, 2, height, width), generator=generator)
    offsets = torch.randint(-reach, reach + 1, (size, 2), generator=generator)
    moved = shift_images(images, offsets, reach)
    for item in range(size):
        down, right = offsets[item].tolist()
        for y in range(height):
            for x in range(width):
                inside = 0 <= y - down < height and 0 <= x - right < width
                expected = images[item, :, y - down, x - right] if inside else torch.zeros(2)
                assert moved[item, :, y, x].tolist() == expected.tolist()


def test_augmentation_depends_on_seed_epoch_and_item_alone() -> None:
    def images(number: int, **options: Any) -> Tensor:
        return by_id(epoch(DigitsData(**{"seed": 0, "augment": "shift_flip"} | options), number))

    base = images(1)
    for same in ({"batch_size": 7}, {"batch_size": 1295}, {"num_workers": 2}, {"drop_last": False}):
        assert torch.equal(base, images(1, **same)), same
    torch.manual_seed(7)
    assert torch.equal(base, images(1))
    assert not torch.equal(base, images(2))
    assert not torch.equal(base, images(1, seed=1))
    plain = by_id(epoch(DigitsData(seed=0), 1))
    assert torch.equal(plain, by_id(epoch(DigitsData(seed=0), 2)))
    changed = (base != plain).flatten(1).any(1).double().mean()
    assert 0.9 < float(changed) < 1.0  # a shift of (0, 0) without a flip happens once in 18


def test_training_and_evaluation_leave_the_global_generator_alone() -> None:
    data = MnistData(seed=0)
    state = torch.get_rng_state()
    list(data.train_dataloader())
    list(data.val_dataloader())
    list(data.test_dataloader())
    assert torch.equal(state, torch.get_rng_state())


def test_evaluation_is_in_order_and_complete() -> None:
    data = MnistData(seed=0, batch_size=13)
    for loader, split in ((data.val_dataloader(), "val"), (data.test_dataloader(), "test")):
        index = torch.cat([b["index"] for b in loader])
        assert torch.equal(index, data.images(split).ids_N)  # type: ignore[arg-type]
    assert torch.equal(torch.cat([b["index"] for b in data.predict_dataloader()]), index)
    assert epoch(data, 0)["index"].sort().values.equal(data.images("train").ids_N)


def test_the_seed_is_the_modules_own_or_the_runs() -> None:
    with pytest.raises(ValueError, match="MnistData has no seed: pass seed"):
        MnistData().train_dataloader()
    given_, set_later = MnistData(seed=3), MnistData()
    set_later.data_seed = 3
    given_.data_seed = 99  # an explicit seed wins
    assert torch.equal(epoch(given_, 0)["index"], epoch(set_later, 0)["index"])


def test_another_image_size_resizes_everything() -> None:
    data = MnistData(image_size=42)
    assert data.image_size == (42, 42)
    images = data.images("val").images_NCHW
    assert images.shape == (400, 1, 42, 42) and images.dtype == torch.uint8
    original = MnistData().images("val").images_NCHW
    assert abs(float(images.float().mean() - original.float().mean())) < 1


def test_fingerprints_tell_data_apart_and_ignore_batching() -> None:
    same = [MnistData(), MnistData(seed=4, batch_size=7, num_workers=2, drop_last=True)]
    assert len({data.fingerprint() for data in same}) == 1
    different: list[ImageDataModule] = [
        MnistData(),
        MnistData(split_seed=1),
        MnistData(val_fraction=0.2),
        MnistData(augment="none"),
        MnistData(shift=3),
        MnistData(image_size=14),
        MarkedRowData(),
        MarkedRowData(distance=7),
        DigitsData(),
        DigitsData(split="random"),
    ]
    assert len({data.fingerprint() for data in different}) == len(different)


def test_the_class_list_of_a_model_is_followed_by_name(caplog: pytest.LogCaptureFixture) -> None:
    data, other = MnistData(seed=0), MnistData(seed=0)
    other.check_classes(data.class_names)
    assert not caplog.records
    turned = data.class_names[::-1] + ["letter"]
    other.check_classes(turned)
    assert "labels are mapped by name" in caplog.text
    assert other.class_names == turned and other.num_classes == 11
    for mine, theirs in zip(data.test_dataloader(), other.test_dataloader(), strict=True):
        assert torch.equal(mine["image"], theirs["image"])
        assert torch.equal(theirs["label"], 9 - mine["label"])
    assert torch.equal(epoch(other, 0)["label"], 9 - epoch(data, 0)["label"])
    assert data.fingerprint() != other.fingerprint()


def test_classes_that_the_model_lacks_stop() -> None:
    with pytest.raises(ValueError, match=r"1 class\(es\) that the model lacks: \['9'\]"):
        MnistData().check_classes([str(i) for i in range(9)])
    with pytest.raises(ValueError, match="twice"):
        MnistData().check_classes([*(str(i) for i in range(10)), "1"])
