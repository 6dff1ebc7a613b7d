"""The picture of a node task: degrees, classes by part, and which classes its edges join."""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from isoattn.apps.core.picture import png
from isoattn.apps.graph.inspect_figures import class_counts, degrees
from isoattn.apps.graph.picture_classes import (
    GREY,
    MOST_NAMED,
    PARTS,
    class_matrix,
    draw_class_matrix,
)
from isoattn.graph.graph import Graph
from isoattn.graph.task import NodeTask


def data_picture(task: NodeTask) -> bytes:
    """A PNG: degrees on logarithmic axes, nodes of each class by part, edges from class to class.

    The last panel needs one class a node, edges, and at most 30 classes.
    """
    joins = task.kind == "multiclass" and task.graph.num_edges and 1 < len(task.classes) <= 30
    figure = Figure(figsize=(15.5 if joins else 10.5, 4.8), layout="constrained")
    panels = figure.subplots(1, 3 if joins else 2, width_ratios=[1, 1.1, 1.15][: 3 if joins else 2])
    figure.suptitle(
        f"{task.name}: {task.graph.num_nodes:,} nodes, {task.graph.num_edges:,} entries of edges, "
        f"{task.graph.x.shape[1]:,} features",
        fontsize=11,
    )
    draw_degrees(panels[0], task.graph)
    draw_classes(panels[1], task)
    if joins:
        source, target = task.graph.edge_index
        matrix = class_matrix(task.y[target], task.y[source], len(task.classes))
        ends = task.y[source][task.y[source] >= 0]
        chance = torch.bincount(ends, minlength=len(task.classes)).double() / max(len(ends), 1)
        draw_class_matrix(panels[2], matrix, chance, task.classes)
        panels[2].set_title("neighbours of a class, by class", fontsize=10, loc="left")
        panels[2].set(xlabel="class of the neighbour", ylabel="class of the node")
    return png(figure)


def draw_degrees(axes: Axes, graph: Graph) -> None:
    """How many nodes have a degree, and how many that degree or more."""
    found = degrees(graph).numpy()
    values, counts = np.unique(found[found > 0], return_counts=True)
    axes.set_title("degrees", fontsize=10, loc="left")
    if not len(values):
        axes.text(0.5, 0.5, "no edges", ha="center", va="center", transform=axes.transAxes)
        axes.set_axis_off()
        return
    above = counts[::-1].cumsum()[::-1]
    axes.step(values, above, where="pre", color=GREY, linewidth=1.4, label="this degree or more")
    axes.plot(values, counts, "o", color="#0072b2", markersize=4, label="exactly this degree")
    axes.axvline(found.mean(), color="#d55e00", linewidth=1, linestyle=(0, (4, 2)))
    axes.annotate(
        f"mean {found.mean():.1f}",
        (found.mean(), 1),
        xycoords=("data", "axes fraction"),
        xytext=(4, -11),
        textcoords="offset points",
        color="#d55e00",
        fontsize=8,
    )
    axes.set(xscale="log", yscale="log", xlabel="degree (entries that arrive)", ylabel="nodes")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=20))
        axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axis.set_minor_formatter(NullFormatter())
    isolated = int((found == 0).sum())
    title = f"{isolated:,} of degree 0" if isolated else None
    axes.legend(fontsize=8, frameon=False, title=title, title_fontsize=8)
    axes.grid(alpha=0.25, linewidth=0.6, which="both")
    axes.spines[["top", "right"]].set_visible(False)


def draw_classes(axes: Axes, task: NodeTask) -> None:
    """Nodes of each class, divided by part."""
    counts = class_counts(task)
    axes.set_title(
        "classes, by part" if task.kind == "multiclass" else "nodes that have a label, by part",
        fontsize=10,
        loc="left",
    )
    place = np.arange(len(counts))
    left = np.zeros(len(counts))
    for part, colour in PARTS.items():
        width = np.array([_of_part(row, part) for row in counts.values()])
        if width.any():
            label = f"{part} {int(width.sum()):,}"
            axes.barh(place, width, left=left, color=colour, label=label, height=0.75)
        left += width
    if len(counts) <= MOST_NAMED:
        axes.set_yticks(place, list(counts), fontsize=8)
    else:
        axes.set_ylabel("class number" if task.kind == "multiclass" else "label number")
    axes.invert_yaxis()
    axes.set_xlabel("nodes")
    if left.any():
        axes.legend(
            fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=4
        )
    axes.spines[["top", "right"]].set_visible(False)


def _of_part(row: dict[str, int], part: str) -> int:
    return row[part] if part in row else row["all"] - row["train"] - row["val"] - row["test"]
