"""The argument parser: short errors that name the key, what was got and what is allowed.

jsonargparse reports a tree: the key, every alternative of its type that was tried, and the reason
for each. What the user needs of it is said here in a few lines.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from lightning.pytorch.cli import LightningArgumentParser

from isoattn.apps.base.class_paths import KINDS, known_classes, options_of_classes
from isoattn.apps.base.errors import UserError, near

_MAX_LINES = 8
_MAX_WIDTH = 240
_NOISE = re.compile(
    r"Does not validate against|Subtypes:|Errors:|Given value type:|Subclass types expect|"
    r"a dict |a class path \(str\)|Problem with given class_path|Did you mean|"
    r"Not a valid subclass|Expected a path but|Unable to load config"
)


class ParseError(UserError):
    """A command line or config that does not parse; :func:`shorten` makes it readable.

    Args:
        message: jsonargparse's, whole: parsers of classes inside others hand it up.
        options: every option of the parser, without dashes.
    """

    def __init__(self, message: str, options: Sequence[str]) -> None:
        super().__init__(message)
        self.options = options


class ShortErrorParser(LightningArgumentParser):
    """A LightningArgumentParser that raises where others print their usage and exit."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise the message with the options there are."""
        raise ParseError(message, known_options(self))


def known_options(parser: Any) -> list[str]:
    """Every option of a parser, without dashes."""
    return [
        option.lstrip("-")
        for action in parser._actions
        for option in action.option_strings
        if option.startswith("--")
    ]


def shorten(
    message: str,
    options: Sequence[str],
    argv: Sequence[str] = (),
    attention: str | None = None,
    presets: Iterable[str] = (),
) -> str:
    """Reduce jsonargparse's message to what the user needs, with near names.

    Args:
        message: jsonargparse's.
        options: every option of the parser, without dashes.
        argv: the arguments, to find the whole name of an option that is only named by its end.
        attention: short name of the attention that was asked for; its options are suggested.
        presets: names that are as good as an attention's.
    """
    denied = re.search(r"Importing '([\w.]+)' is not allowed", message)
    if denied:
        return _refused(denied.group(1), _key(message), argv)
    unknown = re.findall(r"[Uu]nrecognized arguments: (.*)", message)
    if unknown:
        return _unknown_arguments(unknown[0].split(), options)
    option = re.search(
        r"Option '([\w.]+)' is not accepted|does not accept option '([\w.\-]+)'", message
    )
    if option:
        return _unknown_option(option, options, argv, attention, message)
    return _bad_value(message, argv, presets)


def _key(message: str, argv: Sequence[str] = ()) -> str:
    """The key a message is about, in full where the arguments have it."""
    keys = re.findall(r"Parser key \"([\w.]+)\"", message) or re.findall(r"^--([\w.]+): ", message)
    return _in_full(keys[-1], argv) or keys[-1] if keys else ""


def _in_full(name: str, argv: Sequence[str]) -> str:
    """The last option among the arguments that ends with ``.name``, or nothing."""
    given = [t.partition("=")[0] for t in argv if t.partition("=")[0].endswith(f".{name}")]
    return given[-1].lstrip("-") if given else ""


def _inside(name: str, argv: Sequence[str]) -> str:
    """``KEY.name`` where the value of an option is a mapping that has the name."""
    holders = [
        t.partition("=")[0]
        for t in argv
        if not t.startswith("--config") and re.search(rf"\b{name}\b['\"]?:", t.partition("=")[2])
    ]
    return f"{holders[-1].lstrip('-')}.{name}" if holders else ""


def _refused(path: str, key: str, argv: Sequence[str]) -> str:
    naming = [t.partition("=")[0] for t in argv if path in t and not t.startswith("--config")]
    where = f"--{key}" if key else naming[-1] if naming else "The config"
    module = path.rpartition(".")[0]
    text = f"{where} names {path}, whose module is not part of isoattn; nothing of it was run."
    if module.split(".")[0] in sys.stdlib_module_names:
        return text
    return f"{text}\nIf it is yours, say so: --import {module}"


def _unknown_arguments(tokens: list[str], options: Sequence[str]) -> str:
    # A value with spaces comes in pieces; the options among them are what was not known.
    names = [t.partition("=")[0] for t in tokens if t.startswith("-")] or tokens[:1]
    lines = [
        f"There is no option {name}. {_near_option(name.lstrip('-'), options)}".rstrip()
        for name in names[:3]
    ]
    return "\n".join(lines)


def _unknown_option(
    match: re.Match[str],
    options: Sequence[str],
    argv: Sequence[str],
    attention: str | None,
    message: str,
) -> str:
    name = match.group(1) or match.group(2)
    if match.group(2):  # named in full
        return f"There is no option {name}. {_near_option(name, options)}".rstrip()
    given = _in_full(name, argv) or _inside(name, argv)
    owner = given or name
    hinted = re.search(r"Did you mean (--[\w]+(?: or --[\w]+)*)", message)
    hint = f"Did you mean {hinted.group(1).replace('--', '')}?" if hinted else ""
    kind = owner.rpartition(".")[0]
    if kind == "model.attention" and attention is not None:
        own = options_of_classes(kind, attention)
        hint = near(name, own) or f"{attention} has no options."
    elif not hint:
        of_kinds = [kind] if kind in KINDS else [] if given else list(KINDS)
        known = {option for k in of_kinds for option in options_of_classes(k)}
        close = difflib.get_close_matches(name, known, n=2)
        hint = f"Did you mean {' or '.join(close)}?" if close else ""
    return f"There is no option {'--' if given else ''}{owner}. {hint}".rstrip()


