"""Randomness that is a pure function of who asks: seed, epoch, item, stream.

A draw for item 17 of epoch 3 does not depend on how many draws came before it, so it is the same
for any number of workers, any batch composition, and after a resume. Torch's global generator is
never touched. The mixing function is splitmix64 (Steele, Lea, Flood: "Fast splittable
pseudorandom number generators", OOPSLA 2014).

Shape suffixes: B items, K draws an item.
"""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS = (30, 27, 31)


def _mix(value: int) -> int:
    value &= _MASK
    for shift, multiplier in zip(_SHIFTS, _MULTIPLIERS, strict=False):
        value = ((value ^ (value >> shift)) * multiplier) & _MASK
    return value ^ (value >> _SHIFTS[2])


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed from any number of integers and names; order matters.

    Args:
        parts: integers (negative ones too) or strings, such as ``(seed, epoch, "order")``.

    Returns:
        An integer in [0, 2**63), fit for ``Generator.manual_seed``.

    Example:
        >>> derive_seed(0, 1) != derive_seed(1, 0)
        True
    """
    return _fold(*parts) >> 1


def item_generator(seed: int, epoch: int, index: int, stream: str = "augment") -> torch.Generator:
    """A generator for one item of one epoch.

    Args:
        seed: the run's data seed.
        epoch: epoch number from 0.
        index: stable item id.
        stream: name of the purpose; different streams are independent.

    Returns:
        A fresh CPU generator whose draws depend on the four arguments alone.
    """
    return torch.Generator().manual_seed(derive_seed(seed, epoch, stream, index))


def item_uniform(
    seed: int, epoch: int, index_B: Tensor, draws: int, stream: str = "augment"
) -> Tensor:
    """Uniform numbers for many items at once; a row depends on its own item, never on others.

    Args:
        seed: the run's data seed.
        epoch: epoch number from 0.
        index_B: int64 (B,) stable item ids.
        draws: K, numbers for each item.
        stream: name of the purpose.

    Returns:
        float32 (B, K) in [0, 1), multiples of 2**-24.
    """
    # The state before the item is folded in is shared by the whole batch.
    prefix = _signed(_fold(seed, epoch, stream))
    state_B = _mix_tensor((index_B.to(torch.int64) ^ prefix) + _signed(_GOLDEN))
    steps_K = torch.arange(1, draws + 1, dtype=torch.int64, device=index_B.device)
    bits_BK = _mix_tensor(state_B[:, None] + steps_K * _signed(_GOLDEN))
    # Float32 holds 24 bits exactly, so the result never rounds up to 1.
    return _shift_right(bits_BK, 40).to(torch.float32) * 2.0**-24


def _fold(*parts: int | str) -> int:
    state = 0
    for part in parts:
        number = zlib.crc32(part.encode()) if isinstance(part, str) else part
        state = _mix((state ^ (number & _MASK)) + _GOLDEN)
    return state


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _shift_right(x: Tensor, shift: int) -> Tensor:
    """Logical shift: int64 shifts keep the sign, a hash must not."""
    return (x >> shift) & ((1 << (64 - shift)) - 1)


def _mix_tensor(x: Tensor) -> Tensor:
    for shift, multiplier in zip(_SHIFTS, _MULTIPLIERS, strict=False):
        x = (x ^ _shift_right(x, shift)) * _signed(multiplier)
    return x ^ _shift_right(x, _SHIFTS[2])
