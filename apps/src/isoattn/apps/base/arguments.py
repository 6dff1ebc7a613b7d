"""The command line before it is parsed: names become files, a checkpoint brings its config.

Also the place where class paths are looked at *before* anything could import them.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from isoattn.apps.base.checkpoints import read_run_checkpoint
from isoattn.apps.base.errors import UserError
from isoattn.apps.base.shipped import resolve_file, shipped
from isoattn.core.training.checkpoint import read_checkpoint

_TRUSTED = {"isoattn", "lightning", "torch"}
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+\Z")


@dataclass
class Arguments:
    """What the command line became.

    Args:
        subcommand: fit, validate, test or predict.
        argv: arguments for the parser, subcommand first.
        checkpoint: of ``--ckpt_path``, or None.
        stored_config: the config of that checkpoint, in full.
        app: the command object built from it, set by that object; also where building it failed.
    """

    subcommand: str
    argv: list[str]
    checkpoint: Path | None = None
    stored_config: dict[str, Any] = field(default_factory=dict)
    app: Any = None


def prepare(app: str, argv: list[str], *, default_config: str) -> Arguments:
    """Expand a command line.

    * ``--config NAME`` and ``--model.attention=PRESET`` find the files the app ships;
    * ``--import MODULE`` imports a module of the user's, so that its attentions are known by name;
    * ``--ckpt_path`` and ``--init_from`` bring the checkpoint's config as defaults;
    * with neither a config nor a checkpoint, the default config is used.

    Raises:
        UserError: a name that finds nothing, or a class path outside what is imported.
    """
    subcommand, rest = argv[0], list(argv[1:])
    rest = _imports(rest)
    rest = [_preset(app, token) for token in rest]
    rest = _configs(app, rest)
    _refuse_foreign_classes(rest)
    if "--help" in rest or "-h" in rest or any(t.endswith(".help") for t in rest):
        return Arguments(subcommand, [subcommand, *rest])
    checkpoint = _value(rest, "--ckpt_path")
    source = _value(rest, "--init_from")
    stored: dict[str, Any] = {}
    if checkpoint is not None:
        content = read_run_checkpoint(Path(checkpoint))["isoattn"]
        if content.get("app") != app:
            raise UserError(
                f"{checkpoint} belongs to isoattn {content.get('app')}, not to isoattn {app}."
            )
        stored = content["config"]
    elif source is not None and Path(source).suffix == ".ckpt" and Path(source).is_file():
        content = read_checkpoint(Path(source), require_checksum=False).get("isoattn", {})
        stored = content.get("config", {}) if content.get("app") == app else {}
    base: list[str] = []
    if stored:
        _check_classes(stored, f"the config in {checkpoint or source}")
        base = ["--config", yaml.safe_dump(_for_subcommand(stored, checkpoint is not None))]
    elif not any(t in ("--config", "-c") for t in rest):
        base = ["--config", str(resolve_file(default_config, app, "configs"))]
    return Arguments(
        subcommand,
        [subcommand, *base, *rest],
        Path(checkpoint) if checkpoint is not None else None,
        stored,
    )


def contradictions(
    stored: dict[str, Any], given: dict[str, Any], subcommand: str
) -> list[tuple[str, Any, Any]]:
    """Options on which the command line and the checkpoint disagree: (key, checkpoint's, given).

    Where the run is kept, how it is tracked, on what device it runs and where the data lie may
    differ; what makes up the experiment may not.
    """
    old, new = _flat(stored), _flat(given)
    found = []
    for key in sorted(old.keys() | new.keys()):
        if _may_differ(key, subcommand) or old.get(key) == new.get(key):
            continue
        found.append((key, old.get(key), new.get(key)))
    classes = [k for k, _, _ in found if k.endswith("class_path")]
    # Another class has other options: naming the class says it all.
    hidden = tuple(k.removesuffix("class_path") + "init_args." for k in classes)
    return [c for c in found if not c[0].startswith(hidden)] if hidden else found


_EXPERIMENT_TRAINER = (
    "max_epochs",
    "max_steps",
    "precision",
    "accumulate_grad_batches",
    "gradient_clip_val",
    "gradient_clip_algorithm",
    "limit_train_batches",
)
_FREE_DATA = ("num_workers", "root", "predict_dir")


def _may_differ(key: str, subcommand: str) -> bool:
    part, _, rest = key.partition(".")
    last = rest.rsplit(".", 1)[-1]
    if part == "model":
        return False
    if part == "data":
        return last in _FREE_DATA or (subcommand != "fit" and last in ("batch_size", "augment"))
    if part == "seed_everything":
        return subcommand != "fit"
    if part == "trainer":
        return subcommand != "fit" or rest not in _EXPERIMENT_TRAINER
    return True


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(value, dict) and value:
        flat: dict[str, Any] = {}
        for key, child in value.items():
            flat.update(_flat(child, f"{prefix}{key}."))
        return flat
    value = list(value) if isinstance(value, tuple) else value
    return {prefix[:-1]: value} if value not in ({}, None) else {}


def _for_subcommand(stored: dict[str, Any], resume: bool) -> dict[str, Any]:
    """The stored config without what belongs to the run that wrote it."""
    drop = {"run", "tracker", "wandb", "ckpt_path", "init_from", "weights_only", "output"}
    kept = {k: v for k, v in stored.items() if k not in drop}
    if not resume:
        kept.pop("seed_everything", None)
    return kept


def _imports(argv: list[str]) -> list[str]:
    rest = []
    tokens = iter(argv)
    for token in tokens:
        if token == "--import" or token.startswith("--import="):
            name = token.partition("=")[2] or next(tokens, "")
            if str(Path.cwd()) not in sys.path:
                sys.path.insert(0, str(Path.cwd()))
            try:
                importlib.import_module(name)
            except ImportError as error:
                raise UserError(f"--import {name}: {error}") from error
        else:
            rest.append(token)
    return rest


def _preset(app: str, token: str) -> str:
    key, sign, value = token.partition("=")
    if key == "--model.attention" and sign and os.path.sep not in value:
        presets = shipped(app, "configs/attention")
        if value.removesuffix(".yaml") in presets and not Path(value).is_file():
            return f"{key}={presets[value.removesuffix('.yaml')]}"
    return token


def _configs(app: str, argv: list[str]) -> list[str]:
    rest = []
    tokens = iter(argv)
    for token in tokens:
        key, sign, value = token.partition("=")
        if key in ("--config", "-c"):
            name = value if sign else next(tokens, "")
            path = resolve_file(name, app, "configs")
            try:
                content = yaml.safe_load(path.read_text(encoding="utf-8"))
            except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
                reason = " ".join(str(error).split())
                raise UserError(f"Cannot read the config {path}: {reason}") from error
            if not isinstance(content, dict):
                raise UserError(f"The config {path} is no mapping of options.")
            _check_classes(content, str(path))
            rest += ["--config", str(path)]
        else:
            rest.append(token)
    return rest


def _class_paths(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, child in value.items():
            if key == "class_path" and isinstance(child, str):
                yield child
            yield from _class_paths(child)
    elif isinstance(value, list):
        for child in value:
            yield from _class_paths(child)


def _check_classes(config: dict[str, Any], where: str) -> None:
    for path in _class_paths(config):
        _trust(path, where)
    model = config.get("model")
    for key in ("attention", "network"):
        value = model.get(key) if isinstance(model, dict) else None
        if isinstance(value, str) and _DOTTED.match(value) and not Path(value).is_file():
            _trust(value, where)


def _refuse_foreign_classes(argv: list[str]) -> None:
    keys = ("--model", "--data", "--trainer.logger", "--trainer.callbacks", "--trainer.plugins")
    previous = ""
    for token in argv:
        key, sign, value = token.partition("=")
        candidate = value if sign else token
        owner = key if sign else previous
        if owner.startswith(keys) and _DOTTED.match(candidate) and not Path(candidate).is_file():
            _trust(candidate, owner)
        if owner.startswith(keys) and "class_path" in candidate:
            try:
                content = yaml.safe_load(candidate)
            except yaml.YAMLError:
                continue  # the parser will say what is wrong with it
            for path in _class_paths(content):
                _trust(path, owner)
        previous = "" if sign else token


def _trust(path: str, where: str) -> None:
    """Refuse a class path whose module would have to be imported to be looked at."""
    module = path.rpartition(".")[0]
    if not module or path.split(".")[0] in _TRUSTED or module in sys.modules:
        return
    raise UserError(
        f"{where} names {path}, whose module is not part of isoattn; nothing of it was run.\n"
        f"If it is yours, say so: --import {module}"
    )


def _value(argv: list[str], option: str) -> str | None:
    found = None
    for index, token in enumerate(argv):
        if token == option and index + 1 < len(argv):
            found = argv[index + 1]
        elif token.startswith(option + "="):
            found = token.partition("=")[2]
    return None if found in (None, "", "null") else found
