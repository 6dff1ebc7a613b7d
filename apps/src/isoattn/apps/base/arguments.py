"""The command line before it is parsed: names become files, a checkpoint brings its config.

Nothing that a config, a checkpoint or a flag names is imported: see ``class_paths``.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from isoattn.apps.base.checkpoints import read_run_checkpoint
from isoattn.apps.base.class_paths import allow_imported_classes, allow_module
from isoattn.apps.base.errors import UserError
from isoattn.apps.base.shipped import resolve_file, shipped
from isoattn.core.training.checkpoint import CheckpointError, read_checkpoint

_ATTENTION = "--model.attention"
_CHOICES = ("--model", _ATTENTION, f"{_ATTENTION}.class_path")
_JOINED = ("--config", "-c", *_CHOICES, "--ckpt_path", "--init_from")
# A class without options: going through it drops the options of the class before.
_FRESH = f"{_ATTENTION}=isoattn.core.Zero"


@dataclass
class Arguments:
    """What the command line became.

    Args:
        subcommand: fit, validate, test or predict.
        argv: arguments for the parser, subcommand first.
        checkpoint: of ``--ckpt_path``, or None.
        stored_config: the config of that checkpoint, in full.
        attention: short name of the attention that is asked for, or None.
        app: the command object built from it, set by that object; also where building it failed.
    """

    subcommand: str
    argv: list[str]
    checkpoint: Path | None = None
    stored_config: dict[str, Any] = field(default_factory=dict)
    attention: str | None = None
    app: Any = None


def prepare(app: str, argv: list[str], *, default_config: str) -> Arguments:
    """Expand a command line.

    * ``--config NAME`` and ``--model.attention=PRESET`` find the files the app ships;
    * ``--import MODULE`` imports a module of the user's, so that its attentions are known by name;
    * ``--ckpt_path`` and ``--init_from`` bring the checkpoint's config as defaults;
    * with neither a config nor a checkpoint, the default config is used.

    Configs apply from left to right, then the other options, wherever they stand: what is said
    explicitly is never overruled by a file. Naming another attention starts from its own defaults.

    Raises:
        UserError: a name that finds nothing.
    """
    subcommand, rest = argv[0], _imports(list(argv[1:]))
    rest = [_preset(app, token) for token in _join(rest)]
    allow_imported_classes()
    configs = [_config(app, t.partition("=")[2]) for t in rest if _is_config(t)]
    rest = _class_first([t for t in rest if not _is_config(t)])
    if any(t in ("--help", "-h") or t.partition("=")[0].endswith(".help") for t in rest):
        return Arguments(subcommand, [subcommand, *configs, *rest])
    checkpoint = _value(rest, "--ckpt_path")
    if checkpoint is not None and _value(rest, "--init_from") is not None:
        raise UserError(
            "--ckpt_path goes on with a run, --init_from starts another from its weights: give one."
        )
    stored = _stored_config(app, checkpoint, _value(rest, "--init_from"))
    if stored:
        kept = _for_subcommand(stored, checkpoint is not None)
        configs.insert(0, f"--config={yaml.safe_dump(kept)}")
    elif not configs:
        configs = [f"--config={resolve_file(default_config, app, 'configs')}"]
    tokens, attention = _start_from_own_defaults([*configs, *rest])
    return Arguments(
        subcommand,
        [subcommand, *tokens],
        Path(checkpoint) if checkpoint is not None else None,
        stored,
        attention,
    )


def _stored_config(app: str, checkpoint: str | None, source: str | None) -> dict[str, Any]:
    """The config in the checkpoint to resume (must be the app's) or to start from (may be)."""
    if checkpoint is not None:
        with _naming("--ckpt_path"):
            content = read_run_checkpoint(Path(checkpoint))["isoattn"]
        if content.get("app") != app:
            raise UserError(
                f"{checkpoint} belongs to isoattn {content.get('app')}, not to isoattn {app}."
            )
        stored: dict[str, Any] = content["config"]
        return stored
    if source is not None and Path(source).suffix == ".ckpt" and Path(source).is_file():
        with _naming("--init_from"):
            content = read_checkpoint(Path(source), require_checksum=False).get("isoattn", {})
        return dict(content.get("config", {})) if content.get("app") == app else {}
    return {}


@contextmanager
def _naming(option: str) -> Iterator[None]:
    """Let the error of a file name the option that gave it."""
    try:
        yield
    except CheckpointError as error:
        raise UserError(f"{option}: {error}") from error


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
        if old.get(key) == new.get(key) or _may_differ(key, subcommand):
            continue
        if _moved_file(key, old.get(key), new.get(key)):
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
_OWN_FILES = ("nodes", "edges", "path")


def _may_differ(key: str, subcommand: str) -> bool:
    part, _, rest = key.partition(".")
    last = rest.rsplit(".", 1)[-1]
    if part == "model":
        return False
    if part == "data":
        if "predict_source" in rest.split("."):  # other data to predict
            return True
        if {"val_source", "test_source"} & set(rest.split(".")):  # other data to score
            return subcommand != "fit"
        return last in _FREE_DATA or (subcommand != "fit" and last in ("batch_size", "augment"))
    if part == "seed_everything":
        return subcommand != "fit"
    if part == "trainer":
        return subcommand != "fit" or rest not in _EXPERIMENT_TRAINER
    return True


def _moved_file(key: str, old: Any, new: Any) -> bool:
    """Whether both name a file of the user's own; that it is the same is told by its content."""
    *_, kind, options, last = ["", "", *key.split(".")]
    named = last in _OWN_FILES and (kind, options) == ("source", "init_args")
    return named and isinstance(old, str) and isinstance(new, str)


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
    drop = {"run", "ckpt_path", "init_from", "weights_only", "output"}
    if not resume:
        drop |= {"tracker", "wandb", "seed_everything"}
    return {k: v for k, v in stored.items() if k not in drop}


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
            except (ImportError, ValueError) as error:
                raise UserError(f"--import {name}: {error}") from error
            allow_module(name)
        else:
            rest.append(token)
    return rest


def _join(argv: list[str]) -> list[str]:
    """``--config NAME`` as ``--config=NAME``, for the options that are looked at here."""
    joined: list[str] = []
    for token in argv:
        if joined and joined[-1] in _JOINED and not token.startswith("--"):
            joined[-1] += f"={token}"
        else:
            joined.append(token)
    return joined


def _is_config(token: str) -> bool:
    return token.partition("=")[0] in ("--config", "-c")


def _preset(app: str, token: str) -> str:
    """The content of a preset, shipped or a file: the parser reports faults in files badly."""
    key, sign, value = token.partition("=")
    if not sign or not re.fullmatch(rf"{_ATTENTION}(_[a-z]+)?", key):
        return token
    file = Path(value) if _is_file(value) else None
    if file is None and os.path.sep not in value:
        file = shipped(app, "configs/attention").get(value.removesuffix(".yaml"))
    if file is None:
        return token
    content = _read_yaml(file, "preset")
    if not (isinstance(content, str) or (isinstance(content, dict) and "class_path" in content)):
        raise UserError(f"The preset {file} names no class: it needs class_path and init_args.")
    return f"{key}={file.read_text(encoding='utf-8')}"


def _config(app: str, name: str) -> str:
    path = resolve_file(name, app, "configs")
    content = _read_yaml(path, "config")
    if not isinstance(content, dict):
        raise UserError(f"The config {path} is no mapping of options.")
    return f"--config={path}"


def _read_yaml(file: Path, what: str) -> Any:
    try:
        return yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"Cannot read the {what} {file}: {reason}") from error


