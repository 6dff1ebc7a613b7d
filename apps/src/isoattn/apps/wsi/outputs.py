"""What ``test`` and ``predict`` leave behind: a row a slide, named as the user named it.

Shape suffixes: S slides, C classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isoattn.apps.base.class_tables import write_class_tables, write_csv
from isoattn.apps.base.errors import UserError
from isoattn.apps.base.files import write_json
from isoattn.wsi.bags import BagReader


def write_test_outputs(
    folder: Path,
    outputs: Sequence[Mapping[str, Any]],
    classes: Sequence[str],
    facts: Mapping[str, Any],
) -> list[str]:
    """Write ``result.json``, ``predictions.csv``, ``per_class.csv`` and the confusion matrix.

    Args:
        folder: where to.
        outputs: batches of ``id``, ``label`` (S,) and ``probability`` (S, C).
        classes: names in the order of the columns.
        facts: goes into ``result.json``; a number that is none becomes null.

    Returns:
        The names of the files.
    """
    names = [name for batch in outputs for name in batch["id"]]
    label_S, probability_SC = (torch.cat([o[k] for o in outputs]) for k in ("label", "probability"))
    predicted_S = probability_SC.argmax(1)
    rows = [
        [name, classes[truth], classes[guess], int(truth == guess), *_six(p)]
        for name, truth, guess, p in zip(
            names, label_S.tolist(), predicted_S.tolist(), probability_SC.tolist(), strict=True
        )
    ]
    header = ["slide", "label", "predicted", "correct", *(f"p({c})" for c in classes)]
    write_csv(folder / "predictions.csv", header, rows)
    write_class_tables(folder, label_S, predicted_S, classes)
    _write_per_class(folder, label_S, predicted_S, probability_SC, classes)
    result = {k: _finite(v) for k, v in facts.items()}
    write_json(folder / "result.json", {**result, "items": len(names)})
    return [
        "result.json", "predictions.csv", "per_class.csv", "confusion.csv", "confusion.png",
    ]  # fmt: skip


def _write_per_class(
    folder: Path,
    label_S: Tensor,
    predicted_S: Tensor,
    probability_SC: Tensor,
    classes: Sequence[str],
) -> None:
    """Slides, recall, precision and AUC against the rest of each class; empty where undefined."""
    rows = []
    for number, name in enumerate(classes):
        own, said = label_S == number, predicted_S == number
        hits = int((own & said).sum())
        rows.append(
            [
                name,
                int(own.sum()),
                hits,
                _ratio(hits, int(own.sum())),
                _ratio(hits, int(said.sum())),
                *_six([area(probability_SC[:, number], own)]),
            ]
        )
    header = ["class", "slides", "correct", "recall", "precision", "auc"]
    write_csv(folder / "per_class.csv", header, rows)


def area(score_S: Tensor, positive_S: Tensor) -> float:
    """Area under the ROC curve of one class, ties half; NaN where a side is empty."""
    from sklearn.metrics import roc_auc_score

    if bool(positive_S.all()) or not bool(positive_S.any()):
        return float("nan")
    return float(roc_auc_score(positive_S.numpy(), score_S.double().numpy()))


def write_predictions(
    file: Path, outputs: Sequence[Mapping[str, Any]], classes: Sequence[str], reader: BagReader
) -> int:
    """Write one row a slide: name, class, its probability, tiles, all probabilities.

    Args:
        file: ``.csv``.
        outputs: batches of ``id``, ``index`` (S,) and ``probability`` (S, C).
        classes: of the model, names of the columns of the probabilities.
        reader: of the bags, which knows how many tiles each has.

    Returns:
        The number of slides.
    """
    rows = []
    for batch in outputs:
        parts = zip(batch["id"], batch["index"].tolist(), batch["probability"].cpu(), strict=True)
        for name, index, p in parts:
            best = int(p.argmax())
            tiles = reader.shape(index)[0]
            rows.append([name, classes[best], *_six([float(p[best])]), tiles, *_six(p.tolist())])
    header = ["slide", "predicted", "probability", "tiles", *(f"p({c})" for c in classes)]
    write_csv(file, header, rows)
    return len(rows)


def check_table(file: Path) -> None:
    """Raise UserError unless the name ends in .csv; for use before the work."""
    if file.suffix != ".csv":
        raise UserError(f"{file} has the suffix {file.suffix or 'none'}: a name ends in .csv")


def _ratio(part: int, whole: int) -> str:
    return f"{part / whole:.6f}" if whole else ""


def _six(values: Sequence[float]) -> list[str]:
    """To six digits; empty where there is no number."""
    return ["" if math.isnan(v) else f"{v:.6g}" for v in values]


def _finite(value: Any) -> Any:
    """The same plain data with null for NaN and infinity, which JSON lacks."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
