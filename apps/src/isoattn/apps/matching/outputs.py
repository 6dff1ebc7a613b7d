"""What ``test`` and ``predict`` leave behind: a row a pair, a row a stratum, matches as h5."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isoattn.ablate.records import Strata
from isoattn.apps.base.class_tables import write_csv
from isoattn.apps.base.errors import UserError
from isoattn.apps.base.files import write_json
from isoattn.matching.files import MatchWriter
from isoattn.matching.metrics import STRATUM_EDGES, MatchScore, PairScore

H5 = (".h5", ".hdf5")


def write_test_outputs(folder: Path, score: MatchScore, facts: Mapping[str, Any]) -> list[str]:
    """Write ``result.json``, ``pairs.csv`` and, of pairs that have strata, ``strata.csv``.

    Args:
        folder: where to.
        score: of the test.
        facts: goes into ``result.json``; a number that is none becomes null.

    Returns:
        The names of the files.
    """
    write_json(folder / "result.json", _finite(dict(facts)))
    written = ["result.json", "pairs.csv"]
    write_csv(folder / "pairs.csv", *_pairs(score.rows))
    found = strata(score)
    if found:
        write_strata(folder / "strata.csv", found)
        written.append("strata.csv")
    return written


def strata(score: MatchScore) -> Strata:
    """Stratum -> group -> scores, of every stratum that the pairs have; ``items``: pairs."""
    found: Strata = {}
    for name, edges in _edges(score.rows).items():
        groups = score.by_stratum(name, edges)
        if groups:
            found[name] = {
                group: {"items": scores["pairs"], **scores} for group, scores in groups.items()
            }
    return found


def write_strata(file: Path, found: Strata) -> None:
    """Write a row a group: stratum, group, and its scores."""
    rows = [(s, group, scores) for s, groups in found.items() for group, scores in groups.items()]
    names = [n for n in dict.fromkeys(k for _, _, scores in rows for k in scores) if n != "items"]
    table = [(s, group, *(_number(scores.get(n)) for n in names)) for s, group, scores in rows]
    write_csv(file, ("stratum", "group", *names), table)


def _edges(rows: Sequence[PairScore]) -> dict[str, tuple[float, ...]]:
    """Where each stratum is cut: as drawn pairs have it, else between the values there are."""
    names = dict.fromkeys(name for row in rows for name in row.strata)
    edges: dict[str, tuple[float, ...]] = {}
    for name in names:
        values = sorted({row.strata[name] for row in rows if name in row.strata})
        between = tuple((a + b) / 2 for a, b in zip(values, values[1:], strict=False))
        if name in STRATUM_EDGES:
            edges[name] = STRATUM_EDGES[name]
        elif 0 < len(between) < 10:  # few values, such as the number of the target image
            edges[name] = between
    return edges


def _pairs(rows: Sequence[PairScore]) -> tuple[list[str], list[list[Any]]]:
    """Header and rows: names, counts, shares, the median error of the repeats, strata."""
    counts = list(dict.fromkeys(name for row in rows for name in row.counts))
    shares = list(dict.fromkeys(name for row in rows for name in row.shares))
    groups = list(dict.fromkeys(name for row in rows for name in row.strata))
    header = ["index", "name0", "name1", *counts, *shares]
    header += ["corner_error", "pose_error", *groups]
    table = [
        [
            row.index,
            row.name0,
            row.name1,
            *(row.counts[name] for name in counts),
            *(_number(row.shares.get(name)) for name in shares),
            _number(_median(row.corner_errors)),
            _number(_median(row.pose_errors)),
            *(_number(row.strata.get(name)) for name in groups),
        ]
        for row in rows
    ]
    return header, table


def write_predictions(file: Path, outputs: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Write matches as h5 in hloc's layout, and beside it a CSV with a row a pair.

    Args:
        file: of the h5.
        outputs: of ``MatcherModule.predict_step``.

    Returns:
        Pairs and matches.

    Raises:
        UserError: another suffix.
        ValueError: two pairs of one name.
    """
    check_output(file)
    rows, total = [], 0
    with MatchWriter(file) as writer:
        for output in outputs:
            parts = output["matches"].split()
            for name0, name1, part in zip(output["name0"], output["name1"], parts, strict=True):
                writer.add(name0, name1, part.keypoints0, part.keypoints1, part.confidence)
                sure = float(part.confidence.double().mean()) if len(part) else math.nan
                rows.append((name0, name1, len(part), _number(sure)))
                total += len(part)
    header = ("name0", "name1", "matches", "mean_confidence")
    write_csv(file.with_suffix(".csv"), header, rows)
    return len(rows), total


def check_output(file: Path) -> None:
    """Raise UserError where a file is not named as an h5 file; for use before the work.

    Raises:
        UserError: names the file and what is allowed.
    """
    if file.suffix not in H5:
        raise UserError(
            f"{file} has the suffix {file.suffix or 'none'}: matches are written as {H5[0]}, with "
            "a table of the pairs beside it"
        )


def _median(values: Sequence[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None


def _number(value: float | None) -> str:
    """Six digits; empty where there is none."""
    return "" if value is None or math.isnan(value) else f"{value:.6g}"


def _finite(value: Any) -> Any:
    """The same plain data with null for NaN and infinity, which JSON lacks."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