def _near_option(name: str, options: Sequence[str]) -> str:
    head, _, tail = name.rpartition(".")
    # options of the classes that are chosen by name are not among the others
    inside = [
        f"{kind}.{tail}"
        for kind in KINDS
        if head and kind.startswith(f"{head.split('.')[0]}.") and tail in options_of_classes(kind)
    ]
    if inside:
        return f"Did you mean --{' or --'.join(inside[:2])}?"
    close = difflib.get_close_matches(name, options, n=2, cutoff=0.6)
    last = {o.rsplit(".", 1)[-1]: o for o in options}
    tails = difflib.get_close_matches(name.rsplit(".", 1)[-1], last, n=1, cutoff=0.8)
    close = list(dict.fromkeys([*(last[t] for t in tails), *close]))[:2]
    return f"Did you mean --{' or --'.join(close)}?" if close else ""


def _bad_value(message: str, argv: Sequence[str], presets: Iterable[str]) -> str:
    """``--key: got X; expected A or B``, then whatever reason remains."""
    key = _key(message, argv)
    body = re.sub(r"Parser key \"[\w.]+\":?", "\n", message)
    lines = [line.strip().removeprefix("- ") for line in body.splitlines()]
    lines = [line for line in lines if line not in ("", "-") and not _NOISE.match(line)]
    got = re.search(r"(?:Given|Got) value: (.*)", message)
    value = got.group(1).strip() if got else ""
    expected: list[str] = []
    reasons: list[str] = []
    for line in lines:
        line = re.sub(r"\.? ?(?:Given|Got) value: .*", "", line)
        wanted = re.match(r"Expected an? (.+)", line)
        named = re.search(r"(?:Expected a dot import path string|path format): (.*)", line)
        if named:
            value = value or named.group(1)
            if not known_classes(key.removesuffix(".help")):
                reasons.append(f"There is no {named.group(1)!r}")
        elif wanted:
            expected += [e for e in [_type_words(wanted.group(1))] if e not in expected]
        elif missing := re.match(r"the following arguments are required: (.*)", line):
            reasons.append(f"{missing.group(1)} is required")
        elif line:
            reasons.append(_plain(line))
    value = _class_of(value)
    if expected == ["null"] and reasons:  # the one alternative left is to give nothing
        expected = []
    text = f"--{key}: " if key else ""
    parts = [f"got {value!r}"] if value and (expected or not reasons) else []
    if expected:
        parts.append(f"expected {_either(expected)}")
    classes = known_classes(key.removesuffix(".help"))
    hints = []
    if classes:
        known = [*classes, *(presets if key == "model.attention" else ())]
        if value and not reasons and value.rsplit(".", 1)[-1] not in known:
            parts, reasons = [f"there is no {value!r}. {near(value, known)}"], reasons[:2]
    else:
        hints = _near_choice(value, message)
    reasons = list(dict.fromkeys(reasons))
    if not parts and reasons:
        parts = [reasons.pop(0)]
    first = text + "; ".join(parts)
    shown = [line[:_MAX_WIDTH] for line in [first.strip(), *reasons] if line]
    return "\n".join([*shown[: _MAX_LINES - len(hints)], *hints])


def _type_words(words: str) -> str:
    choices = re.search(r"Literal\[(.*)\]", words)
    if choices:
        return f"one of {choices.group(1)}"
    words = re.sub(r"<class '(?:[\w.]*\.)?(\w+)'>", r"\1", words)
    return words.replace("NoneType", "null").rstrip(".")


def _plain(line: str) -> str:
    line = re.sub(
        r"Type collections\.abc\.Callable\[.*?\] expects a function or a callable class: ", "", line
    )
    return re.sub(r"<class '(?:[\w.]*\.)?(\w+)'>", r"\1", line).rstrip(".")


def _class_of(value: str) -> str:
    """The class path in the print of a class specification."""
    match = re.search(r"class_path['\"]?[=:] ?['\"]([\w.]+)['\"]", value)
    nested = re.match(r"NestedArg\(key='(\w+)', val=(.*)\)$", value)
    if nested:
        return f"{nested.group(1)}={nested.group(2)}"
    return match.group(1) if match else value[:80].replace("None", "null")


def _either(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _near_choice(value: str, message: str) -> list[str]:
    choices = re.findall(r"'([^']*)'", " ".join(re.findall(r"Literal\[(.*?)\]", message)))
    close = difflib.get_close_matches(value, choices, n=2, cutoff=0.5) if value else []
    return [f"Did you mean {' or '.join(dict.fromkeys(close))}?"] if close else []
