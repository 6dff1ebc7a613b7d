"""Configs, presets and studies that ship with the apps, named without a path."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from isoattn.apps.base.errors import UserError, near


def shipped(app: str, kind: str) -> dict[str, Path]:
    """The files an app ships under ``configs`` or ``studies``, by name without suffix."""
    folder = Path(str(files(f"isoattn.apps.{app}"))) / kind
    return {file.stem: file for file in sorted(folder.glob("*.yaml"))}


def resolve_file(name: str, app: str, kind: str) -> Path:
    """A path as it stands, or the shipped file of that name.

    Raises:
        UserError: neither; lists near names.
    """
    path = Path(name)
    if path.is_file():
        return path
    known = shipped(app, kind)
    stem = name.removesuffix(".yaml")
    if stem in known:
        return known[stem]
    what = {"configs": "config", "studies": "study", "configs/attention": "preset"}[kind]
    raise UserError(
        f"There is no {what} {name!r}: no such file, and isoattn {app} ships none of that name.\n"
        f"{near(stem, known)}"
    )
