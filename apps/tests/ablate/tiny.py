"""A study of seconds on sklearn's digits, and attentions that are broken on purpose."""

from __future__ import annotations

import contextlib
import copy
import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from isoattn.apps.main import main

OPTIONS = {
    "trainer.max_epochs": 2,
    "trainer.limit_train_batches": 8,
    "model.network.init_args.depth": 1,
    "model.network.init_args.embed_dim": 16,
    "model.network.init_args.heads": 2,
}

TINY: dict[str, Any] = {
    "name": "tiny",
    "app": "vision",
    "title": "Tiny",
    "question": "Does it run?",
    "configs": ["xcit_digits"],
    "overrides": OPTIONS,
    "arms": {
        "Softmax": "isoattn.core.Softmax",
        "Again": "isoattn.core.Softmax",
        "Zero": "isoattn.core.Zero",
    },
    "baseline": "Softmax",
    # Both far too small, so that the grid has to grow.
    "search": {"values": [0.001, 0.006], "seeds": [100], "extend": 1},
    "confirm_seeds": [0, 1],
    "claim": False,
}

BESIDE: dict[str, Any] = {
    "overrides": {**OPTIONS, "trainer.max_epochs": 1},
    "search": {"values": [0.001, 0.006], "seeds": [100], "extend": 1},
    "references": {"ViT": {"model.network": "isoattn.vision.ViT"}},
    "swaps": ["Softmax", "Zero"],
}
"""For :func:`two_cells`: a search, another network beside the arms, test-time swaps."""

PLANTED = '''
"""Attentions that are broken on purpose."""
import os, signal
import torch
from isoattn.core import Softmax
from isoattn.vision import ViT

class BrokenViT(ViT):
    """Another network, which raises while training."""
    def forward(self, images):
        if self.training:
            raise IndexError("planted network")
        return super().forward(images)

class Greedy(Softmax):
    """Draws from the global generator when it is built (P2)."""
    def __init__(self, heads, head_dim):
        super().__init__(heads, head_dim)
        torch.rand(1)

class Leaky(Softmax):
    """Not a softmax at all: ignores masks and mixes the batch (P4)."""
    def __init__(self, heads, head_dim):
        super().__init__(heads, head_dim)
    def _attend(self, q, k, v, key_mask, causal):
        return v.mean((0, 2), keepdim=True).expand_as(v).clone()

class Poison(Softmax):
    """NaN while training."""
    def __init__(self, heads, head_dim):
        super().__init__(heads, head_dim)
    def _attend(self, q, k, v, key_mask, causal):
        out = super()._attend(q, k, v, key_mask, causal)
        return out * float("nan") if self.training and len(v) > 2 else out

class Raises(Softmax):
    """An exception while training."""
    def __init__(self, heads, head_dim):
        super().__init__(heads, head_dim)
    def _attend(self, q, k, v, key_mask, causal):
        if self.training and len(v) > 2:
            raise IndexError("planted")
        return super()._attend(q, k, v, key_mask, causal)

class Killed(Softmax):
    """Ends its process while training."""
    def __init__(self, heads, head_dim):
        super().__init__(heads, head_dim)
    def _attend(self, q, k, v, key_mask, causal):
        if self.training and len(v) > 32:
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._attend(q, k, v, key_mask, causal)
'''


def tiny(**changes: Any) -> dict[str, Any]:
    """The study with parts replaced."""
    return {**copy.deepcopy(TINY), **changes}


def two_cells(**changes: Any) -> dict[str, Any]:
    """The smallest study: two arms, one rate, one seed."""
    search = {"values": [0.006], "seeds": []}
    arms = {"Softmax": "isoattn.core.Softmax", "Zero": "isoattn.core.Zero"}
    return tiny(**{"search": search, "arms": arms, "confirm_seeds": [0], **changes})


def write_study(folder: Path, study: dict[str, Any], name: str = "tiny.yaml") -> Path:
    file = folder / name
    file.write_text(yaml.safe_dump(study, sort_keys=False), encoding="utf-8")
    return file


def rows(folder: Path) -> list[dict[str, str]]:
    """``cells.csv``, without what only says how long it took or how often it was begun."""
    with (folder / "cells.csv").open(encoding="utf-8", newline="") as file:
        return [
            {k: v for k, v in row.items() if k not in ("seconds", "attempts")}
            for row in csv.DictReader(file)
        ]


def outcome(folder: Path) -> str:
    """``summary.json`` as text, without times, costs and where and when it ran."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items() if k not in _WHEN}
        return [plain(v) for v in value] if isinstance(value, list) else value

    return json.dumps(plain(json.loads((folder / "summary.json").read_text())), sort_keys=True)


_WHEN = {"environment", "costs", "cost", "timing", "seconds", "attempts", "registered", "origin"}


def scraps(folder: Path) -> list[Path]:
    """Files of writers that were killed."""
    return [p for p in folder.rglob("*") if p.name.endswith((".partial", ".tmp"))]


def ablate(*argv: str, cwd: Path) -> subprocess.Popen[str]:
    """``isoattn ablate ...`` in a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "isoattn.apps.main", "ablate", *argv],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Started in the background it would be deaf to Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def descendants(pid: int) -> list[int]:
    """All processes below one that we started, by /proc."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(p) for p in task.read_text().split()]
        except OSError:
            continue
        for child in children:
            found += [child, *descendants(child)]
    return found


@dataclass
class Outcome:
    """What a command came to."""

    code: int
    out: str
    err: str

    @property
    def short(self) -> bool:
        """Whether the error is one that a user can read."""
        return "Traceback" not in self.err and 0 < len(self.err.splitlines()) < 10


def run_command(*argv: str) -> Outcome:
    """``isoattn ...`` in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(argv)
    return Outcome(code, out.getvalue(), err.getvalue())


def alive(pids: list[int]) -> list[int]:
    """Those of the processes that still run; a zombie does not."""
    living = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state not in "ZX":
            living.append(pid)
    return living


def gone(pids: list[int], seconds: float) -> bool:
    """Whether all processes end within the time."""
    deadline = time.monotonic() + seconds
    while alive(pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive(pids)


def kill(pids: list[int], signum: int = signal.SIGKILL) -> None:
    for pid in pids:
        try:
            os.kill(pid, signum)
        except ProcessLookupError:
            continue
