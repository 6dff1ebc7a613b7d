"""What the commands on single attentions share: names, sizes, errors with near names."""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from isoattn.apps.base.errors import UserError, near
from isoattn.core import AttentionFactory, attention_factory, attention_spec, attentions
from isoattn.core.factories import Spec, build_factory, concrete, describe_factory
from isoattn.core.mixers import Mixer

DTYPES = ("float32", "float64", "bfloat16", "float16")


class Parser(argparse.ArgumentParser):
    """Errors in a line or two, with a near option where one was mistyped."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(
            prog,
            description=description,
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the usage.

        Raises:
            UserError: always.
        """
        options = [s for action in self._actions for s in action.option_strings]
        wrong = re.search(r"unrecognized arguments: (--?[\w-]+)", message)
        hint = f" {near(wrong[1], options)}" if wrong else ""
        raise UserError(f"{message}.{hint}\n{self.prog} --help lists the options.")


@dataclass(frozen=True)
class Chosen:
    """An attention that was asked for.

    Args:
        label: how it is shown, ``Linear(feature_map='relu')``.
        spec: as plain data.
        mixer: it is a whole layer, of ``isoattn.core.mixers``.
    """

    label: str
    spec: Spec
    mixer: bool = False

    @property
    def factory(self) -> AttentionFactory:
        """``factory(heads, head_dim) -> Attention``."""
        return attention_factory(self.spec)


def choose(text: str, *, mixers: bool = False) -> Chosen:
    """An attention from ``Name``, ``Name(option=value, ...)`` or JSON.

    JSON is ``{"class_path": "Linear", "init_args": {"feature_map": "relu"}}``.

    Args:
        text: as it was given.
        mixers: whether a mixer may be named too.

    Raises:
        UserError: unknown name or option; lists near ones.
    """
    try:
        given = _read(text)
        name = given["class_path"] if isinstance(given, dict) and "class_path" in given else given
        mixer = isinstance(name, str) and name.rsplit(".", 1)[-1] in own_mixers()
        if mixer and not mixers:
            raise ValueError(f"{name} is a mixer, a whole layer: isoattn bench --layers takes it.")
        if mixer:
            spec = describe_factory(build_factory(given, Mixer, "mixer", 1), Mixer, "mixer")
        else:
            spec = attention_spec(given)
    except ValueError as error:
        raise UserError(str(error)) from error
    options = ", ".join(f"{k}={v!r}" for k, v in spec["init_args"].items())
    short = spec["class_path"].rsplit(".", 1)[-1]
    return Chosen(f"{short}({options})" if options else short, spec, mixer)


def own_mixers() -> list[str]:
    """The mixers of isoattn.core that are built from a number of channels alone."""
    found = {n: c for n, c in concrete(Mixer).items() if c.__module__.startswith("isoattn.core.")}
    required = {
        n: [
            p
            for p in list(inspect.signature(c).parameters.values())[1:]
            if p.default is inspect.Parameter.empty
        ]
        for n, c in found.items()
    }
    return [n for n in found if not required[n]]


def _read(text: str) -> Any:
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"{text!r} is no JSON: {error}") from error
    if "(" not in text:
        return text
    try:
        call = ast.parse(text.strip(), mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise SyntaxError("only option=value may stand in the brackets")
        options = {str(k.arg): _value(k.value) for k in call.keywords}
    except (SyntaxError, ValueError) as error:
        raise ValueError(
            f"{text!r} is no attention: write Name, 'Name(option=value)' or JSON ({error})"
        ) from error
    return {"class_path": ast.unparse(call.func), "init_args": options}


def _value(node: ast.expr) -> Any:
    """A literal, or a bare word as the text it is."""
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)


def own_attentions() -> list[str]:
    """The attentions of isoattn.core by name, without those of the user's."""
    return [n for n, c in attentions().items() if c.__module__.startswith("isoattn.core.")]


def import_modules(names: Sequence[str]) -> None:
    """Import modules of the user's, the current folder included.

    Raises:
        UserError: there is none of that name.
    """
    if names and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    for name in names:
        try:
            importlib.import_module(name)
        except (ImportError, ValueError) as error:
            raise UserError(f"--import {name}: {error}") from error


def add_shared(parser: argparse.ArgumentParser) -> None:
    """Sizes, device and where to write: the same options for every command."""
    parser.add_argument("--heads", type=at_least_one, default=4, help="H (default 4)")
    parser.add_argument("--head_dim", type=at_least_one, default=64, help="D (default 64)")
    parser.add_argument("--batch", type=at_least_one, default=1, help="B (default 1)")
    parser.add_argument("--causal", action="store_true", help="the causal forms")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda, cuda:1, ...")
    parser.add_argument(
        "--threads", type=at_least_one, help="of torch; its own number if not given"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="MODULE",
        help="import a module of yours first, so that its attentions have a name",
    )
    parser.add_argument("--out", type=Path, help="folder of the results")


def at_least_one(text: str) -> int:
    """An integer of at least 1, for argparse."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1, got {text!r}")
    return value


def new_folder(given: Path | None, command: str, name: str) -> Path:
    """The folder that was given, or the first free ``runs/COMMAND/NAME``, ``NAME-2``, ..."""
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        return given
    base = Path("runs") / command
    stem = re.sub(r"[^A-Za-z0-9._+=,-]+", "-", name)
    for number in range(1, 10_000):
        path = base / (stem if number == 1 else f"{stem}-{number}")
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        return path
    raise UserError(f"{base} holds 9,999 folders named {stem}. Use --out.")
