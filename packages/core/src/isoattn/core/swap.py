"""Swapping the attention of a model that exists, trained or not, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from isoattn.core.contract import Attention
from isoattn.core.registry import AttentionFactory
from isoattn.core.training.randomness import derive_seed


@dataclass(frozen=True)
class SwapReport:
    """What a swap did to the parameters, by layer and name inside the attention.

    Args:
        layers: names of the layers swapped, such as ``blocks.0.attn``: the modules that hold an
            attention.
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


@dataclass(frozen=True)
class Site:
    """A place in a model that holds an attention.

    Args:
        layer: the module that calls it.
        attribute: its name there.
    """

    layer: nn.Module
    attribute: str

    @property
    def core(self) -> Attention:
        """The attention that is there."""
        core: Attention = getattr(self.layer, self.attribute)
        return core

    def put(self, core: Attention) -> None:
        """Put another one there."""
        setattr(self.layer, self.attribute, core)

    def build(self, attention: AttentionFactory) -> Attention:
        """A new one of the size, place and mode of the old; torch's generator stays put."""
        old = self.core
        with torch.random.fork_rng(devices=[]):
            core = attention(old.heads, old.head_dim)
        like = next(self.layer.parameters(), None)
        if like is not None:
            core = core.to(device=like.device, dtype=like.dtype)
        return core.train(self.layer.training)


def swappable_layers(model: nn.Module) -> dict[str, Site]:
    """The places whose attention can be swapped, by the name of their layer, first to last.

    Raises:
        ValueError: the model has none.
    """
    found = {}
    for name, layer in model.named_modules():
        own = [key for key, child in layer.named_children() if isinstance(child, Attention)]
        for key in own:
            place = name if len(own) == 1 else f"{name}.{key}".lstrip(".")
            found[place] = Site(layer, key)
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no swappable attention: no module in it holds an "
            "Attention of isoattn.core"
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
        model: any module whose layers hold attentions of ``isoattn.core``.
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
    built = {name: site.build(attention) for name, site in targets.items()}
    for name, core in built.items():
        core.reseed(derive_seed(torch.initial_seed(), name))
    for name, site in targets.items():
        old, new = site.core, built[name]
        shared = _carry(old, new) if keep else set()
        kept += [f"{name}.{key}" for key in sorted(shared)]
        gained |= {f"{name}.{k}": p.numel() for k, p in new.named_parameters() if k not in shared}
        lost |= {f"{name}.{k}": p.numel() for k, p in old.named_parameters() if k not in shared}
        site.put(new)
    return SwapReport(list(targets), gained, lost, kept)


@contextmanager
def replaced_attention(
    model: nn.Module, attention: AttentionFactory, layers: Sequence[int] | None = None
) -> Iterator[SwapReport]:
    """Replace the attention for the time of a ``with`` block, then put the same cores back.

    Used to score a trained model with its attention taken out: what ``Mean`` or ``Identity`` in
    its place does not cost, the attention did not give.

    Args:
        model: any module whose layers hold attentions of ``isoattn.core``.
        attention: the stand-in.
        layers: indices of the swappable layers, first = 0; None = all.

    Example:
        >>> with replaced_attention(model, Mean):
        ...     without = accuracy(model)
    """
    targets = _select(swappable_layers(model), layers)
    before = {name: site.core for name, site in targets.items()}
    try:
        yield swap_attention(model, attention, layers)
    finally:
        for name, site in targets.items():
            site.put(before[name].train(site.layer.training))


def layer_indices(layers: Sequence[int] | None, depth: int) -> list[int]:
    """The chosen layers of ``depth``, all of them for None.

    Raises:
        ValueError: an index out of range.
    """
    if layers is None:
        return list(range(depth))
    wrong = [layer for layer in layers if not 0 <= layer < depth]
    if wrong:
        raise ValueError(
            f"attention layers {wrong} do not exist: the model has layers 0 to {depth - 1}"
        )
    return list(layers)


def _select(found: dict[str, Site], layers: Sequence[int] | None) -> dict[str, Site]:
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
