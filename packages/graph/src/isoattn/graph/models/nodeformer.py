"""NodeFormer: message passing between all pairs of nodes, with any attention of isoattn.core.

Wu et al. 2022, "NodeFormer: A Scalable Graph Structure Learning Transformer for Node
Classification"; options as the released runs of qitianwu/NodeFormer have them. What belongs to the
kernel (features, temperature, noise, fidelity) is an option of the attention.

Shape suffixes: N nodes, I features, d hidden width, H heads, C classes; every head has width d.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isoattn.core import Attention, AttentionFactory
from isoattn.graph.graph import Graph
from isoattn.graph.models.adjacency import Adjacencies, Mode, Neighbours, with_self_loops
from isoattn.graph.models.edge_loss import edge_loss
from isoattn.graph.models.network import NodeNetwork, NormName, Output, norm_layer
from isoattn.graph.models.relational import Gate, RelationalBias

Look = Callable[[Attention, Tensor, Tensor], None]
"""Called in each layer with its attention, q and k (1, H, N, d)."""


class NodeFormerLayer(nn.Module):
    """Projections, attention over all nodes, relational bias, output projection.

    The projections are made before the attention, whose construction cannot advance torch's
    generator: networks of one seed have bit-equal projections whatever the attention is.

    Args:
        attention: called once as ``attention(heads, hidden)``.
        hidden: d.
        heads: H.
        order: adjacencies of the relational bias; 0 is no bias.
        gate: of the relational bias.
    """

    core: Attention

    def __init__(
        self, attention: AttentionFactory, hidden: int, heads: int, *, order: int, gate: Gate
    ) -> None:
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(hidden, heads * hidden)
        self.k = nn.Linear(hidden, heads * hidden)
        self.v = nn.Linear(hidden, heads * hidden)
        self.out = nn.Linear(heads * hidden, hidden)
        self.relational = RelationalBias(order, heads, gate=gate) if order else None
        with torch.random.fork_rng(devices=[]):
            self.core = attention(heads, hidden)

    def forward(
        self,
        z_Nd: Tensor,
        adjacencies: Sequence[Neighbours],
        segments_1N: Tensor | None = None,
        look: Look | None = None,
    ) -> Tensor:
        """Mix the nodes, (N, d)."""
        q, k, v = (self._heads(project(z_Nd)) for project in (self.q, self.k, self.v))
        mixed = self.core(q, k, v, segments=segments_1N)[0].transpose(0, 1)
        if self.relational is not None:
            mixed = mixed + self.relational(v[0].transpose(0, 1), adjacencies)
        if look is not None:
            look(self.core, q, k)
        out: Tensor = self.out(mixed.flatten(1))
        return out

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(len(x), self.heads, -1).transpose(0, 1).unsqueeze(0)


class NodeFormer(NodeNetwork):
    """Input map, layers of all-pair message passing, output map.

    Args:
        attention: called as ``attention(heads, hidden)`` once per layer.
        in_dim: I.
        out_dim: C.
        hidden: d, also the width of each head.
        layers: number of layers.
        heads: H.
        dropout: after the input map and each layer.
        norm: ``"layer"`` (LayerNorm; the authors' flag is called use_bn), or ``"none"``.
        residual: add the input of each layer to its output, before the norm.
        act: ELU also after each layer; after the input map it always is.
        jk: jumping knowledge: the output map sees the input map's result and that of all layers.
        relational_order: adjacencies of the relational bias; 0 is none.
        relational_mode: ``"hop"``: order r reaches r steps; ``"power2"``: 2^(r-1), as released.
        relational_gate: ``"sigmoid"`` or ``"identity"``, of the strength per order and head.
        relational_budget: most entries that the adjacency of an order may come to. Orders are those
            of the graph given, in a batch of nodes those of the edges inside it.

    Raises:
        ValueError: a size or an option out of range; says which.
    """

    def __init__(
        self,
        attention: AttentionFactory,
        in_dim: int,
        out_dim: int,
        *,
        hidden: int = 32,
        layers: int = 2,
        heads: int = 4,
        dropout: float = 0.0,
        norm: NormName = "layer",
        residual: bool = True,
        act: bool = False,
        jk: bool = False,
        relational_order: int = 0,
        relational_mode: Mode = "hop",
        relational_gate: Gate = "sigmoid",
        relational_budget: int = 50_000_000,
    ) -> None:
        super().__init__(in_dim, out_dim, hidden, layers)
        if relational_order < 0:
            raise ValueError(
                f"relational_order must be 0 (no bias) or more, got {relational_order}"
            )
        if relational_mode not in ("hop", "power2"):
            raise ValueError(f"relational_mode must be 'hop' or 'power2', got {relational_mode!r}")
        self.residual = residual
        self.act = act
        self.jk = jk
        self.input = nn.Linear(in_dim, hidden)
        self.norms = nn.ModuleList(norm_layer(norm, hidden) for _ in range(layers + 1))
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(hidden * (layers + 1 if jk else 1), out_dim)
        self.adjacencies = Adjacencies(
            relational_order, mode=relational_mode, budget=relational_budget
        )
        self.layers = nn.ModuleList(
            NodeFormerLayer(attention, hidden, heads, order=relational_order, gate=relational_gate)
            for _ in range(layers)
        )

    def forward(self, graph: Graph, *, return_extras: bool = False) -> Output:
        """Logits (N, C), embeddings (N, d) and, with ``return_extras``, the edge loss.

        Raises:
            ValueError: a graph with another number of features; an attention without a probability
                of an edge, where the edge loss is asked for.
        """
        terms: list[Tensor | None] = []
        look: Look | None = None
        if return_extras:
            edges = _observed(graph)
            segments = _row(graph.segments)

            def look(core: Attention, q: Tensor, k: Tensor) -> None:
                terms.append(edge_loss(core, q, k, edges, segments))

        states = self.states(graph, look)
        logits = self.output(torch.cat(states, 1) if self.jk else states[-1])
        kept = [term for term in terms if term is not None]
        loss = torch.stack(kept).mean() if kept else None
        return Output(logits, loss, states[-1])

    def states(self, graph: Graph, look: Look | None = None) -> list[Tensor]:
        """The nodes after the input map and after each layer, each (N, d).

        Args:
            graph: of I features.
            look: called in each layer with its attention, q and k.
        """
        self.check_features(graph)
        x = graph.x.to(self.input.weight.dtype)
        adjacencies = self.adjacencies(graph.edge_index, graph.num_nodes, x.dtype)
        z = self.dropout(F.elu(self.norms[0](self.input(x))))
        states = [z]
        for layer, norm in zip(self.layers, self.norms[1:], strict=True):
            new = layer(z, adjacencies, _row(graph.segments), look)
            if self.residual:
                new = new + z
            new = norm(new)
            z = self.dropout(F.elu(new) if self.act else new)
            states.append(z)
        return states


def _observed(graph: Graph) -> Tensor:
    """The edges of the edge loss: with self loops as the authors do, none where none is given."""
    if not graph.num_edges:
        return graph.edge_index
    return with_self_loops(graph.edge_index, graph.num_nodes)


def _row(segments: Tensor | None) -> Tensor | None:
    return None if segments is None else segments.unsqueeze(0)
