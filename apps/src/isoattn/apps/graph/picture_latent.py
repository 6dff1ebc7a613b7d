"""The picture of a latent graph: the input graph, what its nodes look at, and class to class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import networkx
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from isoattn.apps.base.files import write_atomic
from isoattn.apps.core.picture import COLOURS, png
from isoattn.apps.graph.latent_edges import Latent
from isoattn.apps.graph.latent_sample import Strongest, drawn_nodes, strongest
from isoattn.apps.graph.latent_summary import class_shares, percent, summarise
from isoattn.apps.graph.picture_classes import GREY, class_colours, draw_class_matrix
from isoattn.core.training import derive_seed
from isoattn.graph.task import NodeTask

STRONGEST = 3
"""Latent edges drawn of each node; more hide the rest."""
_OBSERVED, _NEW = "#2f3640", "#e0218a"  # no colours of classes
_MOST_CLASSES = 30


def draw_latents(
    folder: Path, latents: Sequence[Latent], task: NodeTask, *, most: int, seed: int
) -> list[Path]:
    """Write a PNG for each latent graph; nodes stand where they stand in all of them.

    Args:
        folder: where to.
        latents: of the layers and heads asked for.
        task: whose nodes they are.
        most: nodes drawn at most.
        seed: of which, and of their places.

    Returns:
        The files.
    """
    first = strongest(latents[-1], STRONGEST)
    nodes = drawn_nodes(task.graph, first, most=most, seed=seed)
    place = positions(task, nodes, first, seed=seed)
    files = []
    for latent in latents:
        suffix = f"_layer{latent.layer}_head_{latent.head}" if len(latents) > 1 else ""
        files.append(folder / f"latent_graph{suffix}.png")
        write_atomic(files[-1], latent_picture(latent, task, nodes, place))
    return files


def positions(task: NodeTask, nodes: Tensor, edges: Strongest, *, seed: int) -> np.ndarray:
    """Places (nodes, 2) in [0, 1] by springs along the edges of the input graph.

    Latent edges pull a twentieth as strongly, so that nodes without edges have a place too. Springs
    draw clumps together and leave the rest empty: each axis is spread halfway to even steps.
    """
    graph = networkx.Graph()
    graph.add_nodes_from(nodes.tolist())
    for ends, weight in (((edges.source, edges.target), 0.05), (task.graph.edge_index, 1.0)):
        source, target = ends
        inside = torch.isin(source, nodes) & torch.isin(target, nodes) & (source != target)
        pairs = zip(source[inside].tolist(), target[inside].tolist(), strict=True)
        graph.add_edges_from(pairs, weight=weight)
    spring = networkx.spring_layout(
        graph, seed=derive_seed(seed, "layout") % 2**32, iterations=150, k=1.6 / len(nodes) ** 0.5
    )
    place = np.array([spring[node] for node in nodes.tolist()]).reshape(-1, 2)
    low = place.min(0)
    scaled = (place - low) / np.maximum(place.max(0) - low, 1e-9)
    even = place.argsort(0).argsort(0) / max(len(place) - 1, 1)
    spread: np.ndarray = (scaled + even) / 2
    return spread


def latent_picture(latent: Latent, task: NodeTask, nodes: Tensor, place: np.ndarray) -> bytes:
    """A PNG: the input graph, the latent graph in the same places; below, classes and shares."""
    matrix = task.kind == "multiclass" and 1 < len(task.classes) <= _MOST_CLASSES
    matrix = matrix and bool(task.labelled().any())
    rows = 2 if matrix else 1
    figure = Figure(figsize=(10.5, 10.2 if matrix else 5.8), layout="constrained")
    grid = figure.add_gridspec(rows, 2, height_ratios=[1.0, 0.85][:rows])
    head = "mean over heads" if latent.head == "mean" else f"head {latent.head}"
    shown = f"{len(nodes):,} of " if len(nodes) < task.graph.num_nodes else ""
    figure.suptitle(
        f"{task.name}, layer {latent.layer}, {head}; {shown}{task.graph.num_nodes:,} nodes",
        fontsize=12,
    )
    _draw_input(figure.add_subplot(grid[0, 0]), task, nodes, place)
    _draw_latent(figure.add_subplot(grid[0, 1]), latent, task, nodes, place)
    if matrix:
        axes = figure.add_subplot(grid[1, 0])
        shares = torch.bincount(task.y[task.y >= 0], minlength=len(task.classes)).double()
        draw_class_matrix(axes, class_shares(latent), shares / shares.sum(), task.classes)
        axes.set_title("attention from class to class, all pairs", fontsize=10, loc="left")
        axes.set(xlabel="class looked at", ylabel="class that looks")
        _write_shares(figure.add_subplot(grid[1, 1]), latent, task)
    return png(figure)


def _write_shares(axes: Axes, latent: Latent, task: NodeTask) -> None:
    """What the latent edges of all nodes come to, beside what chance would give."""
    found = summarise(latent, task)
    top = int(latent.rank.max())
    rows = [
        ("of the others, edges of the input", found["observed_share"], found["observed_chance"]),
        ("of the others, of the same class", found["same_class_share"], found["same_class_chance"]),
    ]
    cells = [[name, *map(percent, values)] for name, *values in rows]
    cells += [
        [f"weight of the {top} strongest", percent(found["weight_strongest"]), ""],
        ["weight on edges of the input", percent(found["weight_observed"]), ""],
        ["weight on itself", percent(found["weight_itself"]), ""],
    ]
    axes.set_axis_off()
    axes.set_title(f"the {top} strongest nodes of every node", fontsize=10, loc="left")
    table = axes.table(
        cells,
        colLabels=["", "share", "by chance"],
        colWidths=[0.56, 0.2, 0.2],
        cellLoc="right",
        edges="horizontal",
        loc="upper left",
    )
    table.auto_set_font_size(False)
    table.set_fontsize(9)
    table.scale(1, 1.5)
    for (_, column), cell in table.get_celld().items():
        cell.set_edgecolor("#c9ccd1")
        if column == 0:
            cell.set_text_props(ha="left")


def _draw_input(axes: Axes, task: NodeTask, nodes: Tensor, place: np.ndarray) -> None:
    source, target = task.graph.edge_index
    once = source < target if task.facts.get("undirected") else source != target
    lines = _lines(source[once], target[once], nodes, place)
    axes.add_collection(LineCollection(lines, colors=GREY, linewidths=0.7, alpha=0.6, zorder=1))
    _draw_nodes(axes, task, nodes, place)
    axes.set_title(f"input graph: {len(lines):,} edges", fontsize=10, loc="left")
    if 0 < len(task.classes) <= 12 and task.kind == "multiclass":
        marks = [_mark(COLOURS[c], name) for c, name in enumerate(task.classes)]
        unlabelled = (
            [_mark("#dddfe3", "no label")] if not bool(task.labelled()[nodes].all()) else []
        )
        _legend_below(axes, [*marks, *unlabelled])


def _draw_latent(
    axes: Axes, latent: Latent, task: NodeTask, nodes: Tensor, place: np.ndarray
) -> None:
    edges = strongest(latent, STRONGEST)
    most = float(edges.weight.max()) if len(edges.weight) else 1.0
    handles = []
    for observed, colour, name in ((False, _NEW, "not an edge"), (True, _OBSERVED, "an edge")):
        of_kind = edges.observed == observed
        source, target, weight = (x[of_kind] for x in (edges.source, edges.target, edges.weight))
        inside = torch.isin(source, nodes) & torch.isin(target, nodes)
        lines = _lines(source, target, nodes, place)
        strength = (weight[inside] / most).sqrt().numpy()
        style = {"linewidths": 0.4 + 1.2 * strength, "alpha": 0.15 + 0.5 * strength}
        if len(lines):
            axes.add_collection(LineCollection(lines, colors=colour, zorder=1 + observed, **style))
        handles.append(Line2D([], [], color=colour, label=f"{name} of the input: {len(lines):,}"))
    _draw_nodes(axes, task, nodes, place)
    top = int(latent.rank.max())
    words = f"the {top} strongest nodes of each"
    if top > STRONGEST:
        words = f"of each node's {top} strongest the first {STRONGEST}"
    axes.set_title(f"latent graph: {words}, itself left out", fontsize=10, loc="left")
    _legend_below(axes, handles[::-1])


def _draw_nodes(axes: Axes, task: NodeTask, nodes: Tensor, place: np.ndarray) -> None:
    y = task.y[nodes] if task.kind == "multiclass" else torch.full_like(nodes, -1)
    size = float(np.clip(5000 / len(nodes), 14, 90))
    axes.scatter(
        place[:, 0],
        place[:, 1],
        s=size,
        c=class_colours(y),
        edgecolors="white",
        linewidths=0.6,
        zorder=3,
    )
    if task.node_ids is not None and len(nodes) <= 40:
        for (x, height), node in zip(place, nodes.tolist(), strict=True):
            axes.annotate(
                task.node_ids[node], (x, height), (0, 6), textcoords="offset points",
                ha="center", fontsize=6.5, zorder=4,
            )  # fmt: skip
    axes.set(xlim=(-0.04, 1.04), ylim=(-0.04, 1.06))
    axes.set_axis_off()


def _lines(source: Tensor, target: Tensor, nodes: Tensor, place: np.ndarray) -> list[np.ndarray]:
    """Segments (2, 2) of the edges whose two ends are drawn."""
    inside = torch.isin(source, nodes) & torch.isin(target, nodes)
    ends = torch.stack([source[inside], target[inside]], 1)
    return list(place[torch.searchsorted(nodes, ends).numpy()])


def _mark(colour: str, name: str) -> Line2D:
    return Line2D([], [], color=colour, marker="o", linestyle="", markersize=5, label=name)


def _legend_below(axes: Axes, handles: Sequence[Line2D]) -> None:
    axes.legend(
        handles=handles,
        fontsize=8,
        frameon=False,
        loc="upper center",
        bbox_to_anchor=(0.5, 0.0),
        ncols=min(4, len(handles)),
    )
