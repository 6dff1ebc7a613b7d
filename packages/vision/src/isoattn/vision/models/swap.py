"""Swapping the attention of a model that exists, trained or not, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from isoattn.core import Attention, AttentionFactory
from isoattn.core.training import derive_seed
from isoattn.vision.models.self_attention import SelfAttention, layer_indices


@dataclass(frozen=True)
class SwapReport:
    """What a swap did to the parameters, by their names in ``state_dict()``.

    Args:
        layers: names of the layers swapped, such as ``blocks.0.attn``.
        gained: parameters that did not exist before, with their sizes.
        lost: parameters that no longer exist, with their sizes.
        kept: parameters of the old core whose learned values the new core took over.
    """

    layers: list[str]
    gained: dict[str, int]
    lost: dict[str, int]
    kept: list[str]

    @property
    def parameter_change(self) -> int:
        """Parameters gained minus parameters lost."""
        return sum(self.gained.values()) - sum(self.lost.values())

    def __str__(self) -> str:
        return (
            f"attention swapped in {len(self.layers)} layers: "
            f"gained {len(self.gained)} parameters ({sum(self.gained.values())} values), "
            f"lost {len(self.lost)} ({sum(self.lost.values())} values), kept {len(self.kept)}"
        )


def swappable_layers(model: nn.Module) -> dict[str, SelfAttention]:
    """The layers whose attention can be swapped, by name, first to last.

    Raises:
        ValueError: the model has none.
    """
    found = {n: m for n, m in model.named_modules() if isinstance(m, SelfAttention)}
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no swappable attention. "
            "Give an XCiT or a ViT of isoattn.vision, or a module that holds one."
        )
    return found


def swap_attention(
    model: nn.Module,
    attention: AttentionFactory,
    layers: Sequence[int] | None = None,
    *,
    keep: bool = True,
) -> SwapReport:
    """Replace the attention in place; every other weight stays bit-identical.

    An optimiser made before the swap still holds the old core's parameters: make a new one.

    Args:
        model: a network of this package, or a module that holds one.
        attention: called once per swapped layer as ``attention(heads, head_dim)``.
        layers: indices of the swappable layers, first = 0; None = all.
        keep: parameters that old and new core share by name and shape (the temperature of
            CrossCovariance and CosineSoftmax) keep their learned values, as they would in a
            load of the state dict; a swap to the same attention is then a no-op. False: the new
            core starts from its own initial values.

    Returns:
        What was gained, lost and kept.

    Raises:
        ValueError: no swappable layer, or an index out of range.
    """
    gained: dict[str, int] = {}
    lost: dict[str, int] = {}
    kept: list[str] = []
    targets = _select(swappable_layers(model), layers)
    built = {name: layer.build_core(attention) for name, layer in targets.items()}
    for name, core in built.items():
        core.reseed(derive_seed(torch.initial_seed(), name))
    for name, layer in targets.items():
        old, new = layer.core, built[name]
        shared = _carry(old, new) if keep else set()
        kept += [f"{name}.{key}" for key in sorted(shared)]
        gained |= {f"{name}.{k}": p.numel() for k, p in new.named_parameters() if k not in shared}
        lost |= {f"{name}.{k}": p.numel() for k, p in old.named_parameters() if k not in shared}
        layer.core = new
    return SwapReport(list(targets), gained, lost, kept)


@contextmanager
def replaced_attention(
    model: nn.Module, attention: AttentionFactory, layers: Sequence[int] | None = None
) -> Iterator[SwapReport]:
    """Replace the attention for the time of a ``with`` block, then put the same cores back.

    Used to score a trained model with its attention taken out: what ``Mean`` or ``Identity`` in
    its place does not cost, the attention did not give.

    Args:
        model: a network of this package, or a module that holds one.
        attention: the stand-in.
        layers: indices of the swappable layers, first = 0; None = all.

    Example:
        >>> with replaced_attention(model, Mean):
        ...     without = accuracy(model)
    """
    targets = _select(swappable_layers(model), layers)
    before = {name: layer.core for name, layer in targets.items()}
    try:
        yield swap_attention(model, attention, layers)
    finally:
        for name, layer in targets.items():
            layer.core = before[name].train(layer.training)


def _select(
    found: dict[str, SelfAttention], layers: Sequence[int] | None
) -> dict[str, SelfAttention]:
    names = list(found)
    chosen = [names[index] for index in layer_indices(layers, len(names))]
    return {name: found[name] for name in chosen}


def _carry(old: Attention, new: Attention) -> set[str]:
    """Copy what both cores share into the new one; the names of the parameters copied.

    A parameter that the new core does not train is a constant somebody chose, and is left as it
    is. Buffers (random draws) are copied between equal cores only: between classes an equal name
    and shape does not mean an equal distribution.
    """
    theirs = dict(old.named_parameters())
    ours = {k: p for k, p in new.named_parameters() if p.requires_grad}
    shared = {k for k in ours if k in theirs and ours[k].shape == theirs[k].shape}
    for key in shared:
        ours[key].data.copy_(theirs[key].data)
    if _layout(old) == _layout(new):
        new.load_state_dict(old.state_dict())
    return shared


def _layout(core: Attention) -> tuple[type, dict[str, tuple[int, ...]], dict[str, bool]]:
    shapes = {k: tuple(v.shape) for k, v in core.state_dict().items() if isinstance(v, Tensor)}
    trained = {name: p.requires_grad for name, p in core.named_parameters()}
    return type(core), shapes, trained
