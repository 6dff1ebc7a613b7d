"""The attentions by name. A factory is called as ``attention(heads, head_dim)``, once per layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from isoattn.core.contract import Attention
from isoattn.core.factories import Spec, build_factory, concrete, describe_factory, find

AttentionFactory = Callable[[int, int], Attention]
"""``factory(heads, head_dim) -> Attention``."""


def attentions() -> dict[str, type[Attention]]:
    """Every concrete attention imported so far, by short name, sorted."""
    return cast(dict[str, type[Attention]], concrete(Attention))


def find_attention(name: str) -> type[Attention]:
    """The class of a short name or class path.

    Raises:
        ValueError: unknown; lists near names.
    """
    return cast(type[Attention], find(name, Attention, "attention"))


def attention_factory(
    spec: str | Mapping[str, Any] | type[Attention] | AttentionFactory,
) -> AttentionFactory:
    """A factory from a name, a ``{class_path, init_args}`` mapping, a class, or a factory itself.

    Raises:
        ValueError: unknown name, or an option that the class does not have.
    """
    return build_factory(spec, Attention, "attention", positional=2)


def attention_spec(factory: str | Mapping[str, Any] | AttentionFactory) -> Spec:
    """The ``{class_path, init_args}`` description of a factory, for configs and checkpoints.

    Raises:
        ValueError: the factory cannot be written down (a lambda, say).
    """
    return describe_factory(attention_factory(factory), Attention, "attention")
