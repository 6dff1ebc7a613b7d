"""What a finished cell leaves behind, as the statistics and the report read it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Strata = dict[str, dict[str, dict[str, float]]]
"""Stratum -> group -> score -> value."""
TUNED = "+tuned"
"""``test/accuracy@ARM+tuned``: the score of a run that was trained on with an arm's attention."""


@dataclass(frozen=True)
class CellResult:
    """One training run of a study.

    Args:
        cell: id: a readable prefix and the hash of the resolved config.
        arm: name of the arm.
        levels: factor -> level.
        learning_rate: peak rate of this run.
        seed: its seed.
        stage: ``search`` runs are scored on validation only, ``confirm`` runs on test, once.
        status: ``done``; ``diverged`` (a non-finite value stopped it: counts as the worst result,
            is never dropped); ``failed`` (crashed on every attempt: listed, blocks the verdict).
        metrics: ``val/accuracy`` (selected checkpoint) and, for confirm runs, ``test/accuracy``,
            ``test/accuracy_replaced`` (same weights, the attention replaced by ``replaced_by``).
        replaced_by: name of the attention used for ``*_replaced``.
        curve: per epoch: {"epoch": ..., "val/accuracy": ..., "train/loss": ...}.
        batch_hashes: one hash an epoch over ids and augmented tensors.
        init_hash: hash of the initial values of all weights outside the attention cores.
        parameters: number of trainable parameters.
        attention_parameters: of them inside the attention cores.
        seconds: wall-clock time of training; 0 where it is not known (a run taken up again).
        attempts: how often it was started.
        predictions: npz with ``index``, ``label``, ``predicted`` of the test items, or None.
        error: last line of the error of a diverged or failed cell.
        folder: the run folder.
        swapped: arm -> ``{class_path, init_args}`` of each attention that was put in place of its
            own at test time; scored as ``test/accuracy@ARM``.
        tuned: how it was trained further with each of them and with its own attention; scored as
            ``test/accuracy@ARM+tuned``. Empty: it was not.
        strata: stratum -> group -> test scores of the items in it, ``items`` among them: how many.
        same_run: id of the cell, at other levels or (STUDY FOLDER/id) of another study, whose
            training this is; empty: its own.
    """

    cell: str
    arm: str
    levels: dict[str, str]
    learning_rate: float
    seed: int
    stage: Literal["search", "confirm"]
    status: Literal["done", "diverged", "failed"]
    metrics: dict[str, float] = field(default_factory=dict)
    replaced_by: str | None = None
    curve: list[dict[str, float]] = field(default_factory=list)
    batch_hashes: list[str] = field(default_factory=list)
    init_hash: str = ""
    parameters: int = 0
    attention_parameters: int = 0
    seconds: float = 0.0
    attempts: int = 1
    predictions: Path | None = None
    error: str = ""
    folder: Path | None = None
    swapped: dict[str, dict[str, Any]] = field(default_factory=dict)
    tuned: dict[str, Any] = field(default_factory=dict)
    strata: Strata = field(default_factory=dict)
    same_run: str = ""

    def scored_with(self, metric: str, arm: str) -> float | None:
        """The test metric with another arm's attention in place, None where it has none."""
        return self.metrics.get(f"test/{metric}@{arm}") if arm in self.swapped else None

    def tuned_with(self, metric: str, arm: str) -> float | None:
        """The test metric after training on with an arm's attention, None where it has none."""
        return self.metrics.get(f"test/{metric}@{arm}{TUNED}") if self.tuned else None

    @property
    def of_swaps(self) -> tuple[str, ...]:
        """How the names of metrics end that belong to another attention or to further training."""
        return (*(f"@{arm}" for arm in self.swapped), TUNED)


@dataclass(frozen=True)
class ArmCost:
    """Cost of one training step and of the forward pass, per arm and factor level (P9).

    Args:
        arm: name of the arm.
        levels: factor -> level.
        forward_flops: of the whole network for one sample, by closed forms and counter.
        attention_flops: the part of the attention cores.
        step_ms: median milliseconds of forward + backward + optimiser step, processor time of the
            one thread that is used.
        step_ms_iqr: interquartile range of it.
        forward_ms: median milliseconds of the forward pass.
        peak_mib: peak resident memory above the idle process, of a child that runs training steps.
        batch: samples a step.
        note: such as ``fused`` or ``math`` path of softmax.
    """

    arm: str
    levels: dict[str, str]
    forward_flops: int
    attention_flops: int
    step_ms: float
    step_ms_iqr: float
    forward_ms: float
    peak_mib: float
    batch: int
    note: str = ""


@dataclass(frozen=True)
class StudyResults:
    """All that a report is made of.

    Args:
        cells: every cell of an arm, whatever its status.
        costs: cost table, may be empty.
        baselines: simple references of the domain, level set (``all``: of every one) -> name ->
            test score (``1-NN on pixels``: 0.934).
        environment: versions, device, threads, commit, command.
        deviations: what differs from the registered study, one line each; empty = registered.
        rates_tried: the learning rates run, including extensions of the grid.
        unfinished: cells that are planned and not yet there.
        gate_failures: conformance laws that failed, per arm (P4).
        references: every cell of a reference; apart, since nothing that is judged may read them.
        reference_rates: reference -> the learning rates run for it.
    """

    cells: list[CellResult]
    costs: list[ArmCost] = field(default_factory=list)
    baselines: dict[str, dict[str, float]] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    deviations: list[str] = field(default_factory=list)
    rates_tried: tuple[float, ...] = ()
    unfinished: int = 0
    gate_failures: list[str] = field(default_factory=list)
    references: list[CellResult] = field(default_factory=list)
    reference_rates: dict[str, tuple[float, ...]] = field(default_factory=dict)
