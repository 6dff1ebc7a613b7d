"""The position encoding: its formula, the released defect, any size."""

import math

import pytest
import torch

from isoattn.matching.models.positions import frequencies, sinusoid


@pytest.mark.parametrize("dim", [8, 64, 256])
def test_frequencies(dim):
    """zju3dv/LoFTR#41: a precedence error makes the exponent -1."""
    m = torch.arange(dim // 4, dtype=torch.float64)
    fixed, released = frequencies(dim, "fixed"), frequencies(dim, "released")
    torch.testing.assert_close(fixed, 1e4 ** (-2 * m / (dim / 2)))
    torch.testing.assert_close(released, torch.exp(-2 * m))


def test_the_period_of_a_channel_is_that_of_the_paper():
    dim, k = 64, 3
    table = sinusoid((1, 4000), dim, "fixed", dtype=torch.float64)
    wave = table[:, 4 * k]
    period = 1e4 ** (2 * k / (dim / 2)) * 2 * math.pi
    place = torch.arange(1, 4001, dtype=torch.float64)
    torch.testing.assert_close(wave, (place * 2 * math.pi / period).sin())


def test_order_of_channels_and_places():
    table = sinusoid((3, 5), 8, "fixed", dtype=torch.float64).view(3, 5, 8)
    omega = frequencies(8, "fixed")[1].item()
    want = [math.sin(5 * omega), math.cos(5 * omega), math.sin(3 * omega), math.cos(3 * omega)]
    torch.testing.assert_close(table[2, 4, 4:].tolist(), want)


def test_a_larger_grid_continues_a_smaller_one():
    small, large = (sinusoid(grid, 16, "fixed") for grid in ((4, 6), (300, 290)))
    assert torch.equal(large.view(300, 290, 16)[:4, :6], small.view(4, 6, 16))


def test_half_precision_is_rounded_once():
    exact = sinusoid((2, 2000), 16, "fixed", dtype=torch.float64)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        assert torch.equal(sinusoid((2, 2000), 16, "fixed", dtype=dtype), exact.to(dtype))


def test_messages():
    with pytest.raises(ValueError, match="pe must be 'fixed' or 'released', got 'legacy'"):
        sinusoid((2, 2), 8, "legacy")
    with pytest.raises(ValueError, match="channels in fours .* got 10"):
        sinusoid((2, 2), 10, "fixed")
