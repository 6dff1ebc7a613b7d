"""The study file: what is compared, on what, how often, and how it will be judged.

A study is registered before its first cell runs: read, completed with defaults, hashed and written
beside the results (P0 of the protocol in ``docs/protocol.md``).
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from isoattn.ablate.errors import StudyError, near_names
from isoattn.ablate.study_file import build, read_study_file
from isoattn.ablate.study_parts import (
    as_arms,
    as_factors,
    as_options,
    as_reference_levels,
    as_references,
    keep_levels,
    only,
)

__all__ = [
    "CostSection",
    "FineTune",
    "Metric",
    "Search",
    "Study",
    "StudyError",
    "level_name",
    "load_study",
    "study_from_dict",
]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*\Z")
_LATER = ("references", "reference_levels", "swaps", "with_seed", "fine_tune")
"""Parts that studies did not always have: left out where empty, so that old hashes stay."""


@dataclass(frozen=True)
class Metric:
    """The primary metric.

    Args:
        name: as the app reports it; ``val/NAME`` selects, ``test/NAME`` is judged.
        mode: whether more is better.
        margin: differences below this are practically equal (TOST), in the metric's units.
        worst: what a diverged run counts as.
        chance: what is reached without having learnt anything, if that is known.
        ceiling: what cannot be beaten, if that is known. Between two arms that are both at
            chance or both at the ceiling no winner is named.
    """

    name: str = "accuracy"
    mode: Literal["max", "min"] = "max"
    margin: float = 0.01
    worst: float = 0.0
    chance: float | None = None
    ceiling: float | None = None


@dataclass(frozen=True)
class Search:
    """The learning-rate grid every arm gets (P5).

    Args:
        key: the option that holds the rate.
        values: at least five log-spaced values for a claim; a single value skips the search.
        seeds: seeds of the search; never used for confirmation.
        extend: how often the grid may grow when a best value lies at its edge.
    """

    values: tuple[float, ...]
    seeds: tuple[int, ...] = ()
    key: str = "model.optim.lr"
    extend: int = 2


@dataclass(frozen=True)
class CostSection:
    """What ``isoattn ablate cost`` measures: the arms over a growing size (P9).

    Args:
        key: dotted option that grows.
        values: the sizes, rising.
        label: what a size counts: nodes, patches, pixels.
        configs: base configs of the measurement; none: the study's own, with its overrides.
        overrides: dotted option -> value, on top of those.
        arms: some of the study's; none: all.
        limit_seconds: an arm whose step took longer is not measured at larger sizes.
    """

    key: str
    values: tuple[int, ...]
    label: str = "size"
    configs: tuple[str, ...] = ()
    overrides: dict[str, Any] = field(default_factory=dict)
    arms: tuple[str, ...] = ()
    limit_seconds: float = 30.0


@dataclass(frozen=True)
class FineTune:
    """How a finished run is trained further with each of the swaps in its place (P10).

    Args:
        overrides: dotted option -> value, on top of the run's own; says how long.
        rate: of the arm's own learning rate.
    """

    overrides: dict[str, Any]
    rate: float = 0.1


@dataclass(frozen=True)
class Study:
    """A resolved study.

    Args:
        name: short name; also the tracker group.
        app: the app that runs the cells.
        title: one line for the report.
        question: what is asked, in a sentence or two.
        configs: base configs, shipped names or paths, left to right.
        overrides: dotted option -> value, the same for every cell.
        arms: arm name -> {"class_path", "init_args"} of the attention.
        baseline: the arm the others are compared with.
        factors: factor -> level -> {dotted option: value}.
        search: the learning-rate grid.
        confirm_seeds: seeds of the confirmation runs.
        metric: what is judged.
        claim: False forces the verdict "no claim" (smoke, demo).
        preset: which preset of the file this is.
        controls: arms that mix nothing by construction (Mean, Identity, Zero): reported, but the
            question whether their attention is used does not arise.
        cost: what ``isoattn ablate cost`` measures. No verdict rests on it: it is not registered,
            and may be added when the study has run.
        references: name -> {dotted option: value} of another network, shown beside the arms and
            never judged; its attention is the baseline's.
        reference_levels: name -> factor -> the one level at which a reference runs, for factors
            that mean nothing to it; else it runs in every level set.
        swaps: arms whose attention is put into every trained arm at test time (P10).
        fine_tune: each finished run is also trained a little further with each of the swaps in its
            place, and with its own attention.
        with_seed: dotted options that take the number of the seed in each cell, such as the index
            of a split or the fold, so that seeds differ in the data too. Pairs still share them.
    """

    name: str
    app: str
    title: str
    question: str
    configs: tuple[str, ...]
    arms: dict[str, dict[str, Any]]
    baseline: str
    search: Search
    confirm_seeds: tuple[int, ...]
    metric: Metric = field(default_factory=Metric)
    overrides: dict[str, Any] = field(default_factory=dict)
    factors: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    claim: bool = True
    preset: str = "full"
    controls: tuple[str, ...] = ("Mean", "Identity", "Zero")
    cost: CostSection | None = None
    references: dict[str, dict[str, Any]] = field(default_factory=dict)
    reference_levels: dict[str, dict[str, str]] = field(default_factory=dict)
    swaps: tuple[str, ...] = ()
    with_seed: tuple[str, ...] = ()
    fine_tune: FineTune | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain data, every default filled in: what is registered and hashed."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        plain.pop("cost")
        for limit in ("chance", "ceiling"):  # a study without them is what it was before they came
            if plain["metric"][limit] is None:
                del plain["metric"][limit]
        return {key: value for key, value in plain.items() if value or key not in _LATER}

    @property
    def hash(self) -> str:
        """First 8 hex digits of the SHA-256 of the resolved study."""
        text = json.dumps(self.as_dict(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    @property
    def level_sets(self) -> list[dict[str, str]]:
        """Every combination of factor levels; one empty dict without factors."""
        sets: list[dict[str, str]] = [{}]
        for factor, levels in self.factors.items():
            sets = [{**s, factor: level} for s in sets for level in levels]
        return sets

    def of_reference(self, name: str) -> Study:
        """The study of one reference by itself: its level sets and the same search and seeds."""
        pinned = self.reference_levels.get(name, {})
        factors = {
            factor: {level: o for level, o in levels.items() if pinned.get(factor, level) == level}
            for factor, levels in self.factors.items()
        }
        return dataclasses.replace(
            self,
            arms={name: self.arms[self.baseline]},
            baseline=name,
            factors=factors,
            controls=(),
            references={},
            reference_levels={},
            swaps=(),
            fine_tune=None,
        )

    def beside(self, name: str, levels: dict[str, str]) -> dict[str, str]:
        """The level set in which a reference runs that is shown at ``levels``."""
        return {**levels, **self.reference_levels.get(name, {})}


ALL_LEVELS = "all"
"""The name of the only level set of a study without factors, and of what is of every level set."""


def level_name(levels: dict[str, str]) -> str:
    """``lpi=off``, or ``all`` where a study has no factor."""
    return ",".join(f"{factor}={level}" for factor, level in levels.items()) or ALL_LEVELS


def load_study(
    path: Path, preset: str | None = None, overrides: Mapping[str, Any] | None = None
) -> Study:
    """Read a study file and one of its presets (the file's ``default_preset`` if none is named).

    Args:
        path: of the file.
        preset: name of one of its presets.
        overrides: dotted options -> values, on top of the file's own overrides.

    Raises:
        StudyError: unreadable, an unknown key or preset (with near names), a missing part.
    """
    raw = read_study_file(path, preset)
    if overrides:
        raw["overrides"] = {**(raw.get("overrides") or {}), **overrides}
    return study_from_dict(raw, where=str(path))


def study_from_dict(raw: dict[str, Any], *, where: str) -> Study:
    """Build a study from plain data (a merged file, or a registered one).

    Raises:
        StudyError: names ``where`` and the key at fault.
    """
    raw = copy.deepcopy(raw)
    keep, keep_references = raw.pop("only_arms", None), raw.pop("only_references", None)
    raw["search"] = build(Search, raw.get("search"), f"{where}: search")
    raw["metric"] = build(Metric, raw.get("metric") or {}, f"{where}: metric")
    raw["arms"] = as_arms(raw.get("arms") or {}, where)
    raw["overrides"] = as_options(raw.get("overrides") or {}, f"{where}: overrides")
    factors = as_factors(raw.get("factors") or {}, where)
    raw["factors"], settled = keep_levels(raw.pop("only_levels", None) or {}, factors, where)
    raw["overrides"] |= settled
    raw["cost"] = _cost(raw.get("cost"), raw["arms"], str(raw.get("baseline")), where)
    _read_beside(raw, keep_references, where)
    raw["fine_tune"] = _fine_tune(raw.get("fine_tune"), f"{where}: fine_tune")
    raw["swaps"] = list(only(raw.get("swaps") or [], raw["arms"], f"{where}: swaps"))
    if keep is not None:
        raw["arms"] = only(keep, raw["arms"], f"{where}: only_arms")
        raw["swaps"] = [arm for arm in raw["swaps"] if arm in raw["arms"]]
    study: Study = build(Study, raw, where)
    as_options(dict.fromkeys(study.with_seed), f"{where}: with_seed")
    _validate(study, where)
    return study


def _read_beside(raw: dict[str, Any], keep: Any, where: str) -> None:
    """References and their levels, in place; what a preset leaves out goes with its levels."""
    references = as_references(raw.get("references") or {}, raw["arms"], where)
    levels = raw.get("reference_levels") or {}
    pinned = as_reference_levels(levels, references, raw["factors"], where)
    if keep is not None:
        references = only(keep, references, f"{where}: only_references")
    raw["references"] = references
    raw["reference_levels"] = {name: p for name, p in pinned.items() if name in references and p}


def _validate(study: Study, where: str) -> None:
    if not _NAME.match(study.name):
        raise StudyError(f"{where}: name {study.name!r} must be letters, digits and ._+- only")
    if study.baseline not in study.arms:
        near = near_names(study.baseline, study.arms)
        raise StudyError(f"{where}: the baseline {study.baseline!r} is no arm. {near}")
    if len(study.arms) < 2:
        raise StudyError(f"{where}: a study needs at least two arms, got {list(study.arms)}")
    if study.metric.mode == "min" and study.metric.worst == 0.0:
        raise StudyError(
            f"{where}: metric.worst is 0 while less is better: a diverged run would win. Set "
            "metric.worst to what a run that learns nothing scores"
        )
    if study.metric.margin <= 0:
        raise StudyError(
            f"{where}: metric.margin must be above 0: the difference that would not matter"
        )
    if study.metric.chance is not None and study.metric.ceiling is not None:
        room = study.metric.ceiling - study.metric.chance
        if (room if study.metric.mode == "max" else -room) <= study.metric.margin:
            raise StudyError(
                f"{where}: metric.ceiling must be better than metric.chance by more than the margin"
            )
    _validate_seeds(study, where)
    _validate_search(study.search, study.claim, where)
    if study.fine_tune and not study.swaps:
        raise StudyError(f"{where}: fine_tune trains with the swaps, of which there are none")
    options = [study.overrides, *(o for levels in study.factors.values() for o in levels.values())]
    options += study.references.values()
    if any(study.search.key in each for each in options):
        raise StudyError(
            f"{where}: {study.search.key} is what the search sets: put the rates in search.values"
        )


def _validate_seeds(study: Study, where: str) -> None:
    if not study.confirm_seeds:
        raise StudyError(f"{where}: confirm_seeds is empty: nothing would be judged")
    for seeds, what in (
        (study.search.seeds, "search.seeds"),
        (study.confirm_seeds, "confirm_seeds"),
    ):
        if len(set(seeds)) != len(seeds):
            raise StudyError(f"{where}: {what} repeats a seed: {list(seeds)}")
        if any(seed < 0 for seed in seeds):
            raise StudyError(f"{where}: {what} must not be below 0: {list(seeds)}")
    shared = set(study.search.seeds) & set(study.confirm_seeds)
    if shared:
        raise StudyError(
            f"{where}: seeds {sorted(shared)} are used for the search and for confirmation; "
            "confirmation needs fresh seeds"
        )


def _validate_search(search: Search, claim: bool, where: str) -> None:
    values = search.values
    if not values or any(v <= 0 for v in values):
        raise StudyError(f"{where}: search.values needs learning rates above 0")
    if len(set(values)) != len(values):
        raise StudyError(f"{where}: search.values repeats a rate: {list(values)}")
    if search.extend < 0:
        raise StudyError(f"{where}: search.extend must not be below 0, got {search.extend}")
    if len(values) > 1 and not search.seeds:
        raise StudyError(f"{where}: search.values has several rates but search.seeds is empty")
    if claim and 1 < len(values) < 5:
        raise StudyError(f"{where}: a claim needs at least five learning rates (or claim: false)")


def _fine_tune(raw: Any, where: str) -> FineTune | None:
    if raw is None:
        return None
    tune: FineTune = build(FineTune, raw, where)
    if not as_options(tune.overrides, f"{where}: overrides") or tune.rate <= 0:
        raise StudyError(
            f"{where} needs a rate above 0 and overrides that say how long it trains, like "
            "{trainer.max_epochs: 1}"
        )
    return tune


def _cost(raw: Any, arms: dict[str, Any], baseline: str, where: str) -> CostSection | None:
    if raw is None:
        return None
    where = f"{where}: cost"
    cost: CostSection = build(CostSection, raw, where)
    as_options({cost.key: None, **as_options(cost.overrides, f"{where}: overrides")}, where)
    if not cost.values or min(cost.values) < 1 or len(set(cost.values)) != len(cost.values):
        raise StudyError(
            f"{where}: values must be different sizes above 0, got {list(cost.values)}"
        )
    if cost.limit_seconds <= 0:
        raise StudyError(f"{where}: limit_seconds must be above 0, got {cost.limit_seconds:g}")
    for arm in cost.arms:
        if arm not in arms:
            raise StudyError(f"{where}: arms names {arm!r}. {near_names(arm, arms)}")
    if cost.arms and baseline not in cost.arms:
        raise StudyError(
            f"{where}: arms lacks the baseline {baseline}, with which the others are compared"
        )
    return dataclasses.replace(cost, values=tuple(sorted(cost.values)))