def _class_first(argv: list[str]) -> list[str]:
    """The choice of the attention before its options, in whatever order a sweep writes them."""
    chosen = [t for t in argv if t.partition("=")[0] in _CHOICES]
    return [*chosen, *(t for t in argv if t.partition("=")[0] not in _CHOICES)]


def _start_from_own_defaults(tokens: list[str]) -> tuple[list[str], str | None]:
    """Let another attention start from its own defaults; also the attention that is chosen.

    The parser would keep every option of the attention before whose name the new one shares: a
    temperature meant for one class would be given to another in silence.
    """
    result: list[str] = []
    current: str | None = None
    for token in tokens:
        chosen = _chosen_attention(token)
        if chosen is not None and current is not None and chosen != current:
            result.append(_FRESH)
        result.append(token)
        current = chosen or current
    return result, current


def _chosen_attention(token: str) -> str | None:
    """Short name of the attention that an argument chooses, if it chooses one."""
    key, _, value = token.partition("=")
    if key == f"{_ATTENTION}.class_path":
        return value.rsplit(".", 1)[-1]
    if key == _ATTENTION:
        return _class_name(_loaded(value, Path()))
    if key not in ("--model", "--config"):
        return None
    content = _loaded(value, Path())
    model = content.get("model") if key == "--config" and isinstance(content, dict) else content
    chosen = model.get("attention") if isinstance(model, dict) else None
    if isinstance(chosen, str):
        chosen = _loaded(chosen, Path(value).parent if _is_file(value) else Path())
    return _class_name(chosen)


def _class_name(chosen: Any) -> str | None:
    path = chosen.get("class_path") if isinstance(chosen, dict) else chosen
    return path.rsplit(".", 1)[-1] if isinstance(path, str) else None


def _loaded(value: str, folder: Path) -> Any:
    """What a YAML file or inline YAML holds; the text itself where it is neither."""
    for file in (folder / value, Path(value)) if len(value) < 4096 else ():
        if _is_file(str(file)):
            value = file.read_text(encoding="utf-8", errors="replace")
            break
    try:
        return yaml.safe_load(value)
    except yaml.YAMLError:
        return value


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except (OSError, ValueError):  # inline YAML: too long, or with characters no file name has
        return False


def _value(argv: list[str], option: str) -> str | None:
    found = None
    for index, token in enumerate(argv):
        if token == option and index + 1 < len(argv):
            found = argv[index + 1]
        elif token.startswith(option + "="):
            found = token.partition("=")[2]
    return None if found in (None, "", "null") else found
