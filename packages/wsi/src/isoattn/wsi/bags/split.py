"""Splits of slides into train, val and test that keep each patient in one part."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from isoattn.core.training import derive_seed
from isoattn.wsi.bags.labels import LabelTable, read_table, shown
from isoattn.wsi.bags.task import Split

log = logging.getLogger(__name__)

Sites = Literal["ignore", "spread", "apart"]
PARTS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "tuning": "val",
    "test": "test",
    "testing": "test",
    "": "",
}


@dataclass(frozen=True)
class SplitOptions:
    """Cross-validation: fold ``fold`` is test, the next one val, all others train.

    Every fold has about the same share of each class, and a patient is in one fold.

    Args:
        folds: number of folds.
        fold: which, from 0.
        seed: of the folds; apart from the seed of training, so that runs share a split.
        sites: ``spread``: every fold has about the same share of each class from each site;
            ``apart``: a site is in one fold, as generalisation to new hospitals asks for.
        file: a table that gives the split: ids in columns train, val, test (as CLAM and TransMIL
            write it), or a column of ids (``slide_id``) and one of parts (``split``). It takes the
            place of the folds.

    Raises:
        ValueError: values out of range.
    """

    folds: int = 5
    fold: int = 0
    seed: int = 0
    sites: Sites = "ignore"
    file: str | None = None

    def __post_init__(self) -> None:
        if self.folds < 3:
            raise ValueError(f"folds must be 3 or more (train, val, test), got {self.folds}")
        if not 0 <= self.fold < self.folds:
            raise ValueError(f"fold must lie in 0..{self.folds - 1}, got {self.fold}")
        if self.sites not in get_args(Sites):
            raise ValueError(
                f"sites must be one of {', '.join(get_args(Sites))}, got {self.sites!r}"
            )


def split_slides(table: LabelTable, options: SplitOptions) -> Split:
    """The split of a table: its own column, a file, or drawn folds; never a patient in two parts.

    Raises:
        ValueError: a patient in two parts, too few patients, or a train part without a class.
    """
    if options.file is not None:
        split = _from_parts(_parts_of_file(Path(options.file), table.ids))
    elif table.parts is not None:
        split = _from_parts(dict(zip(table.ids, table.parts, strict=True)))
    else:
        split = _folds(table, options)
    check_leakage(split, table.patients)
    _check_classes(split, table.labels)
    return split


def check_leakage(split: Split, patients: Sequence[str]) -> None:
    """Raise ValueError where slides of one patient are in two parts; names patients and parts."""
    where: dict[str, set[str]] = {}
    for part, members in split.items():
        for index in members.tolist():
            where.setdefault(patients[index], set()).add(part)
    leaks = [f"{name} ({', '.join(sorted(p))})" for name, p in where.items() if len(p) > 1]
    if leaks:
        raise ValueError(
            f"{len(leaks)} patients are in more than one part of the split: {shown(leaks)}. A test "
            "score would be too good: put all slides of a patient into one part."
        )


def _folds(table: LabelTable, options: SplitOptions) -> Split:
    from sklearn.model_selection import StratifiedGroupKFold

    groups, strata = list(table.patients), list(table.labels)
    if options.sites != "ignore":
        if table.sites is None:
            raise ValueError(f"sites={options.sites!r} needs the sites: name their site_column")
        if options.sites == "apart":
            groups = list(table.sites)
            _one_site_each(table.patients, table.sites)
        else:
            strata = [f"{a}\0{b}" for a, b in zip(table.labels, table.sites, strict=True)]
    what = "sites" if options.sites == "apart" else "patients"
    if len(set(groups)) < options.folds:
        raise ValueError(
            f"{len(set(groups))} {what} cannot be shared out over {options.folds} folds: lower "
            "folds, or give a split file"
        )
    for label in sorted(set(table.labels)):
        count = len({g for g, own in zip(groups, table.labels, strict=True) if own == label})
        if count < options.folds:
            log.warning(
                "class %s has %d %s for %d folds: some part lacks it",
                label,
                count,
                what,
                options.folds,
            )
    seed = derive_seed(options.seed, "folds") % 2**32
    fold = np.empty(len(groups), dtype=np.int64)
    cutter = StratifiedGroupKFold(options.folds, shuffle=True, random_state=seed)
    with warnings.catch_warnings():  # of rare strata, which have been told of
        warnings.filterwarnings("ignore", message="The least populated class")
        for number, (_, members) in enumerate(cutter.split(groups, _numbers(strata), groups)):
            fold[members] = number
    test = fold == options.fold
    val = fold == (options.fold + 1) % options.folds
    return Split(*(torch.from_numpy(np.flatnonzero(x)) for x in (~(test | val), val, test)))


def _numbers(names: Sequence[str]) -> list[int]:
    place = {name: number for number, name in enumerate(sorted(set(names)))}
    return [place[name] for name in names]


def _one_site_each(patients: Sequence[str], sites: Sequence[str]) -> None:
    found: dict[str, str] = {}
    for patient, site in zip(patients, sites, strict=True):
        if found.setdefault(patient, site) != site:
            raise ValueError(
                f"patient {patient!r} has slides of the sites {found[patient]!r} and {site!r}, so "
                "sites='apart' would tear the patient apart: use sites='spread'"
            )


def _from_parts(parts: Mapping[str, str]) -> Split:
    unknown = sorted({p for p in parts.values() if p.lower() not in PARTS})
    if unknown:
        raise ValueError(
            f"A split knows the parts train, val and test (or empty: left out), got {unknown[:5]}"
        )
    own = [PARTS[part.lower()] for part in parts.values()]
    train, val, test = (
        torch.tensor([i for i, p in enumerate(own) if p == part], dtype=torch.int64)
        for part in ("train", "val", "test")
    )
    return Split(train, val, test)


def _parts_of_file(path: Path, ids: Sequence[str]) -> dict[str, str]:
    header, rows = read_table(path)
    if {"train", "val", "test"} <= set(header):
        pairs = [
            (row[header.index(part)], part)
            for part in ("train", "val", "test")
            for row in rows
            if row[header.index(part)]
        ]
    elif {"slide_id", "split"} <= set(header):
        places = header.index("slide_id"), header.index("split")
        pairs = [(row[places[0]], row[places[1]]) for row in rows]
    else:
        raise ValueError(
            f"{path.name} is no split: it needs the columns train, val, test, or slide_id, split; "
            f"it has {', '.join(header)}"
        )
    given: dict[str, str] = {}
    for name, part in pairs:
        if given.setdefault(name, part) != part:
            raise ValueError(f"{path.name} puts {name!r} into {given[name]} and {part}")
    unknown = [name for name in given if name not in set(ids)]
    if unknown:
        raise ValueError(
            f"{path.name} names {len(unknown)} slides that the labels lack: {shown(unknown)}"
        )
    return {name: given.get(name, "") for name in ids}


def _check_classes(split: Split, labels: Sequence[str]) -> None:
    everything = set(labels)
    for part, members in split.items():
        absent = sorted(everything - {labels[i] for i in members.tolist()})
        if absent and part == "train":
            raise ValueError(
                f"The train part has no slide of {shown(absent)}: take fewer folds, another fold "
                "or seed, or leave these slides out"
            )
        if absent and len(members):
            log.warning("the %s part has no slide of %s", part, shown(absent))


def class_weights(labels: Tensor, classes: int) -> Tensor:
    """float32 (C,): N / (C * bags of the class); 0 for a class without any."""
    counts = torch.bincount(labels[labels >= 0], minlength=classes).float()
    weights = counts.sum() / (classes * counts.clamp(min=1))
    return torch.where(counts > 0, weights, torch.zeros(()))
