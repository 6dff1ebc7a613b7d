"""What ``isoattn graph latent-graph`` writes and prints."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from isoattn.apps.base.files import write_json
from isoattn.apps.graph.latent_edges import Latent
from isoattn.apps.graph.latent_summary import class_columns, edge_columns, percent, summarise
from isoattn.apps.graph.outputs import write_table
from isoattn.core.meter import Quantity, Reading
from isoattn.graph.task import NodeTask


def write_latent(
    folder: Path,
    edges: Path,
    latents: Sequence[Latent],
    task: NodeTask,
    *,
    facts: Mapping[str, Any],
    meter: Sequence[Reading],
) -> list[Path]:
    """Write the edge list, ``summary.json`` and, of multiclass tasks, ``class_attention.csv``.

    Args:
        folder: of the others.
        edges: the edge list, ``.csv`` or ``.parquet``.
        latents: of the layers and heads asked for.
        task: whose nodes they are.
        facts: goes into the summary.
        meter: of every layer of the model.

    Returns:
        The files.
    """
    write_table(edges, edge_columns(latents, task))
    summary = folder / "summary.json"
    layers = sorted({latent.layer for latent in latents})
    write_json(
        summary,
        {
            **facts,
            "latent": [summarise(latent, task) for latent in latents],
            "meter": {str(layer): meter[layer].as_dict() for layer in layers},
        },
    )
    if task.kind == "multilabel" or not len(task.classes):
        return [edges, summary]
    classes = folder / "class_attention.csv"
    write_table(classes, class_columns(latents, task))
    return [edges, classes, summary]


def print_latent(latents: Sequence[Latent], task: NodeTask, meter: Sequence[Reading]) -> None:
    """The latent graphs as a table, each share with what chance would give."""
    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    top_k = int(latents[0].rank.max())
    table = Table(
        title=Text(f"{task.name}: the {top_k} strongest of {task.graph.num_nodes:,} nodes"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1),
    )
    columns = ("layer", "head", "observed edges", "same class", "itself", "weight of the strongest")
    for column in (*columns, "weight on edges", "effective nodes", "of softmax"):
        table.add_column(Text(column), justify="right")
    for latent in latents:
        found, reading = summarise(latent, task), meter[latent.layer]
        table.add_row(
            str(latent.layer),
            str(latent.head),
            _against(found["observed_share"], found["observed_chance"]),
            _against(found["same_class_share"], found["same_class_chance"]),
            percent(found["itself_share"]),
            percent(found["weight_strongest"]),
            percent(found["weight_observed"]),
            _nodes(reading.effective_keys),
            _nodes(reading.softmax_effective_keys),
        )
    console.print(table)
    for line in _remarks(latents, task):
        console.print(Text(line), soft_wrap=True)


def _remarks(latents: Sequence[Latent], task: NodeTask) -> list[str]:
    lines = [
        "In brackets: what nodes drawn at random would give. effective nodes: exp(entropy) of a "
        "row, mean over heads and 64 nodes; of softmax: on the same q and k."
    ]
    if task.kind == "multilabel":
        lines.append("A node has several labels here, so there is no same class.")
    elif not bool(task.labelled().any()):
        lines.append("No node has a label, so there is no same class.")
    if not task.graph.num_edges:
        lines.append("The graph has no edges, so none is observed.")
    return lines


def _against(share: float | None, chance: float | None) -> str:
    return "-" if share is None or chance is None else f"{percent(share)} ({percent(chance)})"


def _nodes(q: Quantity) -> str:
    if not q.defined or math.isinf(q.value):
        return "-"
    digits = 0 if q.error >= 1 else 1
    error = f" ± {q.error:,.{digits}f}" if q.error >= 0.05 else ""
    return f"{q.value:,.{digits}f}{error}"
