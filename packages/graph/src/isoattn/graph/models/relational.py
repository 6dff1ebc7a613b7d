"""Relational bias of NodeFormer: values of neighbours added to what attention gives.

Wu et al. 2022, "NodeFormer", section 3.3; released: qitianwu/NodeFormer, nodeformer.py.

Shape suffixes: N nodes, H heads, D width of a head, R orders.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from isoattn.graph.models.adjacency import Neighbours, neighbour_sum

Gate = Literal["sigmoid", "identity"]


class RelationalBias(nn.Module):
    """z_h = sum_r s(b_rh) D_r^-1/2 A_r D_r^-1/2 v_h.

    Args:
        order: R, adjacencies that are used.
        heads: H.
        gate: s, ``"sigmoid"`` (b begins at 0.1) or ``"identity"`` (b begins at 1).

    Raises:
        ValueError: an unknown gate.
    """

    def __init__(self, order: int, heads: int, *, gate: Gate = "sigmoid") -> None:
        super().__init__()
        if gate not in ("sigmoid", "identity"):
            raise ValueError(f"relational_gate must be 'sigmoid' or 'identity', got {gate!r}")
        self.kind: Gate = gate
        self.gate = nn.Parameter(torch.full((order, heads), 0.1 if gate == "sigmoid" else 1.0))

    def forward(self, v_NHD: Tensor, adjacencies: Sequence[Neighbours]) -> Tensor:
        """The sum over neighbours of every order, (N, H, D)."""
        strength_RH = self.gate.sigmoid() if self.kind == "sigmoid" else self.gate
        total = torch.zeros_like(v_NHD)
        for strength_H, matrix in zip(strength_RH, adjacencies, strict=True):
            summed = neighbour_sum(matrix, v_NHD.flatten(1)).view(v_NHD.shape)
            total = total + strength_H[:, None] * summed.to(v_NHD.dtype)
        return total
