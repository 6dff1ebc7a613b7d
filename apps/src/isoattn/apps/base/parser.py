"""The argument parser: short errors with near names, configs and presets named without a path."""

from __future__ import annotations

import difflib
import re
import sys
from typing import Any, NoReturn

from lightning.pytorch.cli import LightningArgumentParser

from isoattn.apps.base.errors import UserError, near

_MAX_LINES = 8


class ShortErrorParser(LightningArgumentParser):
    """A LightningArgumentParser whose errors are a few lines and suggest what was meant."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Stop with exit status 2, the message, and near names."""
        raise UserError(shorten(message, known_options(self)))


def known_options(parser: Any) -> list[str]:
    """Every option of a parser, without dashes."""
    return [
        option.lstrip("-")
        for action in parser._actions
        for option in action.option_strings
        if option.startswith("--")
    ]


def shorten(message: str, options: list[str]) -> str:
    """Reduce jsonargparse's message to what the user needs, with near names.

    It nests causes by indentation and ends with every alternative it tried; the first line names
    the key and the deepest ones the reason.
    """
    lines = [line.rstrip() for line in message.strip().splitlines() if line.strip()]
    hints = [*_option_hints(message, options), *_class_hints(message)]
    drop = ("Problem with given class_path", "Not a valid subclass", "Expected a path but")
    kept = [line for line in lines if not line.strip().startswith(drop)] or lines
    if len(kept) > _MAX_LINES - len(hints):
        room = _MAX_LINES - len(hints) - 1
        kept = [kept[0], "  ...", *kept[-(room - 1) :]]
    return "\n".join([*(line[:300] for line in kept), *hints])


def _option_hints(message: str, options: list[str]) -> list[str]:
    hints = []
    unknown = re.findall(r"[Uu]nrecognized arguments?: (--[\w.\-]+)", message)
    unknown += re.findall(r"(?:Key|key|Option|option|Group key) [\"']([\w.]+)[\"'] is not", message)
    for name in unknown:
        name = name.lstrip("-")
        close = difflib.get_close_matches(name, options, n=2, cutoff=0.6)
        if not close:
            last = {o.rsplit(".", 1)[-1]: o for o in options}
            tail = difflib.get_close_matches(name.rsplit(".", 1)[-1], last, n=2, cutoff=0.7)
            close = [last[t] for t in tail]
        if close:
            hints.append(f"Did you mean --{' or --'.join(close)}?")
    return hints


def _class_hints(message: str) -> list[str]:
    from isoattn.core import attentions

    match = re.search(
        r"model\.attention[^\n]*?\n?.*?(?:but|value|for|path) [\"']?([\w.]+)", message
    )
    given = re.findall(r"--model\.attention[= ]([\w.]+)", " ".join(sys.argv))
    names = given or ([match.group(1)] if match else [])
    hints = []
    for name in names:
        if "attention" in message and name.rsplit(".", 1)[-1] not in attentions():
            hints.append(f"There is no attention {name!r}. {near(name, attentions())}")
    return hints
