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
from isoattn.apps.graph.latent_summary import class_shares
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
    """Places (nodes, 2) by springs along the edges of the input graph.

    Latent edges pull a twentieth as strongly, so that nodes without edges have a place too.
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
    return np.array([spring[node] for node in nodes.tolist()])


def latent_picture(latent: Latent, task: NodeTask, nodes: Tensor, place: np.ndarray) -> bytes:
    """A PNG of the input graph, the latent graph in the same places, and class to class."""
    matrix = task.kind == "multiclass" and 1 < len(task.classes) <= _MOST_CLASSES
    matrix = matrix and bool(task.labelled().any())
    widths = [1.0, 1.0, 0.4 + 0.07 * min(len(task.classes), 8)][: 3 if matrix else 2]
    figure = Figure(figsize=(6.3 * sum(widths), 6.4))
    # The layout forgets the names below a square panel that is as high as its place.
    figure.set_layout_engine("constrained", rect=(0, 0.04, 1, 0.95))
    panels = figure.subplots(1, len(widths), width_ratios=widths)
    head = "mean over heads" if latent.head == "mean" else f"head {latent.head}"
    shown = f"{len(nodes):,} of " if len(nodes) < task.graph.num_nodes else ""
    figure.suptitle(
        f"{task.name}, layer {latent.layer}, {head}; {shown}{task.graph.num_nodes:,} nodes",
        fontsize=12,
    )
    _draw_input(panels[0], task, nodes, place)
    _draw_latent(panels[1], latent, task, nodes, place)
    if matrix:
        shares = torch.bincount(task.y[task.y >= 0], minlength=len(task.classes)).double()
        draw_class_matrix(panels[2], class_shares(latent), shares / shares.sum(), task.classes)
        panels[2].set_title("attention from class to class, all pairs", fontsize=10, loc="left")
        panels[2].set(xlabel="class looked at", ylabel="class that looks")
    return png(figure)


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
    axes.set_title(
        f"latent graph: the {STRONGEST} other nodes that a node looks at most",
        fontsize=10,
        loc="left",
    )
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
    axes.set_aspect("equal")
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
