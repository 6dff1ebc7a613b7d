"""The controls (P7): is the attention used, the baseline against itself, gain over no mixing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from isoattn.ablate import statistics
from isoattn.ablate.judged import Gauge, SelfCheck, Usage
from isoattn.ablate.records import CellResult
from isoattn.ablate.selection import Runs, Score, pair_up
from isoattn.ablate.study import Study

NO_MIXING = ("Zero", "Identity")
"""Attentions that let no token see another: what the gauge subtracts."""


def attention_used(study: Study, arm: str, level: str, runs: Mapping[int, CellResult]) -> Usage:
    """Judge whether replacing the attention at test time costs more than the seeds' spread.

    Used: the 95 % t interval of the drop lies above 0 *and* the mean drop exceeds the SD over seeds
    of the arm's own metric. One seed gives a number and no judgement.
    """
    name = f"test/{study.metric.name}"
    sign = 1.0 if study.metric.mode == "max" else -1.0
    done = {seed: cell for seed, cell in runs.items() if cell.status == "done"}
    both = {
        seed: (cell.metrics[name], cell.metrics[f"{name}_replaced"])
        for seed, cell in done.items()
        if math.isfinite(cell.metrics.get(name, math.nan))
        and math.isfinite(cell.metrics.get(f"{name}_replaced", math.nan))
    }
    own = {seed: pair[0] for seed, pair in both.items()}
    replaced = {seed: pair[1] for seed, pair in both.items()}
    names = sorted({cell.replaced_by for cell in done.values() if cell.replaced_by})
    usage = Usage(
        arm, level, "not judged", "", "/".join(names) or None, own, replaced, None, math.nan
    )
    if arm in study.controls:
        return replace(usage, state="control", reason="mixes nothing by construction, or a mean")
    if not both:
        return replace(usage, reason="no run was scored with its attention replaced")
    drop = statistics.paired_t([sign * (a - b) for a, b in both.values()])
    if drop.n == 1:
        return replace(usage, drop=drop, reason="one seed has no spread to compare with")
    spread = statistics.paired_t(list(own.values())).sd
    used = drop.low > 0 and drop.mean > spread
    reason = (
        "the drop is above 0 and beyond the seeds' spread"
        if used
        else "the drop is not beyond the seeds' spread"
        if drop.low > 0
        else "the interval of the drop includes 0"
    )
    state: Literal["used", "unused"] = "used" if used else "unused"
    return replace(usage, state=state, reason=reason, drop=drop, spread=spread)


def a_versus_a(study: Study, runs: Runs, score: Score, level: str) -> SelfCheck:
    """The A/A control: the arm that repeats the baseline if there is one, else a split of its runs.

    The split pairs the first half of the baseline's seeds with the second; its differences hold the
    full spread over seeds, so it can only show gross faults.
    """
    twin = next((arm for arm in study.arms if is_twin(study, arm)), None)
    if twin is not None:
        values = list(pair_up(study, runs, score, twin, level).differences.values())
    else:
        mine = runs.get((study.baseline, level), {})
        scores = [
            s
            for seed in study.confirm_seeds
            if seed in mine and (s := score(mine[seed])) is not None
        ]
        half = len(scores) // 2
        values = [a - b for a, b in zip(scores[:half], scores[half : 2 * half], strict=True)]
    t = statistics.paired_t(values) if len(values) > 1 else None
    return SelfCheck(
        level,
        "split" if twin is None else "twin",
        twin or study.baseline,
        t,
        max((abs(value) for value in values), default=math.nan),
        math.nan if t is None else t.p,
    )


def is_twin(study: Study, arm: str) -> bool:
    """Whether an arm is the baseline's attention under another name."""
    return arm != study.baseline and study.arms[arm] == study.arms[study.baseline]


def gauges(study: Study, runs: Runs, score: Score, level: str) -> list[Gauge]:
    """What every arm scores above each arm that mixes nothing."""
    sign = 1.0 if study.metric.mode == "max" else -1.0
    leaf = {arm: str(spec["class_path"]).rsplit(".", 1)[-1] for arm, spec in study.arms.items()}
    without = [arm for arm in study.arms if leaf[arm] in NO_MIXING]
    found = []
    for none, arm in itertools.product(without, study.arms):
        if arm in without:
            continue
        pairing = pair_up(replace(study, baseline=none), runs, score, arm, level)
        if pairing.variant:
            values = [sign * d for d in pairing.differences.values()]
            found.append(Gauge(arm, level, none, statistics.paired_t(values)))
    return found
