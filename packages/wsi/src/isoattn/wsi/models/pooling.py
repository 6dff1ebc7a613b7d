"""References that mix nothing: the mean of all tiles, and the strongest tile of each class.

Shape suffixes: B bags, n tiles, I features, D channels, C classes.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from isoattn.core import AttentionFactory
from isoattn.wsi.models.input_norm import InputNormName
from isoattn.wsi.models.network import BagNetwork


class _Pooling(BagNetwork):
    """h = relu(W_in x) of each tile, and an output map.

    Args:
        attention: a reference has none; takes the place it has in the other networks.
        in_dim: I.
        num_classes: C.
        dim: D.
        dropout: on h.
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
        dropout: float = 0.1,
        norm: InputNormName = "none",
    ) -> None:
        super().__init__(in_dim, num_classes, norm)
        if dim < 1:
            raise ValueError(f"{type(self).__name__} needs dim >= 1, got {dim}")
        self.input = nn.Linear(in_dim, dim)
        self.head = nn.Linear(dim, num_classes)
        self.dropout = nn.Dropout(dropout)

    def _tiles(self, features_BnI: Tensor) -> Tensor:
        h: Tensor = self.dropout(F.relu(self.input(self.prepared(features_BnI))))
        return h


class MeanPooling(_Pooling):
    """logits = W mean_i h_i."""

    def forward(self, features_BnI: Tensor, cells_Bn2: Tensor | None = None) -> Tensor:
        """Logits (B, C)."""
        logits: Tensor = self.head(self._tiles(features_BnI).mean(1))
        return logits

    def tile_weights(self, features_nI: Tensor, cells_n2: Tensor | None = None) -> Tensor:
        """1 / n for each tile."""
        return features_nI.new_full((len(features_nI),), 1 / len(features_nI))


class MaxPooling(_Pooling):
    """logits_c = max_i (W h_i)_c: the strongest tile speaks for the bag, class by class."""

    def forward(self, features_BnI: Tensor, cells_Bn2: Tensor | None = None) -> Tensor:
        """Logits (B, C)."""
        logits: Tensor = self.head(self._tiles(features_BnI)).amax(1)
        return logits

    def tile_weights(self, features_nI: Tensor, cells_n2: Tensor | None = None) -> Tensor:
        """Probability of the bag's predicted class that each tile has by itself, (n,)."""
        with self.looking():
            logits_nC: Tensor = self.head(self._tiles(features_nI[None]))[0]
            return logits_nC.softmax(1)[:, logits_nC.amax(0).argmax()]
