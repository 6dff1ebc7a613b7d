"""Paired comparisons of single test items, from the predictions that cells leave behind (P6)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from zipfile import BadZipFile

import numpy as np

from isoattn.ablate.records import CellResult
from isoattn.ablate.selection import Runs
from isoattn.ablate.statistics import hierarchical_bootstrap, mcnemar, pool_mcnemar
from isoattn.ablate.study import Study
from isoattn.ablate.verdict import Comparison

Data = dict[str, Any]


def per_item(study: Study, comparisons: Iterable[Comparison], runs: Runs) -> list[Data]:
    """Per-item comparisons where both runs of a pair left predictions of the same items."""
    found = []
    for row in comparisons:
        variant, baseline, seeds = [], [], []
        for seed in row.pairing.variant:
            pair = _correct_pair(
                runs[row.arm, row.level][seed], runs[study.baseline, row.level][seed]
            )
            if pair is not None:
                seeds.append(seed)
                variant.append(pair[0])
                baseline.append(pair[1])
        if not seeds:
            continue
        tables = [mcnemar(v, b) for v, b in zip(variant, baseline, strict=True)]
        found.append(
            {
                **{"arm": row.arm, "level": row.level},
                "bootstrap": vars(hierarchical_bootstrap(variant, baseline)),
                "mcnemar": {s: vars(table) for s, table in zip(seeds, tables, strict=True)},
                "pooled": vars(pool_mcnemar(tables)),
            }
        )
    return found


def _correct_pair(
    variant: CellResult, baseline: CellResult
) -> tuple[np.ndarray, np.ndarray] | None:
    one, two = _predictions(variant), _predictions(baseline)
    if one is None or two is None or one.keys() != two.keys():
        return None
    keys = sorted(one)
    return np.array([one[k] for k in keys]), np.array([two[k] for k in keys])


def _predictions(cell: CellResult) -> dict[int, bool] | None:
    """Item index -> predicted right; None without a readable file."""
    if cell.predictions is None or not cell.predictions.is_file():
        return None
    try:
        with np.load(cell.predictions, allow_pickle=False) as file:
            right = file["label"] == file["predicted"]
            return dict(zip(file["index"].tolist(), right.tolist(), strict=True))
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        return None  # The number of seeds in the table tells.
