"""The plan: which cells there are, and proof that arms differ in the attention alone (P1, P2)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from isoattn.ablate.cells import Cell, make_cell, resolved_arm
from isoattn.ablate.domain import StudyApp
from isoattn.ablate.errors import near_names
from isoattn.ablate.records import CellResult
from isoattn.ablate.selection import chosen_rates
from isoattn.ablate.study import Study, StudyError, level_name
from isoattn.apps.base.errors import UserError

ATTENTION = "model.attention"


@dataclass(frozen=True)
class Difference:
    """What an arm changes against another, in one level set.

    Args:
        baseline: name of the other one, as a rule the study's baseline.
        arm: name of the arm.
        level: level name.
        attention: (key, baseline's value, arm's value) below ``model.attention``.
        other: differences anywhere else; must be empty.
        parameters: trainable parameters of the baseline and of the arm.
        unequal_weights: weights outside the attention whose initial values differ.
    """

    baseline: str
    arm: str
    level: str
    attention: list[tuple[str, Any, Any]]
    other: list[tuple[str, Any, Any]]
    parameters: tuple[int, int]
    unequal_weights: list[str]


class Plan:
    """Resolved configs of every arm and level set, and the cells they give.

    Args:
        study: the study.
        app: the app that runs it.

    Raises:
        StudyError: a config that cannot be resolved; names arm and level.
    """

    def __init__(self, study: Study, app: StudyApp) -> None:
        self.study = study
        self.app = app
        if study.metric.name not in app.metrics:
            raise StudyError(
                f"Study {study.name}: {app.name} scores no {study.metric.name!r}. "
                f"{near_names(study.metric.name, app.metrics)}"
            )
        self._bases: dict[tuple[str, str], dict[str, Any]] = {}
        for levels in study.level_sets:
            for arm in study.arms:
                self._bases[arm, level_name(levels)] = self._resolve(arm, levels)
        self._refuse_equal_folders()

    def base(self, arm: str, levels: dict[str, str]) -> dict[str, Any]:
        """The resolved config of an arm in a level set, at the first rate and seed 0."""
        return self._bases[arm, level_name(levels)]

    @property
    def cases(self) -> list[tuple[str, dict[str, str], dict[str, Any]]]:
        """(arm, levels, resolved config) of everything that is compared."""
        return [
            (arm, levels, self.base(arm, levels))
            for levels in self.study.level_sets
            for arm in self.study.arms
        ]

    @property
    def configs(self) -> dict[str, dict[str, Any]]:
        """The resolved configs by name, as they are registered."""
        return {f"{arm} ({level_name(levels)})": config for arm, levels, config in self.cases}

    @property
    def modules(self) -> list[str]:
        """Modules of the user's that hold an arm's attention; each cell imports them first."""
        paths = [config["model"]["attention"]["class_path"] for _, _, config in self.cases]
        return sorted({p.rpartition(".")[0] for p in paths if not p.startswith("isoattn.")})

    def _refuse_equal_folders(self) -> None:
        rate, seed = self.study.search.values[0], self.study.confirm_seeds[0]
        taken: dict[str, str] = {}
        for arm, levels, base in self.cases:
            cell = make_cell(self.study, base, arm, levels, rate, seed, "confirm")
            name = f"{arm} ({level_name(levels)})"
            if cell.id in taken:
                raise StudyError(
                    f"Study {self.study.name}: {taken[cell.id]} and {name} would share the folder "
                    f"{cell.id}. Give one of them another name."
                )
            taken[cell.id] = name

    def _resolve(self, arm: str, levels: dict[str, str]) -> dict[str, Any]:
        study = self.study
        argv = ["fit"]
        for name in study.configs:
            argv += ["--config", name]
        options = dict(study.overrides)
        for factor, level in levels.items():
            options.update(study.factors[factor][level])
        argv += [f"--{key}={_argument(value)}" for key, value in options.items()]
        try:
            argv.append(f"--{ATTENTION}={json.dumps(resolved_arm(study.arms[arm]))}")
            config = self.app.resolve(argv)
        except (ValueError, UserError) as error:
            where = f"Study {study.name}, arm {arm} ({level_name(levels)})"
            raise StudyError(f"{where}: {error}") from error
        for elsewhere in ("run", "tracker", "wandb", "output", "init_from", "ckpt_path"):
            config.pop(elsewhere, None)
        # Given as JSON, not inherited: an option the base config sets must not leak into an arm.
        config["model"]["attention"] = resolved_arm(study.arms[arm])
        return config

    def search_cells(self, rates: Iterable[float]) -> list[Cell]:
        """The learning-rate search: every arm the same rates and seeds."""
        if len(self.study.search.values) == 1:
            return []
        return [
            make_cell(self.study, self.base(arm, levels), arm, levels, rate, seed, "search")
            for seed in self.study.search.seeds
            for rate in rates
            for levels in self.study.level_sets
            for arm in self.study.arms
        ]

    def confirm_cells(self, search: list[CellResult], rates: tuple[float, ...]) -> list[Cell]:
        """The confirmation runs, each arm at its own rate, on fresh seeds."""
        choices = chosen_rates(self.study, search, rates)
        cells = []
        for seed in self.study.confirm_seeds:
            for levels in self.study.level_sets:
                for arm in self.study.arms:
                    rate = choices[arm, level_name(levels)].rate
                    base = self.base(arm, levels)
                    cells.append(make_cell(self.study, base, arm, levels, rate, seed, "confirm"))
        return cells

    def count(self) -> tuple[int, int]:
        """Search cells (without extensions of the grid) and confirmation cells."""
        study = self.study
        arms = len(study.arms) * len(study.level_sets)
        values = study.search.values
        search = arms * len(values) * len(study.search.seeds) if len(values) > 1 else 0
        return search, arms * len(study.confirm_seeds)

    def differences(self) -> list[Difference]:
        """Every arm against the baseline: configs, parameters, initial weights."""
        return [
            self.compare(self.study.baseline, arm, levels)
            for levels in self.study.level_sets
            for arm in self.study.arms
            if arm != self.study.baseline
        ]

    def compare(self, baseline: str, arm: str, levels: dict[str, str]) -> Difference:
        """Two arms in one level set."""
        old, new = self.base(baseline, levels), self.base(arm, levels)
        found = config_differences(old, new)
        first, second = self.app.weights(old), self.app.weights(new)
        unequal = [
            name
            for name in sorted(first.outside.keys() | second.outside.keys())
            if first.outside.get(name) != second.outside.get(name)
        ]
        return Difference(
            baseline=baseline,
            arm=arm,
            level=level_name(levels),
            attention=[d for d in found if _of_attention(d[0])],
            other=[d for d in found if not _of_attention(d[0])],
            parameters=(first.parameters, second.parameters),
            unequal_weights=unequal,
        )

    def check(self, differences: list[Difference]) -> None:
        """Refuse a study whose arms differ in anything but the attention.

        Raises:
            StudyError: names arm and keys.
        """
        for d in differences:
            if d.other:
                keys = ", ".join(f"{k} ({a} against {b})" for k, a, b in d.other[:5])
                raise StudyError(
                    f"Arm {d.arm} ({d.level}) differs from {d.baseline} in more than its "
                    f"attention: {keys}. Make it a factor, or set it for all arms in overrides."
                )
            if d.unequal_weights:
                names = ", ".join(d.unequal_weights[:5])
                raise StudyError(
                    f"Arm {d.arm} ({d.level}) starts from other weights than {d.baseline}: "
                    f"{names}. An attention must draw from a generator of its own."
                )


def config_differences(old: Any, new: Any, prefix: str = "") -> list[tuple[str, Any, Any]]:
    """Leaves in which two nested configs differ: (dotted key, old, new)."""
    if isinstance(old, dict) and isinstance(new, dict):
        found = []
        for key in sorted(old.keys() | new.keys()):
            dotted = f"{prefix}.{key}" if prefix else key
            found += config_differences(old.get(key), new.get(key), dotted)
        return found
    # As text: 1 and 1.0 are equal, but as a limit one batch and all of them.
    same = json.dumps(old, default=str) == json.dumps(new, default=str)
    return [] if same else [(prefix, old, new)]


def _of_attention(key: str) -> bool:
    return key == ATTENTION or key.startswith(f"{ATTENTION}.")


def difference_text(study: Study, differences: list[Difference]) -> str:
    """The differences as lines for the terminal and the report."""
    lines = []
    for d in differences:
        change = 100 * (d.parameters[1] - d.parameters[0]) / max(d.parameters[0], 1)
        lines.append(f"{d.baseline} -> {d.arm} ({d.level})")
        lines += [f"  {key}: {_show(old)} -> {_show(new)}" for key, old, new in d.attention]
        lines += [f"  NOT ALLOWED {key}: {old} -> {new}" for key, old, new in d.other]
        lines.append(
            f"  parameters {d.parameters[0]:,} -> {d.parameters[1]:,} ({change:+.2f} %)"
            + (" FLAGGED: more than 2 %" if abs(change) > 2 else "")
        )
        lines.append(
            f"  initial weights outside the attention: {len(d.unequal_weights)} differ"
            if d.unequal_weights
            else "  initial weights outside the attention: bit-identical"
        )
    return "\n".join(lines)


def _show(value: Any) -> str:
    text = "-" if value is None else str(value)
    return text.removeprefix("isoattn.core.")


def _argument(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
