"""Gated attention pooling, a reference (Ilse et al. 2018, "Attention-based Deep MIL", eq. 9).

Shape suffixes: B bags, n tiles, I features, D channels, L width of the gates, C classes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isoattn.core import AttentionFactory
from isoattn.wsi.models.input_norm import InputNormName
from isoattn.wsi.models.network import BagNetwork


class ABMIL(BagNetwork):
    """logits = W sum_i a_i h_i, a = softmax_i(w (tanh(V h_i) * sigmoid(U h_i))), h = relu(W_in x).

    No tile sees another; the order of the tiles does not matter.

    Args:
        attention: a reference has none; takes the place it has in the other networks.
        in_dim: I.
        num_classes: C.
        dim: D.
        gate_dim: L.
        dropout: on h and on the gates.
        norm: of the features.

    Raises:
        ValueError: a size below 1, or another norm.
    """

    def __init__(
        self,
        attention: AttentionFactory | None,
        in_dim: int,
        num_classes: int,
        *,
        dim: int = 512,
        gate_dim: int = 256,
        dropout: float = 0.1,
        norm: InputNormName = "none",
    ) -> None:
        super().__init__(in_dim, num_classes, norm)
        for name, value in (("dim", dim), ("gate_dim", gate_dim)):
            if value < 1:
                raise ValueError(f"ABMIL needs {name} >= 1, got {value}")
        self.input = nn.Linear(in_dim, dim)
        self.value = nn.Linear(dim, gate_dim)
        self.gate = nn.Linear(dim, gate_dim)
        self.score = nn.Linear(gate_dim, 1)
        self.head = nn.Linear(dim, num_classes)
        self.dropout = nn.Dropout(dropout)

    def forward(self, features_BnI: Tensor, cells_Bn2: Tensor | None = None) -> Tensor:
        """Logits (B, C)."""
        h = self._tiles(features_BnI)
        logits: Tensor = self.head((self._weights(h)[:, None] @ h)[:, 0])
        return logits

    def tile_weights(self, features_nI: Tensor, cells_n2: Tensor | None = None) -> Tensor:
        """The weights a_i, (n,); above 0, together 1."""
        with self.looking():
            return self._weights(self._tiles(features_nI[None]))[0]

    def _tiles(self, features_BnI: Tensor) -> Tensor:
        h: Tensor = self.dropout(F.relu(self.input(self.prepared(features_BnI))))
        return h

    def _weights(self, h_BnD: Tensor) -> Tensor:
        gated = self.dropout(torch.tanh(self.value(h_BnD)) * torch.sigmoid(self.gate(h_BnD)))
        scores: Tensor = self.score(gated)
        return scores[..., 0].softmax(1)
