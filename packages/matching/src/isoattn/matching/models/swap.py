"""Which attentions of a matcher stand in self, cross and fine layers, to replace them alone.

:func:`isoattn.core.swap_attention` and :func:`isoattn.core.replaced_attention` do the replacing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from isoattn.core import swappable_layers
from isoattn.matching.models.matcher import Matcher

Place = Literal["self", "cross", "fine"]

PLACES: tuple[Place, ...] = ("self", "cross", "fine")


def layers_at(matcher: Matcher, places: Sequence[Place]) -> list[int]:
    """Indices of the attentions at these places among the swappable layers of a matcher.

    Raises:
        ValueError: an unknown place, or none of these places in the matcher.

    Example:
        >>> with replaced_attention(matcher, Mean, layers_at(matcher, ["cross"])):
        ...     without = recall(matcher)
    """
    wrong = [place for place in places if place not in PLACES]
    if wrong:
        raise ValueError(f"places are {', '.join(PLACES)}; got {', '.join(map(str, wrong))}")
    kinds = matcher.loftr_coarse.kinds
    of_layer = [place_of(name, kinds) for name in swappable_layers(matcher)]
    found = [index for index, place in enumerate(of_layer) if place in places]
    if not found:
        raise ValueError(f"This matcher has no {' or '.join(places)} layer")
    return found


def place_of(name: str, kinds: Sequence[str]) -> str:
    """The place of a layer from its name, such as ``loftr_coarse.layers.3``."""
    part, _, number = name.split(".")
    return "fine" if part == "loftr_fine" else kinds[int(number)]
