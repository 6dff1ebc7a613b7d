"""Naming attentions: short name, ``{class_path, init_args}`` and factory, each from the other.

A factory is called as ``attention(heads, head_dim)``, once per layer. Only classes that are
already imported are found: resolving a name from a config or a checkpoint imports nothing.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from isoattn.core.contract import Attention

AttentionFactory = Callable[[int, int], Attention]
"""``factory(heads, head_dim) -> Attention``."""

AttentionSpec = dict[str, Any]
"""``{"class_path": "isoattn.core.Linear", "init_args": {...}}``: plain data."""


def _subclasses(cls: type[Attention]) -> Iterator[type[Attention]]:
    for child in cls.__subclasses__():
        yield child
        yield from _subclasses(child)


def class_path(cls: type[Attention]) -> str:
    """The name a config stores: ``isoattn.core.Softmax`` for our own, the full path otherwise."""
    if cls.__module__.startswith("isoattn.core."):
        return f"isoattn.core.{cls.__name__}"
    return f"{cls.__module__}.{cls.__qualname__}"


def attentions() -> dict[str, type[Attention]]:
    """Every concrete attention imported so far, by short name, sorted."""
    found = {cls.__name__: cls for cls in _subclasses(Attention) if not inspect.isabstract(cls)}
    return dict(sorted(found.items()))


def find_attention(name: str) -> type[Attention]:
    """The class of a short name or class path.

    Raises:
        ValueError: unknown; lists near names.
    """
    known = attentions()
    for short, cls in known.items():
        if name in (short, class_path(cls), f"{cls.__module__}.{cls.__qualname__}"):
            return cls
    near = difflib.get_close_matches(name.rsplit(".", 1)[-1], known, n=3, cutoff=0.4)
    hint = f"Did you mean {' or '.join(near)}?" if near else f"Known: {', '.join(known)}."
    raise ValueError(f"There is no attention named {name!r}. {hint}")


def attention_factory(
    spec: str | Mapping[str, Any] | type[Attention] | AttentionFactory,
) -> AttentionFactory:
    """A factory from a name, a ``{class_path, init_args}`` mapping, a class, or a factory itself.

    Raises:
        ValueError: unknown name, or an option that the class does not have.
    """
    if isinstance(spec, str):
        return find_attention(spec)
    if isinstance(spec, Mapping):
        cls = find_attention(str(spec["class_path"]))
        options = dict(spec.get("init_args") or {})
        _check_options(cls, options)
        return functools.partial(cls, **options) if options else cls
    return spec


def attention_spec(factory: str | Mapping[str, Any] | AttentionFactory) -> AttentionSpec:
    """The plain-data description of a factory, to be stored in configs and checkpoints.

    Raises:
        ValueError: the factory is neither a class nor a ``functools.partial`` of one, so what it
            builds cannot be written down.
    """
    factory = attention_factory(factory)
    options: dict[str, Any] = {}
    while isinstance(factory, functools.partial):
        if factory.args:
            raise ValueError(f"Options of an attention are keyword-only, got {factory.args!r}")
        options = {**factory.keywords, **options}
        factory = factory.func
    if not (isinstance(factory, type) and issubclass(factory, Attention)):
        raise ValueError(
            f"Cannot write down the attention {factory!r}. Give a class, a functools.partial of a "
            'class, a name, or {"class_path": ..., "init_args": ...}.'
        )
    return {"class_path": class_path(factory), "init_args": options}


def _check_options(cls: type[Attention], options: Mapping[str, Any]) -> None:
    allowed = [p for p in inspect.signature(cls).parameters if p not in ("heads", "head_dim")]
    for option in options:
        if option not in allowed:
            near = difflib.get_close_matches(option, allowed, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"It has {', '.join(allowed) or 'none'}."
            raise ValueError(f"{cls.__name__} has no option {option!r}. {hint}")
