"""Replacing the attention of a matcher that exists, trained or not, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch

from isoattn.core import Attention, AttentionFactory, attention_factory
from isoattn.core.training import derive_seed
from isoattn.matching.models.matcher import Matcher
from isoattn.matching.models.transformer import EncoderLayer

Place = Literal["self", "cross", "fine"]

PLACES: tuple[Place, ...] = ("self", "cross", "fine")


def attention_layers(matcher: Matcher, places: Sequence[Place] = PLACES) -> dict[str, EncoderLayer]:
    """The layers at these places by name, first to last.

    Raises:
        ValueError: an unknown place.
    """
    wrong = [place for place in places if place not in PLACES]
    if wrong:
        raise ValueError(f"places are {', '.join(PLACES)}; got {', '.join(map(str, wrong))}")
    found: dict[str, EncoderLayer] = {}
    coarse = matcher.loftr_coarse
    for number, (kind, layer) in enumerate(zip(coarse.kinds, coarse.layers, strict=True)):
        if kind in places:
            assert isinstance(layer, EncoderLayer)
            found[f"loftr_coarse.layers.{number}"] = layer
    if matcher.loftr_fine is not None and "fine" in places:
        for number, layer in enumerate(matcher.loftr_fine.layers):
            assert isinstance(layer, EncoderLayer)
            found[f"loftr_fine.layers.{number}"] = layer
    return found


def swap_attention(
    matcher: Matcher, attention: AttentionFactory, places: Sequence[Place] = PLACES
) -> list[str]:
    """Replace the attention in place; every other weight stays bit-identical.

    Random draws of the new attention follow torch's initial seed and the name of the layer. An
    optimiser made before still holds the parameters of the old one: make a new one.

    Args:
        matcher: to change.
        attention: called once a layer as ``attention(heads, head_dim)``.
        places: which layers.

    Returns:
        Names of the layers that were changed.

    Raises:
        ValueError: an unknown place, or none of these places in the matcher.
    """
    layers = attention_layers(matcher, places)
    if not layers:
        raise ValueError(f"This matcher has no {' or '.join(places)} layer to change")
    factory = attention_factory(attention)
    for name, layer in layers.items():
        core = layer.build_core(factory)
        core.reseed(derive_seed(torch.initial_seed(), name))
        layer.core = core
    return list(layers)


@contextmanager
def replaced_attention(
    matcher: Matcher, attention: AttentionFactory, places: Sequence[Place] = PLACES
) -> Iterator[list[str]]:
    """Replace the attention for the time of a ``with`` block, then put the same cores back.

    What a trained matcher loses with ``Mean`` in its place is what the attention gave.

    Args:
        matcher: to change and restore.
        attention: the stand-in.
        places: which layers.

    Example:
        >>> with replaced_attention(matcher, Mean, ["cross"]):
        ...     without = recall(matcher)
    """
    before: dict[str, Attention] = {
        name: layer.core for name, layer in attention_layers(matcher, places).items()
    }
    try:
        yield swap_attention(matcher, attention, places)
    finally:
        for name, layer in attention_layers(matcher, places).items():
            layer.core = before[name].train(layer.training)
