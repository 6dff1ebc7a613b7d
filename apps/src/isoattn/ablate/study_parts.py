"""The parts of a study file that hold options: arms, factors, references; each checked by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from isoattn.ablate.errors import StudyError, near_names
from isoattn.ablate.study_file import text_keys

_CELL_OWN = ("model.attention", "seed_everything", "run", "tracker", "wandb", "ckpt_path", "output")
"""Options that a study sets for each cell itself."""


def as_arms(raw: Any, where: str) -> dict[str, dict[str, Any]]:
    """Arm name -> {"class_path", "init_args"}.

    Raises:
        StudyError: an arm that sets anything but its attention.
    """
    return {arm: _arm(arm, spec, where) for arm, spec in text_keys(raw, f"{where}: arms").items()}


def as_factors(raw: Any, where: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Factor -> level -> {dotted option: value}.

    Raises:
        StudyError: fewer than two levels, or an option that each cell sets itself.
    """
    factors = {}
    for factor, levels in text_keys(raw, f"{where}: factors").items():
        what = f"{where}: factor {factor!r}"
        levels = text_keys(levels, what)
        if len(levels) < 2:
            raise StudyError(f"{what} needs at least two levels, got {list(levels)}")
        factors[factor] = {
            level: as_options(options or {}, f"{what}, level {level!r}")
            for level, options in levels.items()
        }
    return factors


def keep_levels(
    keep: Any, factors: dict[str, dict[str, dict[str, Any]]], where: str
) -> tuple[dict[str, dict[str, dict[str, Any]]], dict[str, Any]]:
    """The factors with the named levels alone, and the options of those that have one level left.

    Raises:
        StudyError: a factor or level that is not there; no level left.
    """
    kept = dict(factors)
    settled: dict[str, Any] = {}
    for factor, names in text_keys(keep, f"{where}: only_levels").items():
        _known(factor, factors, f"{where}: only_levels names")
        kept[factor] = only(names, factors[factor], f"{where}: only_levels, factor {factor!r}")
        if not kept[factor]:
            raise StudyError(f"{where}: only_levels leaves factor {factor!r} no level")
        if len(kept[factor]) == 1:
            settled.update(*kept.pop(factor).values())
    return kept, settled


def as_references(raw: Any, arms: Iterable[str], where: str) -> dict[str, dict[str, Any]]:
    """Reference name -> {dotted option: value}.

    Raises:
        StudyError: a name that an arm has, no option at all, or one that each cell sets itself.
    """
    references = {}
    for name, options in text_keys(raw, f"{where}: references").items():
        what = f"{where}: reference {name!r}"
        if name in arms:
            raise StudyError(f"{what} has the name of an arm; give it another")
        references[name] = as_options({} if options is None else options, what)
        if not references[name]:
            raise StudyError(
                f"{what} sets no option, so it would be the baseline again. Name its network, "
                "like {model.network: isoattn.graph.models.GCN}"
            )
    return references


def as_reference_levels(
    raw: Any, references: Iterable[str], factors: Mapping[str, Iterable[str]], where: str
) -> dict[str, dict[str, str]]:
    """Reference name -> factor -> the level at which it runs.

    Raises:
        StudyError: no such reference, factor or level, with near names.
    """
    what = f"{where}: reference_levels"
    pinned: dict[str, dict[str, str]] = {}
    for name, levels in text_keys(raw, what).items():
        _known(name, references, f"{what} names the reference")
        pinned[name] = {}
        for factor, level in text_keys(levels, f"{what}, {name}").items():
            _known(factor, factors, f"{what}, {name}, names the factor")
            if isinstance(level, bool):
                text = f'"{"on" if level else "off"}"'
                raise StudyError(f"{what}, {name}: {factor} is {level}; write it as {text}")
            _known(str(level), factors[factor], f"{what}, {name}, names the level")
            pinned[name][factor] = str(level)
    return pinned


def as_options(raw: Any, where: str) -> dict[str, Any]:
    """Dotted option -> value.

    Raises:
        StudyError: an option that the study sets for each cell itself.
    """
    options = text_keys(raw, where)
    for key in options:
        own = next((own for own in _CELL_OWN if key == own or key.startswith(f"{own}.")), None)
        if own == "model.attention":
            raise StudyError(f"{where} sets the attention; that is what an arm is for")
        if own is not None:
            raise StudyError(f"{where} sets {key}, which the study sets for each cell itself")
    return options


def only(keep: Any, known: dict[str, Any], what: str) -> dict[str, Any]:
    """The named entries, in the order in which they are named.

    Raises:
        StudyError: no list, or a name that is not there.
    """
    if not isinstance(keep, list | tuple):
        raise StudyError(f"{what} must be a list, got {keep!r}")
    for name in keep:
        _known(name, known, f"{what} names")
    return {name: known[name] for name in keep}


def _known(name: Any, known: Iterable[str], what: str) -> None:
    names = list(known)
    if name not in names:
        near = near_names(name, names) if names else "There is none."
        raise StudyError(f"{what} {name!r}. {near}")


def _arm(arm: str, spec: Any, where: str) -> dict[str, Any]:
    if isinstance(spec, str):
        return {"class_path": spec, "init_args": {}}
    if not isinstance(spec, dict) or not isinstance(spec.get("class_path"), str):
        raise StudyError(f"{where}: arm {arm!r} must be a class name or class_path and init_args")
    extra = sorted(map(str, spec.keys() - {"class_path", "init_args"}))
    if extra:
        raise StudyError(
            f"{where}: arm {arm!r} sets {', '.join(extra)}. An arm sets the attention and nothing "
            "else: make it a factor, or an override for all arms"
        )
    options = text_keys(spec.get("init_args") or {}, f"{where}: arm {arm!r}: init_args")
    return {"class_path": spec["class_path"], "init_args": options}
