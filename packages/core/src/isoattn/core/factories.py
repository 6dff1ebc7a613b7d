"""Naming what a config builds: short name, ``{class_path, init_args}``, factory.

A factory is a class, or a ``functools.partial`` of one with keyword options; what it builds can be
written down as plain data and rebuilt. Only classes that are already imported are found: resolving
a name from a config or a checkpoint imports and executes nothing.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Spec = dict[str, Any]
"""``{"class_path": "isoattn.core.Linear", "init_args": {...}}``: plain data."""


def subclasses(base: type) -> Iterator[type]:
    """Every subclass of ``base`` imported so far, depth first."""
    child: type
    for child in base.__subclasses__():
        yield child
        yield from subclasses(child)


def class_path(cls: type) -> str:
    """The name a config stores: ``isoattn.core.Softmax`` for our own, the full path otherwise."""
    parts = cls.__module__.split(".")
    if parts[0] == "isoattn" and len(parts) > 2:
        return f"isoattn.{parts[1]}.{cls.__name__}"
    return f"{cls.__module__}.{cls.__qualname__}"


def concrete(base: type) -> dict[str, type]:
    """Every concrete subclass of ``base`` imported so far, by short name, sorted."""
    found = {cls.__name__: cls for cls in subclasses(base) if not inspect.isabstract(cls)}
    return dict(sorted(found.items()))


def find(name: str, base: type, what: str) -> type:
    """The class of a short name or class path.

    Args:
        name: ``Softmax`` or ``isoattn.core.Softmax``.
        base: the class it must derive from.
        what: what to call it in an error ("attention").

    Raises:
        ValueError: unknown; lists near names.
    """
    known = concrete(base)
    for short, cls in known.items():
        if name in (short, class_path(cls), f"{cls.__module__}.{cls.__qualname__}"):
            return cls
    near = difflib.get_close_matches(name.rsplit(".", 1)[-1], known, n=3, cutoff=0.4)
    hint = f"Did you mean {' or '.join(near)}?" if near else f"Known: {', '.join(known)}."
    module = name.rpartition(".")[0]
    if module and module not in sys.modules:
        hint = f"Its module {module} is not imported (on the command line: --import {module})."
    raise ValueError(f"There is no {what} named {name!r}. {hint}")


def build_factory(
    spec: str | Mapping[str, Any] | Callable[..., Any], base: type, what: str, positional: int
) -> Callable[..., Any]:
    """A factory from a name, a ``{class_path, init_args}`` mapping, a class, or a factory itself.

    Args:
        spec: what to build.
        base: the class it must derive from.
        what: what to call it in an error.
        positional: how many leading constructor parameters the caller of the factory supplies.

    Raises:
        ValueError: unknown name, or an option that the class does not have.
    """
    if isinstance(spec, str):
        return find(spec, base, what)
    if isinstance(spec, Mapping):
        if "class_path" not in spec or not spec.keys() <= {"class_path", "init_args"}:
            raise ValueError(
                f'The {what} is written {{"class_path": ..., "init_args": {{...}}}}, '
                f"got the keys {sorted(map(str, spec))}."
            )
        cls = find(str(spec["class_path"]), base, what)
        options = dict(spec.get("init_args") or {})
        allowed = list(inspect.signature(cls).parameters)[positional:]
        for option in options:
            if option not in allowed:
                near = difflib.get_close_matches(option, allowed, n=1)
                listing = f"It has {', '.join(allowed)}." if allowed else "It has no options."
                hint = f"Did you mean {near[0]!r}?" if near else listing
                raise ValueError(f"{cls.__name__} has no option {option!r}. {hint}")
        return functools.partial(cls, **options) if options else cls
    return spec


def describe_factory(factory: Callable[..., Any], base: type, what: str) -> Spec:
    """The plain-data description of a factory, to be stored in configs and checkpoints.

    jsonargparse hands over ``partial(instantiate, ..., cls, **options)``; that form is read too.

    Raises:
        ValueError: the factory is neither a class nor a ``functools.partial`` of one, so what it
            builds cannot be written down.
    """
    options: dict[str, Any] = {}
    target: Any = factory
    while isinstance(target, functools.partial):
        options = {**target.keywords, **options}
        classes = [a for a in target.args if isinstance(a, type) and issubclass(a, base)]
        if target.args and not classes:
            break  # positional values: the description has no place for them
        target = classes[-1] if classes else target.func
    if not (isinstance(target, type) and issubclass(target, base)):
        raise ValueError(
            f"Cannot write down the {what} {factory!r}. Give a class, a functools.partial of a "
            'class, a name, or {"class_path": ..., "init_args": ...}.'
        )
    return {"class_path": class_path(target), "init_args": options}
