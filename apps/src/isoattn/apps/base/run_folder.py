"""One run = one folder, fixed before anything is built. The folder is the truth."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from isoattn.apps.base.errors import UserError
from isoattn.apps.base.files import read_json, write_json

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=,-]*\Z")


@dataclass
class RunOptions:
    """Where the run is kept.

    Args:
        name: name of the run folder; made from config, attention and seed if not given.
        root: the folder that holds ``APP/NAME``.
        dir: the run folder itself, instead of root and name; an existing run in it is taken up.
    """

    name: str | None = None
    root: str = "runs"
    dir: str | None = None


@dataclass
class RunFolder:
    """The folder of one run.

    ``config.yaml``, ``metrics.csv``, ``result.json``, ``checkpoints/``, pictures and tracker files.

    Args:
        path: the folder.
        name: what trackers show.
        created: it was made for this run, and no run was in it before.
        started: when, in seconds since the epoch.
        new_parents: folders above it that were made with it, the innermost first.
    """

    path: Path
    name: str
    created: bool = False
    started: float = field(default_factory=time.time)
    new_parents: tuple[Path, ...] = ()

    @property
    def config_file(self) -> Path:
        """The resolved config."""
        return self.path / "config.yaml"

    @property
    def result_file(self) -> Path:
        """The outcome; absent until the run has one."""
        return self.path / "result.json"

    @property
    def checkpoints(self) -> Path:
        """Folder of ``best.ckpt``, ``last.ckpt`` and ``last.previous.ckpt``."""
        return self.path / "checkpoints"

    def discard(self) -> None:
        """Remove a folder made for a run that never began, and those above it that hold nothing.

        So its name is free for the next try. Nothing is removed where a run was before.
        """
        if not self.created:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        with suppress(OSError):  # those that hold something are kept
            for folder in self.new_parents:
                folder.rmdir()

    def write_result(self, **values: Any) -> None:
        """Write or extend ``result.json``, atomically."""
        current = read_json(self.result_file) or {}
        write_json(self.result_file, {**current, **values})


def new_run(options: RunOptions, app: str, default_name: str) -> RunFolder:
    """Create the folder of a new run.

    Raises:
        UserError: a name that would leave the root, or that is taken.
    """
    if options.dir is not None:
        path = Path(options.dir)
        new, absent = _absent_parents(path), not path.exists()
        path.mkdir(parents=True, exist_ok=True)
        return RunFolder(path, path.name, created=absent, new_parents=new)
    base = Path(options.root) / app
    new = _absent_parents(base / "run")
    if options.name is not None:
        if not _NAME.match(options.name):
            raise UserError(
                f"--run.name={options.name!r} is no name for a folder: letters, digits and "
                "._+=,- only, starting with a letter or digit."
            )
        path = base / options.name
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            raise UserError(
                f"The run {path} exists. Choose another --run.name, or go on with it: "
                f"isoattn {app} fit --ckpt_path {path}/checkpoints/last.ckpt"
            ) from None
        return RunFolder(path, options.name, created=True, new_parents=new)
    base.mkdir(parents=True, exist_ok=True)
    stem = re.sub(r"[^A-Za-z0-9._+=,-]+", "-", default_name)
    for number in range(1, 10_000):
        path = base / (stem if number == 1 else f"{stem}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return RunFolder(path, path.name, created=True, new_parents=new)
    raise UserError(f"{base} holds 9,999 runs named {stem}. Use --run.name.")


def _absent_parents(path: Path) -> tuple[Path, ...]:
    return tuple(parent for parent in path.parents if not parent.exists())


def run_of_checkpoint(checkpoint: Path) -> RunFolder | None:
    """The run folder that a checkpoint lies in, if it lies in one."""
    folder = checkpoint.resolve().parent
    if folder.name == "checkpoints" and (folder.parent / "config.yaml").is_file():
        path = checkpoint.parent.parent
        return RunFolder(path, folder.parent.name)
    return None


def environment() -> dict[str, Any]:
    """Versions, device, threads, commit and command, as recorded with every run."""
    import torch

    packages = {}
    for name in ("isoattn", "torch", "torchvision", "lightning", "timm", "numpy", "wandb"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else processor()
    return {
        "python": platform.python_version(),
        "packages": packages,
        "device": device,
        "threads": torch.get_num_threads(),
        "cpus": os.cpu_count(),
        "commit": commit(),
        "command": shlex.join(["isoattn", *sys.argv[1:]]),
    }


def processor() -> str:
    """The name of the processor."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = re.findall(r"model name\s*:\s*(.+)", info.read_text(encoding="utf-8"))
        if names:
            return str(names[0])
    return platform.processor() or platform.machine()


def commit() -> str | None:
    """The commit of the source tree this runs from, with ``+`` where it has been changed."""
    folder = Path(__file__).parent
    git = ["git", "-C", str(folder)]
    try:
        head = subprocess.run(
            [*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True
        )
        dirty = subprocess.run(
            [*git, "status", "--porcelain", "-uno"], capture_output=True, text=True
        )
    except OSError:
        return None
    if head.returncode:
        return None
    return head.stdout.strip() + ("+" if dirty.stdout.strip() else "")
