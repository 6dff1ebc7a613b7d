"""Which classes a config, a checkpoint or a flag may name.

The parser imports the module of a class path before it can look at the class, so an unknown module
is refused by name: nothing of it runs. Allowed are isoattn, lightning and torch, what the user
imported with ``--import``, and modules that already define a class of a kind we build.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

from jsonargparse import set_parsing_settings
from lightning.pytorch import LightningDataModule
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import Logger

from isoattn.core import Attention
from isoattn.core.factories import concrete, subclasses

_ALLOWED = ("isoattn", "lightning", "torch")

KINDS: dict[str, type] = {
    "model.attention": Attention,
    "data": LightningDataModule,
    "trainer.callbacks": Callback,
    "trainer.logger": Logger,
}
"""The options whose value is a class, with its base; an app adds its own."""


def known_classes(option: str) -> list[str]:
    """Short names of the classes that an option can be given; empty for other options."""
    base = KINDS.get(option)
    return [n for n in concrete(base) if not n.startswith("_")] if base is not None else []


def options_of_classes(option: str, name: str | None = None) -> list[str]:
    """The options of one class of a kind, or of all of them."""
    classes = concrete(KINDS[option]) if option in KINDS else {}
    chosen = [cls for short, cls in classes.items() if name in (None, short)]
    supplied = 2 if option == "model.attention" else 0
    own = [list(inspect.signature(cls).parameters)[supplied:] for cls in chosen]
    return list(dict.fromkeys(p for parameters in own for p in parameters))


def own_modules(configs: Iterable[Any]) -> list[str]:
    """Modules of the user's that hold a class of any of these configs."""
    paths = {path for config in configs for path in _class_paths(config)}
    return sorted({p.rpartition(".")[0] for p in paths if p.split(".")[0] not in _ALLOWED})


def _class_paths(config: Any) -> Iterator[str]:
    """Every class that a nested config names."""
    if isinstance(config, dict):
        for key, value in config.items():
            if key == "class_path":
                yield str(value)
            yield from _class_paths(value)
    elif isinstance(config, list):
        for value in config:
            yield from _class_paths(value)


def allow_imported_classes() -> None:
    """Refuse every class path but the allowed ones, in this process."""
    modules = {cls.__module__ for kind in KINDS.values() for cls in subclasses(kind)}
    names = [*_ALLOWED, *(m for m in sorted(modules) if m.split(".")[0] not in _ALLOWED)]
    set_parsing_settings(
        import_path_denylist=["*"],
        import_path_allowlist=[n for n in names if all(p.isidentifier() for p in n.split("."))],
    )


def allow_module(name: str) -> None:
    """Allow the classes of a module that the user imported."""
    set_parsing_settings(import_path_denylist=["*"], import_path_allowlist=[name])
