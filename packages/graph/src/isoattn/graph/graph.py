"""A graph as plain tensors: features, directed entries, and where its nodes came from.

Shape suffixes: N nodes, E directed entries, F features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Graph:
    """One graph, or several side by side.

    Args:
        x: float32 (N, F).
        edge_index: int64 (2, E), directed entries source -> target. Undirected edges are two
            entries; tasks hold no entry twice and no self loop unless the user wants them.
        segments: int64 (N,), number of the graph that a node belongs to, for several graphs.
        node: int64 (N,), the nodes of a batch as numbers of the whole graph; ``None``: all, in
            order.
    """

    x: Tensor
    edge_index: Tensor
    segments: Tensor | None = None
    node: Tensor | None = None

    def __post_init__(self) -> None:
        if self.x.ndim != 2 or self.edge_index.ndim != 2 or self.edge_index.shape[0] != 2:
            raise ValueError(
                "A graph has features (N, F) and edge_index (2, E), got "
                f"{tuple(self.x.shape)} and {tuple(self.edge_index.shape)}"
            )
        for name, value in (("segments", self.segments), ("node", self.node)):
            if value is not None and value.shape != self.x.shape[:1]:
                raise ValueError(
                    f"{name} has one number a node, ({len(self.x)},), got {tuple(value.shape)}"
                )

    @property
    def num_nodes(self) -> int:
        """N."""
        return self.x.shape[0]

    @property
    def num_edges(self) -> int:
        """E, directed entries."""
        return self.edge_index.shape[1]

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Graph:
        """The same graph on a device."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Graph:
        """The same graph in page-locked memory."""
        return self._map(lambda tensor: tensor.pin_memory())

    def check_ids(self) -> Graph:
        """Itself, if all entries of ``edge_index`` are nodes; not done on construction.

        Raises:
            ValueError: an id outside 0..N-1.
        """
        if self.num_edges:
            low, high = int(self.edge_index.min()), int(self.edge_index.max())
            if low < 0 or high >= self.num_nodes:
                raise ValueError(
                    f"edge_index must lie in 0..{self.num_nodes - 1}, got {low}..{high}"
                )
        return self

    def _map(self, change: Callable[[Tensor], Tensor]) -> Graph:
        changed: dict[str, Any] = {
            field.name: change(getattr(self, field.name))
            for field in fields(self)
            if getattr(self, field.name) is not None
        }
        return replace(self, **changed)


def tidy_edges(
    edge_index: Tensor, num_nodes: int, *, undirected: bool = True, self_loops: bool = False
) -> tuple[Tensor, dict[str, int]]:
    """Entries without duplicates, sorted by source and target.

    Args:
        edge_index: int64 (2, E), any order, repeats allowed.
        num_nodes: N.
        undirected: add the entry of the other direction to each.
        self_loops: keep entries from a node to itself that are there; none is ever added.

    Returns:
        int64 (2, E'), and the counts ``entries_given``, ``self_loops_dropped``,
        ``duplicates_dropped``, ``reverse_added``, ``entries``.
    """
    counts = {"entries_given": edge_index.shape[1], "self_loops_dropped": 0}
    if not self_loops:
        kept = edge_index[0] != edge_index[1]
        counts["self_loops_dropped"] = int((~kept).sum())
        edge_index = edge_index[:, kept]
    # As one number an entry: unique over numbers is many times faster than over columns.
    given = torch.unique(edge_index[0] * num_nodes + edge_index[1])
    counts["duplicates_dropped"] = edge_index.shape[1] - len(given)
    code = given
    if undirected:
        code = torch.unique(
            torch.cat([given, (given % num_nodes) * num_nodes + given // num_nodes])
        )
    counts["reverse_added"] = len(code) - len(given)
    counts["entries"] = len(code)
    return torch.stack([code // num_nodes, code % num_nodes]), counts
