"""What ``test`` and ``predict`` leave behind: a row a node, named as the user named it.

Shape suffixes: M nodes, C classes or labels, d embedding width.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isoattn.apps.base.class_tables import write_class_tables
from isoattn.apps.base.errors import UserError
from isoattn.apps.base.files import write_atomic, write_json
from isoattn.graph.metrics import roc_auc
from isoattn.graph.task import Kind, NodeTask

TABLES = (".csv", ".parquet")
EMBEDDINGS = (*TABLES, ".npz")


def write_test_outputs(
    folder: Path, outputs: Sequence[Mapping[str, Tensor]], task: NodeTask, facts: Mapping[str, Any]
) -> list[str]:
    """Write ``result.json``, ``predictions.csv``, and tables per class or per label.

    Of classes these are ``per_class.csv`` and ``confusion.{csv,png}``, of labels ``per_label.csv``.

    Args:
        folder: where to.
        outputs: batches of ``index`` (M,), node numbers; ``label`` (M,) or (M, C); ``probability``
            (M, C).
        task: whose nodes they are, its classes in the order of the columns.
        facts: goes into ``result.json``; a number that is none becomes null.

    Returns:
        The names of the files.
    """
    index, label_M, probability_MC = (
        torch.cat([o[key] for o in outputs]).cpu() for key in ("index", "label", "probability")
    )
    nodes = node_names(task.node_ids, index)
    if task.kind == "multiclass":
        predicted_M = probability_MC.argmax(1)
        columns: dict[str, Any] = {
            "node": nodes,
            "label": [task.classes[c] for c in label_M.tolist()],
            "predicted": [task.classes[c] for c in predicted_M.tolist()],
            "probability": probability_MC.amax(1).numpy(),
            "correct": (label_M == predicted_M).long().numpy(),
        }
        write_class_tables(folder, label_M, predicted_M, task.classes)
        written = ["per_class.csv", "confusion.csv", "confusion.png"]
    else:
        truth = {f"true({c})": column for c, column in _columns(label_M, task.classes)}
        columns = {"node": nodes, **truth, **_probabilities(probability_MC, task.classes)}
        write_table(folder / "per_label.csv", per_label(label_M, probability_MC, task.classes))
        written = ["per_label.csv"]
    write_table(folder / "predictions.csv", columns)
    write_json(folder / "result.json", {**_finite(facts), "items": len(index)})
    return ["result.json", "predictions.csv", *written]


def per_label(
    label_MC: Tensor, probability_MC: Tensor, classes: Sequence[str]
) -> dict[str, Sequence[Any]]:
    """Nodes for which each label is known, positive ones among them, and its ROC-AUC.

    Args:
        label_MC: 0, 1, or NaN = unknown.
        probability_MC: of label 1.
        classes: names of the labels.

    Returns:
        Columns; the area is NaN where one of the two sides is absent.
    """
    known_MC = ~label_MC.isnan()
    pairs = zip(label_MC.unbind(1), probability_MC.unbind(1), known_MC.unbind(1), strict=True)
    return {
        "label": list(classes),
        "known": known_MC.sum(0).tolist(),
        "positive": (label_MC == 1).sum(0).tolist(),
        "roc_auc": [roc_auc(p[known], y[known] == 1) for y, p, known in pairs],
    }


def write_predictions(
    file: Path,
    outputs: Sequence[Mapping[str, Tensor]],
    task: NodeTask,
    classes: Sequence[str],
    kind: Kind,
) -> int:
    """Write one row a node: its name, class and probability (of classes), all probabilities.

    Args:
        file: ``.csv`` or ``.parquet``.
        outputs: batches of ``node`` (M,), node numbers, and ``probability`` (M, C).
        task: whose nodes they are; it may have no labels.
        classes: of the model, names of the columns of the probabilities.
        kind: of the task the model was trained on.

    Returns:
        The number of nodes.

    Raises:
        UserError: another suffix.
    """
    node, probability_MC = (
        torch.cat([o[key] for o in outputs]).cpu() for key in ("node", "probability")
    )
    columns: dict[str, Any] = {"node": node_names(task.node_ids, node)}
    if kind == "multiclass":
        columns["predicted"] = [classes[c] for c in probability_MC.argmax(1).tolist()]
        columns["probability"] = probability_MC.amax(1).numpy()
    write_table(file, {**columns, **_probabilities(probability_MC, classes)})
    return len(node)


def write_embeddings(
    file: Path, outputs: Sequence[Mapping[str, Tensor]], task: NodeTask
) -> tuple[int, int]:
    """Write the embedding of each node.

    Args:
        file: ``.csv`` or ``.parquet`` (columns ``node``, ``e0``, ``e1``, ...), or ``.npz`` (arrays
            ``node`` (M,) and ``embedding`` (M, d)).
        outputs: batches of ``node`` (M,), node numbers, and ``embedding`` (M, d).
        task: whose nodes they are.

    Returns:
        M and d.

    Raises:
        UserError: another suffix.
    """
    check_suffix(file, EMBEDDINGS)
    node, embedding_Md = (
        torch.cat([o[key] for o in outputs]).cpu() for key in ("node", "embedding")
    )
    names = node_names(task.node_ids, node)
    if file.suffix == ".npz":
        buffer = io.BytesIO()
        np.savez_compressed(buffer, node=np.array(names), embedding=embedding_Md.numpy())
        write_atomic(file, buffer.getvalue())
    else:
        columns = {f"e{i}": column for i, column in enumerate(embedding_Md.numpy().T)}
        write_table(file, {"node": names, **columns})
    return len(embedding_Md), embedding_Md.shape[1]


def node_names(node_ids: Sequence[str] | None, numbers: Tensor) -> list[Any]:
    """What the user called these nodes; their numbers where they have no names."""
    found = numbers.tolist()
    return found if node_ids is None else [node_ids[n] for n in found]


def write_table(file: Path, columns: Mapping[str, Sequence[Any] | np.ndarray]) -> None:
    """Write columns as CSV (numbers to six digits, NaN empty) or Parquet, whole or not at all.

    Raises:
        UserError: another suffix.
    """
    import pandas

    check_suffix(file, TABLES)
    table = pandas.DataFrame(dict(columns))
    buffer = io.BytesIO()
    if file.suffix == ".parquet":
        table.to_parquet(buffer, index=False)
    else:
        table.to_csv(buffer, index=False, float_format="%.6g", lineterminator="\n")
    write_atomic(file, buffer.getvalue())


def check_suffix(file: Path, allowed: Sequence[str]) -> None:
    """Raise UserError where a file's suffix is none of the allowed ones; for use before the work.

    Raises:
        UserError: names the file and what is allowed.
    """
    if file.suffix not in allowed:
        raise UserError(
            f"{file} has the suffix {file.suffix or 'none'}: give a name that ends in "
            f"{', '.join(allowed[:-1])} or {allowed[-1]}"
        )


def _probabilities(probability_MC: Tensor, classes: Sequence[str]) -> dict[str, np.ndarray]:
    return {f"p({name})": column for name, column in _columns(probability_MC, classes)}


def _columns(table_MC: Tensor, names: Sequence[str]) -> list[tuple[str, np.ndarray]]:
    return list(zip(names, table_MC.numpy().T, strict=True))


def _finite(value: Any) -> Any:
    """The same plain data with null for NaN and infinity, which JSON lacks."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
