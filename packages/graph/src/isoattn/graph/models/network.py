"""What every node network of this package offers to training, swaps and cost tables.

Shape suffixes: N nodes, I features, C classes, d hidden width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from isoattn.graph.graph import Graph

NormName = Literal["layer", "none"]


@dataclass(frozen=True)
class Output:
    """What a network says of the nodes of a graph.

    Args:
        logits: (N, C).
        edge_loss: scalar, mean of log pi / indegree over edges, heads and layers, to be made large;
            ``None`` where it was not asked for, or the network has no such term.
        embeddings: (N, d), the nodes before the last linear map.
    """

    logits: Tensor
    edge_loss: Tensor | None
    embeddings: Tensor


class NodeNetwork(nn.Module, ABC):
    """A node classifier built as ``Network(attention, in_dim, out_dim, **options)``.

    Args:
        in_dim: I.
        out_dim: C.
        hidden: d.
        layers: number of layers.

    Raises:
        ValueError: a size below 1.
    """

    def __init__(self, in_dim: int, out_dim: int, hidden: int, layers: int) -> None:
        super().__init__()
        for name, value in (
            ("in_dim", in_dim),
            ("out_dim", out_dim),
            ("hidden", hidden),
            ("layers", layers),
        ):
            if value < 1:
                raise ValueError(f"{type(self).__name__} needs {name} >= 1, got {value}")
        self.in_dim = in_dim
        self.out_dim = out_dim
        self.hidden = hidden

    @abstractmethod
    def forward(self, graph: Graph, *, return_extras: bool = False) -> Output:
        """Logits of all nodes; with ``return_extras`` also the edge loss."""

    def check_features(self, graph: Graph) -> None:
        """Raise ValueError where the graph has another number of features."""
        if graph.x.shape[1] != self.in_dim:
            raise ValueError(
                f"{type(self).__name__} was built for {self.in_dim} features a node, the graph has "
                f"{graph.x.shape[1]}: give the same columns, or build it with in_dim="
                f"{graph.x.shape[1]}"
            )


def norm_layer(name: NormName, width: int) -> nn.Module:
    """LayerNorm, or nothing.

    Raises:
        ValueError: another name.
    """
    if name == "layer":
        return nn.LayerNorm(width)
    if name == "none":
        return nn.Identity()
    raise ValueError(f"norm must be 'layer' or 'none', got {name!r}")
