"""Evaluation transforms equal timm's; random ones are functions of the generator."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from isoattn.core.training import item_generator
from isoattn.vision.data.transforms import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Normalise,
    RandAugment,
    RandomCropFlip,
    ResizeCentreCrop,
    scoped_seed,
    to_tensor,
)


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


@pytest.mark.parametrize("crop_pct", [1.0, 0.875])
@pytest.mark.parametrize("size", [(300, 200), (200, 300), (224, 224), (225, 500), (30, 40)])
def test_evaluation_equals_timm(size: tuple[int, int], crop_pct: float) -> None:
    from timm.data import create_transform

    reference = create_transform(
        224,
        is_training=False,
        interpolation="bicubic",
        crop_pct=crop_pct,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
    )
    image = picture(*size)
    mine = to_tensor(ResizeCentreCrop((224, 224), crop_pct=crop_pct)(image))
    got = Normalise(IMAGENET_MEAN, IMAGENET_STD)(mine[None])[0]
    assert torch.allclose(got, reference(image), atol=1e-5)


@settings(deadline=None)
@given(
    source=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    size=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    crop_pct=st.floats(0.3, 1.0),
    seed=st.integers(0, 10),
)
def test_every_picture_comes_out_at_the_size(
    source: tuple[int, int], size: tuple[int, int], crop_pct: float, seed: int
) -> None:
    image = picture(*source)
    assert ResizeCentreCrop(size, crop_pct=crop_pct)(image).size == size[::-1]
    assert RandomCropFlip(size)(image, item_generator(0, 0, seed)).size == size[::-1]
    assert to_tensor(image).shape == (3, *source[::-1])


def test_height_and_width_are_never_exchanged() -> None:
    wide = Image.new("RGB", (80, 48))
    wide.paste((255, 0, 0), (40, 0, 80, 48))
    tensor = to_tensor(ResizeCentreCrop((24, 40))(wide))
    assert tensor.shape == (3, 24, 40)
    assert tensor[0, :, :15].max() == 0 and tensor[0, :, 25:].min() == 255


def test_a_strip_does_not_grow_beyond_memory() -> None:
    strip = Image.new("L", (60_000, 1))
    strip.paste(255, (30_000, 0, 60_000, 1))
    result = np.asarray(ResizeCentreCrop((224, 224))(strip))
    assert result.shape == (224, 224)
    assert result[0, 0] < 60 and result[0, -1] > 195


def test_random_crops_are_functions_of_the_generator_and_cover_their_ranges() -> None:
    image = picture(64, 48)
    crop = RandomCropFlip((16, 16))
    state = torch.get_rng_state()
    first = [np.asarray(crop(image, item_generator(0, 0, i))) for i in range(4)]
    again = [np.asarray(crop(image, item_generator(0, 0, i))) for i in range(4)]
    assert torch.equal(state, torch.get_rng_state())
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0], first[1])
    # A horizontal ramp shows where the box lay and whether it was mirrored.
    ramp = Image.fromarray(np.tile(np.arange(256, dtype=np.uint8), (256, 1)))
    wide = RandomCropFlip((8, 8), scale=(0.1, 1.0))
    ends = [
        np.asarray(wide(ramp, item_generator(0, 0, i)))[0, [0, -1]].astype(int) for i in range(300)
    ]
    mirrored = np.mean([a > b for a, b in ends])
    widths = [abs(a - b) for a, b in ends]
    assert 0.4 < mirrored < 0.6
    assert min(widths) < 80 and max(widths) > 180
    unmirrored = RandomCropFlip((8, 8), flip=False)
    assert all(
        np.diff(np.asarray(unmirrored(ramp, item_generator(0, 0, i)))[0].astype(int)).min() >= 0
        for i in range(50)
    )


def test_rand_augment_is_a_function_of_the_generator_and_leaks_nothing() -> None:
    image = picture(32, 32)
    augment = RandAugment("rand-m9-mstd0.5-inc1", (32, 32), IMAGENET_MEAN)

    def run(seed: int) -> list[bytes]:
        return [augment(image, item_generator(seed, 0, i)).tobytes() for i in range(8)]

    before = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()  # type: ignore[index]
    first = run(0)
    assert random.getstate() == before[0]
    assert np.array_equal(np.random.get_state()[1], before[1])  # type: ignore[index]
    assert torch.equal(torch.get_rng_state(), before[2])
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    assert run(0) == first
    assert run(1) != first
    assert len(set(first)) > 4


def test_scoped_seed_restores_after_an_error() -> None:
    before = random.getstate(), torch.get_rng_state()
    with pytest.raises(RuntimeError), scoped_seed(2**62):
        torch.rand(1)
        random.random()
        raise RuntimeError
    assert random.getstate() == before[0] and torch.equal(torch.get_rng_state(), before[1])
    draws = []
    for seed in (1, 1, 2):
        with scoped_seed(seed):
            draws.append((torch.rand(1).item(), random.random(), np.random.rand()))
    assert draws[0] == draws[1] != draws[2]


def test_normalise_is_its_formula() -> None:
    pixels = torch.randint(0, 256, (2, 3, 4, 5), dtype=torch.uint8)
    got = Normalise(IMAGENET_MEAN, IMAGENET_STD)(pixels)
    mean, std = (torch.tensor(v)[:, None, None] for v in (IMAGENET_MEAN, IMAGENET_STD))
    assert got.dtype == torch.float32
    assert torch.allclose(got, (pixels / 255 - mean) / std, atol=1e-5)


def test_impossible_options_are_named() -> None:
    with pytest.raises(ValueError, match="one value a channel"):
        Normalise((0.5,), (0.5, 0.5))
    with pytest.raises(ValueError, match="std above 0"):
        Normalise((0.5,), (0.0,))
    with pytest.raises(ValueError, match=r"crop_pct must lie in \(0, 1\]"):
        ResizeCentreCrop((8, 8), crop_pct=1.2)
    with pytest.raises(ValueError, match="random crop needs"):
        RandomCropFlip((8, 8), scale=(0.5, 0.1))
