"""The study file: what is compared, on what, how often, and how it will be judged.

A study is registered before its first cell runs: read, completed with defaults, hashed and written
beside the results (P0 of the protocol in ``docs/protocol.md``).
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml


class StudyError(ValueError):
    """A study file that cannot be run as it stands; says where and what to do."""


@dataclass(frozen=True)
class Metric:
    """The primary metric.

    Args:
        name: as the app reports it; ``val/NAME`` selects, ``test/NAME`` is judged.
        mode: whether more is better.
        margin: differences below this are practically equal (TOST), in the metric's units.
        worst: what a diverged run counts as.
    """

    name: str = "accuracy"
    mode: Literal["max", "min"] = "max"
    margin: float = 0.01
    worst: float = 0.0


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

    def as_dict(self) -> dict[str, Any]:
        """Plain data, every default filled in: what is registered and hashed."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        return plain

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


def level_name(levels: dict[str, str]) -> str:
    """``lpi=off``, or ``all`` where a study has no factor."""
    return ",".join(f"{factor}={level}" for factor, level in levels.items()) or "all"


def load_study(path: Path, preset: str | None = None) -> Study:
    """Read a study file and one of its presets (the file's ``default_preset`` if none is named).

    Raises:
        StudyError: unreadable, an unknown key or preset (with near names), a missing part.
    """
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise StudyError(f"Cannot read the study {path}: {error}") from error
    if not isinstance(raw, dict):
        raise StudyError(f"{path} is no study: it must be a mapping with name, app, arms, ...")
    presets = raw.pop("presets", None) or {"full": {}}
    chosen = preset or raw.pop("default_preset", None) or next(iter(presets))
    raw.pop("default_preset", None)
    if chosen not in presets:
        raise StudyError(f"{path} has no preset {chosen!r}. {_near(chosen, presets)}")
    merged = _merge(raw, presets[chosen] or {})
    merged["preset"] = chosen
    return study_from_dict(merged, where=str(path))


def study_from_dict(raw: dict[str, Any], *, where: str) -> Study:
    """Build a study from plain data (a merged file, or a registered one).

    Raises:
        StudyError: names ``where`` and the key at fault.
    """
    raw = copy.deepcopy(raw)
    keep = raw.pop("only_arms", None)
    raw["search"] = _part(Search, raw.get("search"), f"{where}: search")
    raw["metric"] = _part(Metric, raw.get("metric") or {}, f"{where}: metric")
    for name in ("configs", "confirm_seeds", "controls"):
        if name in raw:
            raw[name] = tuple(raw[name])
    raw["arms"] = {arm: _arm(arm, s, where) for arm, s in (raw.get("arms") or {}).items()}
    if keep is not None:
        for arm in keep:
            if arm not in raw["arms"]:
                raise StudyError(f"{where}: only_arms names {arm!r}. {_near(arm, raw['arms'])}")
        raw["arms"] = {arm: raw["arms"][arm] for arm in keep}
    study: Study = _part(Study, raw, where)
    _validate(study, where)
    return study


def _validate(study: Study, where: str) -> None:
    if study.baseline not in study.arms:
        near = _near(study.baseline, study.arms)
        raise StudyError(f"{where}: the baseline {study.baseline!r} is no arm. {near}")
    if study.metric.mode == "min" and study.metric.worst == 0.0:
        raise StudyError(
            f"{where}: metric.worst is 0 while less is better: a diverged run would win. Set "
            "metric.worst to what a run that learns nothing scores"
        )
    if len(study.arms) < 2:
        raise StudyError(f"{where}: a study needs at least two arms, got {list(study.arms)}")
    if not study.confirm_seeds:
        raise StudyError(f"{where}: confirm_seeds is empty: nothing would be judged")
    for seeds, what in (
        (study.search.seeds, "search.seeds"),
        (study.confirm_seeds, "confirm_seeds"),
    ):
        if len(set(seeds)) != len(seeds):
            raise StudyError(f"{where}: {what} repeats a seed: {list(seeds)}")
    shared = set(study.search.seeds) & set(study.confirm_seeds)
    if shared:
        raise StudyError(
            f"{where}: seeds {sorted(shared)} are used for the search and for confirmation; "
            "confirmation needs fresh seeds"
        )
    if not study.search.values or any(v <= 0 for v in study.search.values):
        raise StudyError(f"{where}: search.values needs learning rates above 0")
    if len(study.search.values) > 1 and not study.search.seeds:
        raise StudyError(f"{where}: search.values has several rates but search.seeds is empty")
    if study.claim and 1 < len(study.search.values) < 5:
        raise StudyError(f"{where}: a claim needs at least five learning rates (or claim: false)")
    _validate_factors(study, where)


def _validate_factors(study: Study, where: str) -> None:
    for factor, levels in study.factors.items():
        keys = {key for options in levels.values() for key in options}
        if any(key.startswith("model.attention") for key in keys):
            raise StudyError(
                f"{where}: factor {factor!r} sets the attention; that is what an arm is for"
            )


def _arm(arm: str, spec: Any, where: str) -> dict[str, Any]:
    if isinstance(spec, str):
        return {"class_path": spec, "init_args": {}}
    if not isinstance(spec, dict) or "class_path" not in spec:
        raise StudyError(f"{where}: arm {arm!r} must be a class name or class_path and init_args")
    extra = sorted(spec.keys() - {"class_path", "init_args"})
    if extra:
        raise StudyError(
            f"{where}: arm {arm!r} sets {', '.join(extra)}. An arm sets the attention and nothing "
            "else: make it a factor, or an override for all arms"
        )
    return {"class_path": spec["class_path"], "init_args": dict(spec.get("init_args") or {})}


def _part(cls: Any, raw: Any, where: str) -> Any:
    if not isinstance(raw, dict):
        raise StudyError(f"{where} must be a mapping, got {raw!r}")
    known = {f.name: f for f in dataclasses.fields(cls)}
    for key in raw:
        if key not in known:
            raise StudyError(f"{where}: unknown key {key!r}. {_near(key, known)}")
    missing = [
        name
        for name, f in known.items()
        if name not in raw
        and f.default is dataclasses.MISSING
        and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise StudyError(f"{where}: missing {', '.join(missing)}")
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in raw.items()}
    return cls(**values)


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _near(name: str, known: Any) -> str:
    near = difflib.get_close_matches(str(name), [str(k) for k in known], n=2, cutoff=0.4)
    return f"Did you mean {' or '.join(near)}?" if near else f"Known: {', '.join(map(str, known))}."
