"""Adjacency of every order, sparse, and the sum over neighbours that it weighs.

A_1 is the observed graph with a self loop at each node. ``hop``: A_r holds the pairs at most r
steps apart. ``power2``: A_r is the pattern of A_(r-1) A_(r-1), as the released NodeFormer makes it,
so its third order reaches four steps (Wu et al. 2022, section 3.3, says r).

Shape suffixes: N nodes, E entries, P columns.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

Mode = Literal["hop", "power2"]

_MULTIPLIERS = (0x9E3779B97F4A7C15 - (1 << 64), 0x94D049BB133111EB - (1 << 64))


def with_self_loops(edge_index: Tensor, nodes: int) -> Tensor:
    """The entries with exactly one self loop a node, those at the end, int64 (2, E)."""
    loops = torch.arange(nodes, device=edge_index.device).expand(2, -1)
    return torch.cat([edge_index[:, edge_index[0] != edge_index[1]], loops], 1)


def paths(first: Tensor, second: Tensor, nodes: int) -> int:
    """Pairs of entries that meet: bounds what the product of two adjacencies can hold."""
    leaving = torch.bincount(first[0], minlength=nodes)
    arriving = torch.bincount(second[1], minlength=nodes)
    return int((leaving * arriving).sum())


def adjacency_orders(
    edge_index: Tensor, nodes: int, order: int, *, mode: Mode = "hop", budget: int = 50_000_000
) -> list[Tensor]:
    """Entries (source, target) of A_1 to A_order, each (2, E_r).

    Args:
        edge_index: int64 (2, E), without repeats; self loops are added where they are missing.
        nodes: N.
        order: how many.
        mode: ``"hop"`` or ``"power2"``.
        budget: most entries that an order may come to; looked at before it is computed.

    Raises:
        ValueError: an unknown mode, or an order beyond the budget; says which and what to do.
    """
    if mode not in ("hop", "power2"):
        raise ValueError(f"relational_mode must be 'hop' or 'power2', got {mode!r}")
    if order < 1:
        return []
    found = [with_self_loops(edge_index, nodes)]
    for number in range(2, order + 1):
        last = found[-1]
        other = found[0] if mode == "hop" else last
        most = min(paths(last, other, nodes), nodes * nodes)
        if most > budget:
            raise ValueError(
                f"The adjacency of order {number} (mode {mode!r}) may have {most:,} entries, more "
                f"than relational_budget={budget:,}: use relational_order={number - 1}, smaller "
                "batches, or raise the budget"
            )
        found.append(_product(other, last, nodes))
    return found


def _product(first: Tensor, second: Tensor, nodes: int) -> Tensor:
    """Pairs joined by an entry of the first and then one of the second, (2, E)."""
    one, two = (
        torch.sparse_coo_tensor(
            torch.stack([edges[1], edges[0]]),
            torch.ones(edges.shape[1], device=edges.device),
            (nodes, nodes),
            check_invariants=False,
        )
        for edges in (first, second)
    )
    with warnings.catch_warnings():  # torch says that the format it uses inside is new
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support")
        target, source = torch.sparse.mm(two, one).coalesce().indices()
    return torch.stack([source, target])


@dataclass(frozen=True)
class Neighbours:
    """The weights of the entries that arrive at each node.

    Args:
        matrix: sparse (N, N) by rows (CSR), rows are targets.
        transposed: its transpose, which gradients go through; the same tensor where all entries go
            both ways.
    """

    matrix: Tensor
    transposed: Tensor

    @property
    def entries(self) -> int:
        """E."""
        return self.matrix.values().numel()


def normalised(edges: Tensor, nodes: int, dtype: torch.dtype) -> Neighbours:
    """D^-1/2 A D^-1/2, D the number of entries that arrive.

    Every node needs an entry that arrives, such as a self loop. No entry twice.
    """
    degree = torch.bincount(edges[1], minlength=nodes).to(torch.float64).rsqrt()
    source, target = edges
    code, order = (target * nodes + source).sort()
    back, back_order = (source * nodes + target).sort()
    weight = (degree[source] * degree[target]).to(dtype)
    matrix = _by_rows(code, weight[order], nodes)
    if torch.equal(code, back):  # then so are the weights
        return Neighbours(matrix, matrix)
    return Neighbours(matrix, _by_rows(back, weight[back_order], nodes))


def _by_rows(code: Tensor, weight: Tensor, nodes: int) -> Tensor:
    """CSR (N, N) of entries row * N + column, ascending; int32, which MKL takes as it is."""
    start = torch.zeros(nodes + 1, dtype=torch.int32, device=code.device)
    start[1:] = torch.bincount(code // nodes, minlength=nodes).cumsum(0)
    column = (code % nodes).to(torch.int32)
    with warnings.catch_warnings():  # torch says that the format is new
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support")
        return torch.sparse_csr_tensor(
            start, column, weight, (nodes, nodes), check_invariants=False
        )


def neighbour_sum(neighbours: Neighbours, x_NP: Tensor) -> Tensor:
    """The sparse matrix times x, in the dtype of the matrix; no product for each entry is kept."""
    matrix, transposed = neighbours.matrix, neighbours.transposed
    with torch.autocast(x_NP.device.type, enabled=False):
        function: Any = _Sum
        out: Tensor = function.apply(x_NP.to(matrix.dtype).contiguous(), matrix, transposed)
    return out


class _Sum(torch.autograd.Function):
    """matrix @ x; the gradient goes through the transpose that is there, none is made."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor, transposed: Tensor) -> Tensor:
        ctx.both = matrix, transposed
        out: Tensor = torch.sparse.mm(matrix, x)  # which the FLOP counter leaves to us
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        matrix, transposed = ctx.both
        function: Any = _Sum
        return function.apply(grad.contiguous(), transposed, matrix), None, None


class Adjacencies:
    """The normalised adjacencies of the last graphs seen, so that a full graph is prepared once.

    A graph is known by its entries, whatever their order or device.

    Args:
        order: how many.
        mode: as of :func:`adjacency_orders`.
        budget: as there.
        kept: graphs remembered.
    """

    def __init__(self, order: int, *, mode: Mode, budget: int, kept: int = 4) -> None:
        self.order = order
        self.mode: Mode = mode
        self.budget = budget
        self.kept = kept
        self._known: OrderedDict[tuple[object, ...], list[Neighbours]] = OrderedDict()

    def __call__(self, edge_index: Tensor, nodes: int, dtype: torch.dtype) -> list[Neighbours]:
        """The weights of order 1, 2, ...

        Raises:
            ValueError: an order beyond the budget.
        """
        if not self.order:
            return []
        key = (_fingerprint(edge_index, nodes), edge_index.device, dtype)
        if key not in self._known:
            found = adjacency_orders(
                edge_index, nodes, self.order, mode=self.mode, budget=self.budget
            )
            self._known[key] = [normalised(edges, nodes, dtype) for edges in found]
        self._known.move_to_end(key)
        while len(self._known) > self.kept:
            self._known.popitem(last=False)
        return self._known[key]


def _fingerprint(edge_index: Tensor, nodes: int) -> tuple[int, int, int]:
    """Number of nodes and entries, and 64 bits of which they are."""
    code = (edge_index[0] * nodes + edge_index[1] + 1) * _MULTIPLIERS[0]
    code = (code ^ (code >> 29)) * _MULTIPLIERS[1]
    return nodes, edge_index.shape[1], int((code ^ (code >> 32)).sum())
