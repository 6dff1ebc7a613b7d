"""Synthetic studies and cells that look like real ones, for the tests of statistics and report."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from isoattn.ablate.records import ArmCost, CellResult, StudyResults
from isoattn.ablate.selection import chosen_rates
from isoattn.ablate.study import Study, level_name, study_from_dict

RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
SKILL = {"Softmax": 0.92, "CrossCovariance": 0.82, "Linear": 0.915, "Mean": 0.41, "Zero": 0.42}
UNMIXED = 0.42


def make_study(**changes: Any) -> Study:
    """A study like the row control: four arms and a control, one factor, five rates, six seeds."""
    raw: dict[str, Any] = {
        "name": "rows",
        "app": "vision",
        "title": "MNIST rows (control)",
        "question": "Which attention finds the marked row?",
        "configs": ["vision/rows.yaml"],
        "arms": {arm: f"isoattn.core.{arm}" for arm in SKILL},
        "baseline": "Softmax",
        "factors": {
            "lpi": {"off": {"model.lpi": "none"}, "on": {"model.lpi": "dw3x3"}},
        },
        "search": {"values": list(RATES), "seeds": [100, 101]},
        "confirm_seeds": list(range(6)),
        "metric": {"name": "accuracy", "margin": 0.01},
        "overrides": {"trainer.max_epochs": 12},
    }
    raw.update(changes)
    return study_from_dict(raw, where="test")


def make_cell(
    study: Study,
    arm: str,
    levels: dict[str, str],
    rate: float,
    seed: int,
    stage: str,
    *,
    skill: dict[str, float] | None = None,
    noise: float = 0.006,
    folder: Path | None = None,
) -> CellResult:
    """One finished run. With ``lpi=on`` every arm gets to 0.935 and the attention is not used."""
    skills = SKILL if skill is None else skill
    key = f"{arm}|{level_name(levels)}|{rate:g}|{seed}|{stage}"
    random = np.random.default_rng(int(hashlib.sha256(key.encode()).hexdigest()[:8], 16))
    shared = np.random.default_rng(seed).normal(0, noise)
    helped = levels.get("lpi") == "on"
    peak = 0.935 if helped else skills.get(arm, 0.9)
    best = 1e-2 if arm == "Linear" else 3e-3
    peak -= 0.05 * math.log10(rate / best) ** 2 * (peak > 0.5)
    value = float(np.clip(peak + shared + random.normal(0, noise / 2), 0, 1))
    name = study.metric.name
    epochs = 12
    curve = [
        {
            "epoch": float(e + 1),
            f"val/{name}": float(value - (value - 0.1) * math.exp(-(e + 1) / 2.5)),
            "train/loss": 2.3 * math.exp(-(e + 1) / 3),
        }
        for e in range(epochs)
    ]
    metrics = {f"val/{name}": round(value, 4)}
    others = [other for other in study.swaps if other != arm and arm in study.arms]
    if stage == "confirm":
        metrics[f"test/{name}"] = round(value - 0.004, 4)
        drop = 0.003 * float(random.normal()) if helped or peak < 0.5 else peak - UNMIXED
        metrics[f"test/{name}_replaced"] = round(float(value - 0.004 - drop), 4)
        # The more unlike the other attention, the more is lost.
        apart = {other: abs(skills.get(other, 0.9) - skills.get(arm, 0.9)) for other in others}
        for other, loss in apart.items():
            metrics[f"test/{name}@{other}"] = round(value - 0.004 - loss, 4)
    return CellResult(
        cell=f"{arm.lower()}-{level_name(levels)}-{rate:g}-s{seed}-{_hash(key)}",
        arm=arm,
        levels=levels,
        learning_rate=rate,
        seed=seed,
        stage=stage,  # type: ignore[arg-type]
        status="done",
        metrics=metrics,
        replaced_by="Identity" if arm == "CrossCovariance" else "Mean",
        curve=curve,
        batch_hashes=[_hash(f"{seed}-{e}") for e in range(epochs)],
        init_hash=_hash(f"init-{seed}-{level_name(levels)}" + ("" if arm in study.arms else arm)),
        parameters=161_290 + (12 if arm == "CrossCovariance" else 0),
        attention_parameters=12 if arm == "CrossCovariance" else 0,
        seconds=50.0 + 8 * len(arm) + seed,
        predictions=None if folder is None else _predictions(folder, key, metrics, name),
        swapped={other: study.arms[other] for other in others} if stage == "confirm" else {},
    )


def make_results(
    study: Study,
    *,
    folder: Path | None = None,
    skill: dict[str, float] | None = None,
    spoil: Callable[[CellResult], CellResult] = lambda cell: cell,
) -> StudyResults:
    """A complete study: search, confirmation at each arm's best rate, costs, references, baselines.

    ``spoil`` changes cells as they are made, before the rates are chosen.
    """
    searched, confirmed = [], []
    several = len(study.search.values) > 1
    for levels in study.level_sets:
        for arm in study.arms:
            for rate in study.search.values if several else ():
                for seed in study.search.seeds:
                    cell = make_cell(study, arm, levels, rate, seed, "search", skill=skill)
                    searched.append(spoil(cell))
    chosen = chosen_rates(study, searched, study.search.values)
    for levels in study.level_sets:
        for arm in study.arms:
            rate = chosen[arm, level_name(levels)].rate if several else study.search.values[0]
            for seed in study.confirm_seeds:
                cell = make_cell(
                    study, arm, levels, rate, seed, "confirm", skill=skill, folder=folder
                )
                confirmed.append(spoil(cell))
    return StudyResults(
        cells=searched + confirmed,
        costs=[
            _cost(name, levels)
            for own in (study, *map(study.of_reference, study.references))
            for levels in own.level_sets
            for name in own.arms
        ],
        baselines={"all": {"1-NN on pixels": 0.934, "majority class": 0.1}},
        environment={
            "isoattn": "0.1.0",
            "torch": "2.14.1",
            "device": "cpu",
            "threads": 1,
            "commit": "0123abc",
            "command": "isoattn ablate run rows.yaml --preset full",
        },
        rates_tried=study.search.values,
        references=[
            cell for name in study.references for cell in _reference(study, name, skill, spoil)
        ],
        reference_rates=dict.fromkeys(study.references, study.search.values),
    )


def _reference(
    study: Study,
    name: str,
    skill: dict[str, float] | None,
    spoil: Callable[[CellResult], CellResult],
) -> list[CellResult]:
    """The cells of one reference, at its own rates, in the level sets in which it runs."""
    own, several = study.of_reference(name), len(study.search.values) > 1
    search = [
        spoil(make_cell(study, name, levels, rate, seed, "search", skill=skill))
        for levels in own.level_sets
        for rate in (study.search.values if several else ())
        for seed in study.search.seeds
    ]
    chosen = chosen_rates(own, search, study.search.values)
    confirm = [
        spoil(make_cell(study, name, levels, rate, seed, "confirm", skill=skill))
        for levels in own.level_sets
        for rate in [chosen[name, level_name(levels)].rate]
        for seed in study.confirm_seeds
    ]
    return search + confirm


def change(cell: CellResult, **changes: Any) -> CellResult:
    """A copy of a cell with some fields replaced."""
    return dataclasses.replace(cell, **changes)


def diverged(cell: CellResult) -> CellResult:
    """The same run, stopped by a non-finite loss in its third epoch."""
    return change(
        cell,
        status="diverged",
        metrics={},
        curve=cell.curve[:2],
        batch_hashes=cell.batch_hashes[:2],
        predictions=None,
        error="the loss is not finite at step 211",
    )


def failed(cell: CellResult) -> CellResult:
    """The same run, crashed on every attempt."""
    return change(
        cell,
        status="failed",
        metrics={},
        curve=[],
        batch_hashes=[],
        init_hash="",
        attempts=3,
        predictions=None,
        error="RuntimeError: out of memory",
    )


def _cost(arm: str, levels: dict[str, str]) -> ArmCost:
    slow = {"Softmax": 1.0, "CrossCovariance": 0.9, "Linear": 0.8, "Mean": 0.6, "Zero": 0.5}
    factor = slow.get(arm, 1.0) + (0.2 if levels.get("lpi") == "on" else 0.0)
    return ArmCost(
        arm,
        levels,
        forward_flops=int(4_100_000 * factor),
        attention_flops=int(900_000 * slow.get(arm, 1.0)),
        step_ms=52.0 * factor,
        step_ms_iqr=2.1,
        forward_ms=17.0 * factor,
        peak_mib=180.0 * factor,
        batch=100,
        note="fused" if arm == "Softmax" else "",
    )


def _predictions(folder: Path, key: str, metrics: dict[str, float], name: str) -> Path:
    """1,000 items; harder items are missed by every arm, as in a real test set."""
    random = np.random.default_rng(int(_hash(key), 16))
    label = np.random.default_rng(0).integers(0, 10, 1000)
    hardness = np.random.default_rng(1).random(1000) + 0.15 * random.standard_normal(1000)
    wrong = np.argsort(hardness)[round(1000 * metrics[f"test/{name}"]) :]
    predicted = label.copy()
    predicted[wrong] = (predicted[wrong] + 1) % 10
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{_hash(key)}.npz"
    np.savez(path, index=np.arange(1000), label=label, predicted=predicted)
    return path


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
