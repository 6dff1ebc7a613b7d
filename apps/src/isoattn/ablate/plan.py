"""The plan: which cells there are, and that arms differ in the attention alone (P1, P2)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from isoattn.ablate.cells import Cell, has_dotted, make_cell, resolved_arm
from isoattn.ablate.differences import ATTENTION, Difference, config_differences, of_attention
from isoattn.ablate.domain import StudyApp
from isoattn.ablate.errors import near_names
from isoattn.ablate.records import CellResult
from isoattn.ablate.selection import chosen_rates
from isoattn.ablate.study import Study, StudyError, level_name
from isoattn.apps.base.class_paths import own_modules
from isoattn.apps.base.errors import UserError

Case = tuple[str, dict[str, str], dict[str, Any]]
"""(name of an arm or reference, levels, resolved config)."""


class Plan:
    """Resolved configs of every arm, reference and level set, and the cells they give.

    What takes the name of a ``reference`` is about that one; without it, about the arms.

    Args:
        study: the study.
        app: the app that runs it.

    Raises:
        StudyError: a config that cannot be resolved, names arm and level; a reference that is the
            same run at two levels.
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
        for own in (study, *map(study.of_reference, study.references)):
            for levels in own.level_sets:
                for name in own.arms:
                    self._bases[name, level_name(levels)] = self._resolve(name, levels)
        self._refuse_equal_folders()
        self._refuse_equal_references()

    def base(self, arm: str, levels: dict[str, str]) -> dict[str, Any]:
        """The resolved config of an arm or reference in a level set, first rate and seed 0."""
        return self._bases[arm, level_name(levels)]

    @property
    def cases(self) -> list[Case]:
        """Everything that is compared: the arms."""
        return self._cases(None)

    @property
    def reference_cases(self) -> list[Case]:
        """Everything that stands beside the arms, each run once per level set of its own."""
        return [case for name in self.study.references for case in self._cases(name)]

    @property
    def configs(self) -> dict[str, dict[str, Any]]:
        """The resolved configs by name, as they are registered."""
        cases = [*self.cases, *self.reference_cases]
        return {f"{name} ({level_name(levels)})": config for name, levels, config in cases}

    @property
    def modules(self) -> list[str]:
        """Modules of the user's that hold a class of any config; each cell imports them first."""
        return own_modules(self._bases.values())

    def _cases(self, reference: str | None) -> list[Case]:
        own = self._own(reference)
        return [(arm, lv, self.base(arm, lv)) for lv in own.level_sets for arm in own.arms]

    def _own(self, reference: str | None) -> Study:
        return self.study if reference is None else self.study.of_reference(reference)

    def _refuse_equal_references(self) -> None:
        """One run under two level sets would be trained twice, and look like two results."""
        for name in self.study.references:
            seen: dict[str, str] = {}
            for _, levels, config in self._cases(name):
                text = json.dumps(config, sort_keys=True, default=str)
                first = seen.setdefault(text, level_name(levels))
                if first != level_name(levels):
                    where = ", ".join(f'{f}: "{lv}"' for f, lv in levels.items())
                    raise StudyError(
                        f"Study {self.study.name}: reference {name} is the same run at {first} and "
                        f"{level_name(levels)}. Name one level of each factor that means nothing "
                        f"to it, like reference_levels: {{{name}: {{{where}}}}}"
                    )

    def _refuse_equal_folders(self) -> None:
        rate, seed = self.study.search.values[0], self.study.confirm_seeds[0]
        taken: dict[str, str] = {}
        for arm, levels, base in [*self.cases, *self.reference_cases]:
            cell = make_cell(self.study, base, arm, levels, rate, seed, "confirm")
            name = f"{arm} ({level_name(levels)})"
            if cell.id in taken:
                raise StudyError(
                    f"Study {self.study.name}: {taken[cell.id]} and {name} would share the folder "
                    f"{cell.id}. Give one of them another name."
                )
            taken[cell.id] = name

    def _resolve(self, name: str, levels: dict[str, str]) -> dict[str, Any]:
        study = self.study
        argv = ["fit"]
        for config_name in study.configs:
            argv += ["--config", config_name]
        argv += [f"--{key}={_argument(value)}" for key, value in self._options(name, levels)]
        attention = study.arms[name if name in study.arms else study.baseline]
        try:
            argv.append(f"--{ATTENTION}={json.dumps(resolved_arm(attention))}")
            config = self.app.resolve(argv)
        except (ValueError, UserError) as error:
            kind = "reference" if name in study.references else "arm"
            where = f"Study {study.name}, {kind} {name} ({level_name(levels)})"
            raise StudyError(f"{where}: {error}") from error
        for elsewhere in ("run", "tracker", "wandb", "output", "init_from", "ckpt_path"):
            config.pop(elsewhere, None)
        # Given as JSON, not inherited: an option the base config sets must not leak into an arm.
        config["model"]["attention"] = resolved_arm(attention)
        for key in (study.search.key, *study.with_seed):
            if not has_dotted(config, key):
                raise StudyError(
                    f"Study {study.name}, {name} ({level_name(levels)}) has no option {key}, which "
                    "each cell is to be given: see isoattn ... fit --print_config"
                )
        return config

    def _options(self, name: str, levels: dict[str, str]) -> list[tuple[str, Any]]:
        """Overrides and levels, then what a reference sets: a class goes before its options."""
        options = dict(self.study.overrides)
        for factor, level in levels.items():
            options.update(self.study.factors[factor][level])
        own = self.study.references.get(name, {})
        return [*((k, v) for k, v in options.items() if k not in own), *sorted(own.items())]

    def search_cells(self, rates: Iterable[float], reference: str | None = None) -> list[Cell]:
        """The learning-rate search: every arm the same rates and seeds."""
        if len(self.study.search.values) == 1:
            return []
        cases = self._cases(reference)
        return [
            make_cell(self.study, base, arm, levels, rate, seed, "search")
            for seed in self.study.search.seeds
            for rate in rates
            for arm, levels, base in cases
        ]

    def confirm_cells(
        self, search: list[CellResult], rates: tuple[float, ...], reference: str | None = None
    ) -> list[Cell]:
        """The confirmation runs, each arm at its own rate, on fresh seeds."""
        choices = chosen_rates(self._own(reference), search, rates)
        cases = [
            (arm, levels, base, choices[arm, level_name(levels)].rate)
            for arm, levels, base in self._cases(reference)
        ]
        return [
            make_cell(self.study, base, arm, levels, rate, seed, "confirm", self._swaps(arm))
            for seed in self.study.confirm_seeds
            for arm, levels, base, rate in cases
        ]

    def _swaps(self, arm: str) -> dict[str, dict[str, Any]]:
        """The attentions that an arm is scored with at test time besides its own (P10)."""
        others = [s for s in self.study.swaps if s != arm and arm not in self.study.references]
        resolved = {other: resolved_arm(self.study.arms[other]) for other in others}
        plain: dict[str, dict[str, Any]] = json.loads(json.dumps(resolved))  # as records have it
        return plain

    def count(self, reference: str | None = None) -> tuple[int, int]:
        """Search cells (without extensions of the grid) and confirmation cells."""
        study, arms = self.study, len(self._cases(reference))
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

    def reference_differences(self) -> list[Difference]:
        """What every reference changes against the baseline; anything is allowed."""
        return [
            self.compare(self.study.baseline, name, levels)
            for name, levels, _ in self.reference_cases
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
            attention=[d for d in found if of_attention(d[0])],
            other=[d for d in found if not of_attention(d[0])],
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


def _argument(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
