"""MLP: a reference that sees no graph.

Shape suffixes: N nodes, I features, d hidden width, C classes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isoattn.core import AttentionFactory
from isoattn.graph.graph import Graph
from isoattn.graph.models.network import NodeNetwork, NormName, Output, norm_layer

Through = Callable[[nn.Linear, Tensor], Tensor]
"""How the nodes pass a layer: (N, I) -> (N, C)."""


class MLP(NodeNetwork):
    """z' = relu(norm(z W + b)), the last layer without relu and norm; edges are not looked at.

    Args:
        attention: a reference has none; takes the place it has in the other networks.
        in_dim: I.
        out_dim: C.
        hidden: d.
        layers: number of layers.
        dropout: before each layer.
        norm: of hidden layers, ``"layer"`` or ``"none"``.
        residual: add the input of each layer from d to d to its output, before the norm.

    Raises:
        ValueError: a size below 1, or another norm.
    """

    def __init__(
        self,
        attention: AttentionFactory | None,
        in_dim: int,
        out_dim: int,
        *,
        hidden: int = 32,
        layers: int = 2,
        dropout: float = 0.0,
        norm: NormName = "none",
        residual: bool = False,
    ) -> None:
        super().__init__(in_dim, out_dim, hidden, layers)
        widths = [in_dim, *[hidden] * (layers - 1), out_dim]
        self.residual = residual
        self.layers = nn.ModuleList(
            nn.Linear(a, b) for a, b in zip(widths, widths[1:], strict=False)
        )
        self.norms = nn.ModuleList(norm_layer(norm, hidden) for _ in range(layers - 1))
        self.dropout = nn.Dropout(dropout)

    def forward(self, graph: Graph, *, return_extras: bool = False) -> Output:
        """Logits (N, C) and the last hidden nodes; there is no edge loss.

        Raises:
            ValueError: a graph with another number of features.
        """
        self.check_features(graph)
        z = graph.x.to(next(self.parameters()).dtype)
        through = self._through(graph, z.dtype)
        *hidden, last = (layer for layer in self.layers if isinstance(layer, nn.Linear))
        for layer, norm in zip(hidden, self.norms, strict=True):
            kept = self.dropout(z)
            z = through(layer, kept)
            if self.residual and kept.shape == z.shape:
                z = z + kept
            z = F.relu(norm(z))
        z = self.dropout(z)
        return Output(through(last, z), None, z)

    def _through(self, graph: Graph, dtype: torch.dtype) -> Through:
        return lambda layer, z: F.linear(z, layer.weight, layer.bias)
