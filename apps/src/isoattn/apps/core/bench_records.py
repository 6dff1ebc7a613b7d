"""What a benchmark found: a row for each method and number of tokens, and where they cross."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from isoattn.apps.base.crossover import Crossover, crossover
from isoattn.apps.core.methods import Method, Sizes
from isoattn.apps.core.timing import Peaks
from isoattn.core import attention_spec

BASELINE = Method("Softmax", "attention", attention_spec("Softmax"))


@dataclass
class Row:
    """What was measured of one method at one number of tokens; seconds and bytes.

    Args:
        method: label.
        kind: ``"attention"``, ``"mixer"`` or ``"peer"``.
        version: of a peer.
        tokens: N.
        note: why something is missing; empty where all is there.
        rounds: that were timed.
        forward: median time of a forward pass by the clock that was chosen.
        train: of a forward and backward pass.
        forward_iqr: interquartile range over the rounds.
        train_iqr: the same.
        forward_wall: median wall time.
        train_wall: the same.
        forward_cpu: median processor time of the process.
        train_cpu: the same.
        forward_ratio: to Softmax at the same number of tokens.
        train_ratio: the same.
        forward_flops: closed form.
        train_flops: closed form.
        forward_min_bytes: the inputs read and the output written once; a backward pass as much.
        saved_bytes: kept between forward and backward, closed form.
        forward_bound: roofline seconds.
        train_bound: the same.
        forward_peak: bytes.
        train_peak: bytes.
    """

    method: str
    kind: str
    version: str
    tokens: int
    note: str = ""
    rounds: int = 0
    forward: float | None = None
    train: float | None = None
    forward_iqr: float | None = None
    train_iqr: float | None = None
    forward_wall: float | None = None
    train_wall: float | None = None
    forward_cpu: float | None = None
    train_cpu: float | None = None
    forward_ratio: float | None = None
    train_ratio: float | None = None
    forward_flops: int | None = None
    train_flops: int | None = None
    forward_min_bytes: int | None = None
    saved_bytes: int | None = None
    forward_bound: float | None = None
    train_bound: float | None = None
    forward_peak: int | None = None
    train_peak: int | None = None


@dataclass
class Bench:
    """Everything a report needs."""

    sizes: Sizes
    tokens: list[int]
    settings: dict[str, Any]
    peaks: Peaks
    rows: list[Row] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)

    def of(self, method: str) -> list[Row]:
        """The rows of one method, by rising number of tokens."""
        return [row for row in self.rows if row.method == method]

    @property
    def methods(self) -> list[str]:
        """Labels in the order of the command line."""
        return list(dict.fromkeys(row.method for row in self.rows))


def crossovers(bench: Bench, method: str) -> dict[str, Crossover]:
    """In forward and training time and in peak memory."""
    found = {}
    base = {row.tokens: row for row in bench.of(BASELINE.label)}
    for part in ("forward", "train"):
        rows = [r for r in bench.of(method) if getattr(r, f"{part}_ratio") is not None]
        ratios = [getattr(r, f"{part}_ratio") for r in rows]
        found[part] = crossover([r.tokens for r in rows], ratios)
    for part in ("forward_peak", "train_peak"):
        pairs = [
            (r.tokens, getattr(r, part) / max(1, getattr(base[r.tokens], part)))
            for r in bench.of(method)
            if getattr(r, part) is not None and getattr(base[r.tokens], part)
        ]
        found[part] = crossover([n for n, _ in pairs], [x for _, x in pairs])
    return found
