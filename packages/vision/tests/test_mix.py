"""Mixed batches of any size; targets are exactly the shares of the images."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from isoattn.vision.mix import mix_batch, soft_targets

CLASSES = 4


def batch(size: int, height: int = 6, width: int = 5) -> tuple[Tensor, Tensor]:
    """Image i is constant i, so that shares can be read off the pixels."""
    images = torch.arange(float(size))[:, None, None, None].expand(size, 2, height, width)
    return images.clone(), torch.arange(size) % CLASSES


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@settings(deadline=None)
@given(
    size=st.integers(1, 9),
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    seed=st.integers(0, 1000),
    mixup=st.sampled_from([0.0, 0.8]),
    cutmix=st.sampled_from([0.0, 1.0]),
    smoothing=st.sampled_from([0.0, 0.1]),
)
def test_targets_are_the_shares_of_the_images(
    size: int, height: int, width: int, seed: int, mixup: float, cutmix: float, smoothing: float
) -> None:
    images, labels = batch(size, height, width)
    before = images.clone()
    mixed, targets = mix_batch(
        images,
        labels,
        CLASSES,
        generator=generator(seed),
        mixup=mixup,
        cutmix=cutmix,
        smoothing=smoothing,
    )
    assert torch.equal(images, before)
    assert mixed.shape == images.shape and targets.shape == (size, CLASSES)
    assert torch.allclose(targets.sum(1), torch.ones(size))
    # The mean of constant images is their weighted number; so is the target of distinct labels.
    if size <= CLASSES:
        plain = (targets - smoothing / CLASSES) / (1 - smoothing)
        numbers = plain[:, :size] @ torch.arange(float(size))
        assert torch.allclose(numbers, mixed.mean((1, 2, 3)), atol=1e-4)


@pytest.mark.parametrize("kind", ["mixup", "cutmix"])
def test_odd_batches_and_a_single_image(kind: str) -> None:
    # pytorch-image-models 1304: five images at batch size 4 leave a batch of one.
    for size in (1, 3, 5):
        images, labels = batch(size)
        mixed, targets = mix_batch(
            images, labels, CLASSES, generator=generator(0), smoothing=0.0, **{kind: 1.0}
        )
        assert len(mixed) == len(targets) == size
    images, labels = batch(1)
    mixed, targets = mix_batch(images + 3, labels, CLASSES, generator=generator(0), mixup=0.8)
    assert torch.allclose(mixed, images + 3)
    assert torch.allclose(targets, soft_targets(labels, CLASSES))


def test_the_generator_decides_and_the_global_one_is_untouched() -> None:
    images, labels = batch(8)
    state = torch.get_rng_state()
    settings_ = {"mixup": 0.8, "cutmix": 1.0}
    first = mix_batch(images, labels, CLASSES, generator=generator(1), **settings_)
    again = mix_batch(images, labels, CLASSES, generator=generator(1), **settings_)
    other = mix_batch(images, labels, CLASSES, generator=generator(2), **settings_)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])
    assert not torch.equal(first[0], other[0])


def test_both_kinds_occur_and_shares_vary() -> None:
    images, labels = batch(2, 16, 16)
    kinds, shares = set(), []
    for seed in range(60):
        mixed, targets = mix_batch(
            images, labels, CLASSES, generator=generator(seed), mixup=1.0, cutmix=1.0
        )
        if float(targets[0, 0]) in (0.0, 1.0):
            continue
        kinds.add(len(mixed[0].unique()) > 1)  # cutmix leaves two values, mixup one
        shares.append(float(targets[0, 0]))
    assert kinds == {True, False}
    assert min(shares) < 0.3 and max(shares) > 0.7


def test_off_means_the_same_images_and_smoothed_targets() -> None:
    images, labels = batch(3)
    mixed, targets = mix_batch(images, labels, CLASSES, generator=generator(0), smoothing=0.2)
    assert mixed is images
    assert torch.allclose(targets[0], torch.tensor([0.85, 0.05, 0.05, 0.05]))


@pytest.mark.parametrize("options", [{"mixup": -1.0}, {"cutmix": -0.1}, {"smoothing": 1.0}])
def test_impossible_options_are_named(options: dict[str, float]) -> None:
    images, labels = batch(2)
    with pytest.raises(ValueError, match="must not be negative and smoothing"):
        mix_batch(images, labels, CLASSES, generator=generator(0), **options)
