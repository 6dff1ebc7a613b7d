"""Measuring the arms of a study over a growing size: interleaved, resumable, within limits (P9)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from isoattn.ablate.cost_records import (
    CostTable,
    SizedCost,
    config_hash,
    read_costs,
    write_costs,
)
from isoattn.ablate.domain import StudyApp
from isoattn.ablate.plan import Plan
from isoattn.ablate.study import CostSection, Study, StudyError
from isoattn.apps.base.errors import UserError
from isoattn.apps.base.run_folder import environment

Case = tuple[str, dict[str, str], dict[str, Any]]
SLOW = 2.0
"""Seconds of a step from which three repeats do instead of five."""


@dataclass(frozen=True)
class Rounds:
    """How often each arm takes its turn: before it counts, and while it does."""

    warmup: int
    repeats: int


PILOT = Rounds(1, 3)
"""Where nothing is known of the time of a step."""


def rounds_for(steps: Sequence[float]) -> Rounds:
    """Rounds for arms whose steps take this many seconds; they all get the same number.

    About ten seconds of repeats and five of warm-up for the slowest arm, at most 15 and 10; at
    least five repeats if any arm takes under two seconds, else three, and one warm-up.
    """
    slowest = max(steps)
    repeats = min(15, max(_least(steps), int(10 / slowest)))
    return Rounds(min(10, max(1, int(5 / slowest))), repeats)


def _least(steps: Sequence[float]) -> int:
    return 5 if min(steps) < SLOW else 3


def cases_at(study: Study, section: CostSection, app: StudyApp, size: int) -> list[Case]:
    """(arm, {label: size}, resolved config) of every arm at a size.

    Configs are the section's, or the study's with its overrides; factors are as those have them.

    Raises:
        StudyError: a config that cannot be resolved; names size and arm.
    """
    shared = {} if section.configs else study.overrides
    sized = dataclasses.replace(
        _arms_only(study, [arm for arm in study.arms if not section.arms or arm in section.arms]),
        configs=section.configs or study.configs,
        overrides={**shared, **section.overrides, section.key: size},
        factors={},
        with_seed=(),
    )
    try:
        plan = Plan(sized, app)
    except StudyError as error:
        raise StudyError(f"Cost at {size} {section.label}: {error}") from error
    return [(arm, {section.label: str(size)}, config) for arm, _, config in plan.cases]


def _arms_only(study: Study, arms: Sequence[str]) -> Study:
    """Some arms of the study and nothing that stands beside them."""
    specs = {arm: study.arms[arm] for arm in arms}
    return dataclasses.replace(study, arms=specs, references={}, reference_levels={}, swaps=())


def _own_config(study: Study, app: StudyApp) -> dict[str, Any]:
    """The baseline as the study trains it, at the first level of each factor."""
    levels = study.level_sets[0]
    factors = {factor: {level: study.factors[factor][level]} for factor, level in levels.items()}
    alone = dataclasses.replace(_arms_only(study, [study.baseline]), factors=factors)
    return Plan(alone, app).base(study.baseline, levels)


def tokens_of(app: StudyApp, config: dict[str, Any]) -> int | None:
    """Tokens that the attention sees, None where the app cannot tell."""
    try:
        return app.attention_shape(config)[2]
    except (ValueError, RuntimeError, OSError, UserError):
        return None


class CostRun:
    """One measurement in one study folder; a size that is on disk is not measured again.

    Args:
        study: the study.
        section: what is measured.
        app: the app of the study.
        folder: the study folder; the caller holds its lock.
        say: says a line.

    Raises:
        StudyError: what is there was measured on another machine, or is damaged.
    """

    def __init__(
        self,
        study: Study,
        section: CostSection,
        app: StudyApp,
        folder: Path,
        say: Callable[[str], None],
    ) -> None:
        self.study, self.section, self.app = study, section, app
        self.folder, self.say = folder, say
        self.table = self._open()

    def run(self, sizes: Sequence[int], advance: Callable[[str], None]) -> CostTable:
        """Measure what is missing, smallest size first, and write it size by size.

        Raises:
            StudyError: a config that cannot be resolved, or no arm that can take a step.
        """
        cases = {size: self._cases(size) for size in sorted(sizes)}
        self._drop_stale(cases)
        for size, here in cases.items():
            if not self._is_done(size, here):
                config = next(c for arm, _, c in here if arm == self.study.baseline)
                tokens = tokens_of(self.app, config)
                rows = self._measure(size, here, tokens)
                self.table = self.table.with_size(size, rows, tokens)
                write_costs(self.table, self.folder)
            advance(f"{size:,} {self.section.label}")
        return self.table

    def _open(self) -> CostTable:
        now, before = environment(), read_costs(self.folder)
        if before is not None:
            _refuse_another_machine(before.environment, now, self.folder)
        return CostTable(
            self.study.title,
            tuple(self.study.arms),
            self.study.baseline,
            self.study.controls,
            json.loads(json.dumps(asdict(self.section))),  # as it is read back
            now if before is None else before.environment,
            self._own_tokens(),
            {} if before is None else before.tokens,
            () if before is None else before.rows,
        )

    def _own_tokens(self) -> int | None:
        """Of the study itself; what is measured may need none of its data."""
        try:
            tokens = tokens_of(self.app, _own_config(self.study, self.app))
        except StudyError:
            tokens = None
        if tokens is None:
            self.say("the study's own size is not known: its config or data cannot be built here")
        return tokens

    def _cases(self, size: int) -> list[Case]:
        return cases_at(self.study, self.section, self.app, size)

    def _drop_stale(self, cases: dict[int, list[Case]]) -> None:
        """Forget what was measured with other configs, or of arms that are no longer asked for."""
        wanted = set()
        for size in {*cases, *self.table.sizes}:
            try:
                here = cases.get(size) or self._cases(size)
            except StudyError:
                continue  # of an option that the section named before
            wanted |= {(arm, size, config_hash(config)) for arm, _, config in here}
        kept = tuple(r for r in self.table.rows if (r.arm, r.size, r.config) in wanted)
        if len(kept) < len(self.table.rows):
            count = len(self.table.rows) - len(kept)
            self.say(f"{count} measurements dropped: the study has changed since they were made")
        self.table = replace(self.table, rows=kept)

    def _is_done(self, size: int, cases: Sequence[Case]) -> bool:
        there = {row.arm: row for row in self.table.at(size)}
        return all(
            arm in there and (there[arm].status != "left out" or self._left_out(arm, size))
            for arm, _, _ in cases
        )

    def _left_out(self, arm: str, size: int) -> str:
        """Why an arm is not tried at a size; empty if it is."""
        for row in self.table.of(arm):
            if row.size >= size:
                break
            if row.status == "failed":
                return f"failed at {row.size:,} {self.section.label}"
            if row.cost is not None and row.cost.step_ms > 1e3 * self.section.limit_seconds:
                return (
                    f"over the limit of {self.section.limit_seconds:g} s: a step took "
                    f"{row.cost.step_ms / 1e3:.1f} s at {row.size:,} {self.section.label}"
                )
        return ""

    def _measure(self, size: int, cases: Sequence[Case], tokens: int | None) -> list[SizedCost]:
        reasons = {arm: self._left_out(arm, size) for arm, _, _ in cases}
        rows = [
            SizedCost(arm, size, config_hash(config), "left out", reasons[arm])
            for arm, _, config in cases
            if reasons[arm]
        ]
        asked = [case for case in cases if not reasons[case[0]]]
        rows += self._timed(size, asked, tokens) if asked else []
        if not any(row.cost for row in [*self.table.rows, *rows]):
            why = "\n  ".join(f"{row.arm}: {row.reason}" for row in rows[:4])
            raise StudyError(f"No arm takes a step at {size:,} {self.section.label}:\n  {why}")
        return rows

    def _timed(self, size: int, cases: list[Case], tokens: int | None) -> list[SizedCost]:
        """Measure; once more with more rounds where the arms are quicker than was expected."""
        planned = self._planned(size, cases, tokens)
        rows = self._call(size, cases, planned)
        steps = [row.cost.step_ms / 1e3 for row in rows if row.cost]
        if not steps:
            return rows
        wanted = rounds_for(steps)
        if planned.repeats >= max(_least(steps), wanted.repeats / 2):
            return rows
        failed = [row for row in rows if row.cost is None]
        again = [c for c in cases if c[0] not in {row.arm for row in failed}]
        return failed + self._call(size, again, wanted)

    def _planned(self, size: int, cases: Sequence[Case], tokens: int | None) -> Rounds:
        """Rounds from the size before: a step is expected to grow with the tokens squared."""
        steps = []
        for arm, _, _ in cases:
            known = [(row.size, row.cost) for row in self.table.of(arm) if row.size < size]
            found = [(before, cost) for before, cost in known if cost is not None]
            if found:
                before, cost = found[-1]
                fewer = self.table.tokens.get(before)
                growth = tokens / fewer if tokens and fewer else size / before
                steps.append(growth**2 * cost.step_ms / 1e3)
        return rounds_for(steps) if steps else PILOT

    def _call(self, size: int, cases: list[Case], rounds: Rounds) -> list[SizedCost]:
        """All arms interleaved; one by one where that fails, so that one is to blame."""
        hashes = [config_hash(config) for _, _, config in cases]
        try:
            costs = self.app.costs(cases, warmup=rounds.warmup, repeats=rounds.repeats)
        except RuntimeError as error:
            reason = _reason(error)
            if len(cases) == 1:
                return [SizedCost(cases[0][0], size, hashes[0], "failed", reason)]
            self.say(f"{size:,} {self.section.label}: {reason}. Now each arm by itself")
            rows = [row for case in cases for row in self._call(size, [case], rounds)]
            return [replace(row, alone=row.cost is not None) for row in rows]
        counts = rounds.warmup, rounds.repeats
        return [
            SizedCost(case[0], size, hash_, "measured", "", cost, *counts)
            for case, hash_, cost in zip(cases, hashes, costs, strict=True)
        ]


def _reason(error: RuntimeError) -> str:
    lines = str(error).splitlines() or [type(error).__name__]
    if "BrokenProcessPool" in lines[0]:
        return "the measuring process was lost, most likely for want of memory"
    return lines[0] if len(lines[0]) <= 160 else f"{lines[0][:157]}..."


def _refuse_another_machine(before: dict[str, Any], now: dict[str, Any], folder: Path) -> None:
    def machine(of: dict[str, Any]) -> str:
        return f"{of.get('device')} with torch {of.get('packages', {}).get('torch')}"

    if machine(before) != machine(now):
        raise StudyError(
            f"{folder / 'cost' / 'cost.json'} was measured on {machine(before)}, and this is "
            f"{machine(now)}: times of two machines make no curve. Delete it, or use another --out."
        )
