"""Reading a study file: YAML with presets, every value of the kind it has to be."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, Literal

import yaml

from isoattn.ablate.errors import StudyError, near_names


class _OneOfEachKey(yaml.SafeLoader):
    """YAML in which a key that is given twice is an error: the first one would be lost."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        named = [key for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        keys = [self.construct_object(key, deep=True) for key in named]
        twice = sorted({str(key) for key in keys if keys.count(key) > 1})
        if twice:
            raise yaml.YAMLError(f"line {node.start_mark.line + 1}: {', '.join(twice)} given twice")
        return super().construct_mapping(node, deep)


def read_study_file(path: Path, preset: str | None) -> dict[str, Any]:
    """The plain data of a study file with one of its presets merged in.

    Raises:
        StudyError: unreadable, or no preset of that name.
    """
    try:
        # A SafeLoader with one more check.
        raw = yaml.load(path.read_text(encoding="utf-8"), Loader=_OneOfEachKey)  # noqa: S506
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise StudyError(f"Cannot read the study {path}: {error}") from error
    if not isinstance(raw, dict):
        raise StudyError(f"{path} is no study: it must be a mapping with name, app, arms, ...")
    presets = raw.pop("presets", None) or {"full": {}}
    if not isinstance(presets, dict):
        raise StudyError(f"{path}: presets must be a mapping of names, got {presets!r}")
    default = raw.pop("default_preset", None)
    chosen = preset or default or next(iter(presets))
    if chosen not in presets:
        raise StudyError(f"{path} has no preset {chosen!r}. {near_names(chosen, presets)}")
    changes = presets[chosen] or {}
    if not isinstance(changes, dict):
        raise StudyError(f"{path}: preset {chosen} must be a mapping, got {changes!r}")
    return {**merge(raw, changes), "preset": chosen}


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """``over`` laid over ``base``, mapping by mapping; lists are replaced as a whole."""
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def build(cls: Any, raw: Any, where: str) -> Any:
    """A dataclass of the study from plain data.

    Raises:
        StudyError: an unknown key (with near names), a missing one, a value of another kind.
    """
    if not isinstance(raw, dict):
        raise StudyError(f"{where} must be a mapping, got {raw!r}")
    known = {f.name: f for f in dataclasses.fields(cls)}
    for key in raw:
        if key not in known:
            raise StudyError(f"{where}: unknown key {key!r}. {near_names(key, known)}")
    missing = [
        name
        for name, f in known.items()
        if name not in raw
        and f.default is dataclasses.MISSING
        and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise StudyError(f"{where}: missing {', '.join(missing)}")
    kinds = typing.get_type_hints(cls)
    return cls(**{key: _as(kinds[key], value, f"{where}: {key}") for key, value in raw.items()})


def text_keys(raw: Any, where: str) -> dict[str, Any]:
    """A mapping with names as keys; numbers become text.

    Raises:
        StudyError: no mapping, or a key that YAML reads as true or false.
    """
    if not isinstance(raw, dict):
        raise StudyError(f"{where} must be a mapping, got {raw!r}")
    for key in raw:
        if key is None or isinstance(key, bool):
            raise StudyError(
                f"{where}: YAML reads this name as {key!r}; write it in quotes, like "
                f'"{"on" if key else "off"}"'
            )
    return {str(key): value for key, value in raw.items()}


def _as(kind: Any, value: Any, where: str) -> Any:
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, list | tuple):
            raise StudyError(f"{where} must be a list, got {value!r}")
        return tuple(_as(typing.get_args(kind)[0], item, where) for item in value)
    if typing.get_origin(kind) is Literal:
        if value not in typing.get_args(kind):
            choices = " or ".join(map(str, typing.get_args(kind)))
            raise StudyError(f"{where} must be {choices}, got {value!r}")
        return value
    convert = _SCALARS.get(kind)
    if convert is None:
        return value
    try:
        return convert(value)
    except (TypeError, ValueError):
        raise StudyError(f"{where} must be {_NAMES[kind]}, got {value!r}") from None


def _number(value: Any) -> float:
    # YAML 1.1 reads 1e-3 as text, and true is an int of Python's.
    if isinstance(value, bool):
        raise TypeError
    number = float(value)
    if number != number or number in (float("inf"), float("-inf")):
        raise ValueError
    return number


def _whole(value: Any) -> int:
    if isinstance(value, bool) or int(value) != float(value):
        raise TypeError
    return int(value)


def _text(value: Any) -> str:
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise TypeError
    return str(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


_SCALARS: dict[Any, Callable[[Any], Any]] = {
    float: _number,
    int: _whole,
    str: _text,
    bool: _flag,
}
_NAMES = {float: "a number", int: "a whole number", str: "text", bool: "true or false"}
