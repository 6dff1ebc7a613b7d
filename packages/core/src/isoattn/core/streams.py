"""Random draws that a module owns: the n-th draw is a function of a seed and of n alone.

Both numbers are buffers, so a checkpoint continues the draws exactly where they stopped, and
torch's global generator is neither read nor written. Drawing is an operator of its own, so that
``torch.compile`` takes it whole.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from isoattn.core.contract import Attention
from isoattn.core.training.randomness import derive_seed

KINDS = ("normal", "uniform", "exponential")


class Stream(nn.Module):
    """A numbered sequence of random tensors.

    Args:
        seed: of the sequence. Layers built alike share it until :func:`seed_attentions` gives each
            its own.
    """

    seed: Tensor
    count: Tensor

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.register_buffer("seed", torch.tensor(seed, dtype=torch.int64))
        self.register_buffer("count", torch.tensor(0, dtype=torch.int64))

    def reseed(self, seed: int) -> None:
        """Begin again with another seed."""
        self.seed.fill_(seed)
        self.count.zero_()

    def key(self) -> Tensor:
        """What the current draw depends on: int64 (2,), seed and count."""
        return torch.stack([self.seed, self.count])

    def advance(self) -> Tensor:
        """The key of the current draw; the next call gives the next one."""
        key = self.key()
        self.count.add_(1)
        return key


def draw(
    key: Tensor,
    shape: Sequence[int],
    *,
    kind: str = "normal",
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
) -> Tensor:
    """A random tensor that depends on the key alone (and on the kind of device).

    Args:
        key: int64 (2,) or more, from :class:`Stream`; append numbers to it for further streams.
        shape: of the result.
        kind: ``"normal"`` (0, 1), ``"uniform"`` [0, 1) or ``"exponential"`` (rate 1).
        dtype: float32 or float64.
        device: of the result; that of the key unless given.
    """
    device = key.device if device is None else device
    out: Tensor = _draw(key, list(shape), kind, dtype == torch.float64, device.type == "cpu")
    return out.to(device)


@torch.library.custom_op("isoattn::draw", mutates_args=())
def _draw(key: Tensor, shape: list[int], kind: str, double: bool, on_cpu: bool) -> Tensor:
    device = torch.device("cpu") if on_cpu else key.device
    generator = torch.Generator(device).manual_seed(derive_seed(*key.tolist()))
    out = torch.empty(shape, dtype=torch.float64 if double else torch.float32, device=device)
    if kind == "normal":
        return out.normal_(generator=generator)
    if kind == "uniform":
        return out.uniform_(generator=generator)
    if kind == "exponential":
        return out.exponential_(generator=generator)
    raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")


@_draw.register_fake
def _(key: Tensor, shape: list[int], kind: str, double: bool, on_cpu: bool) -> Tensor:
    dtype = torch.float64 if double else torch.float32
    return torch.empty(shape, dtype=dtype, device="cpu" if on_cpu else key.device)


def seed_attentions(model: nn.Module, seed: int) -> None:
    """Give every attention in a model draws of its own, from the seed and the module's name.

    Without it layers built by one factory draw the same numbers. Call it after building the model
    and before loading weights: what a state_dict brings is final.

    Args:
        model: any module; attentions in it are found.
        seed: of the run.
    """
    for name, module in model.named_modules():
        if isinstance(module, Attention):
            module.reseed(derive_seed(seed, name))
