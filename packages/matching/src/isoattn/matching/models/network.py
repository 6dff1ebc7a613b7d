"""What training and configs ask of a matching network."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn

from isoattn.matching.matches import Matches


class MatchNetwork(nn.Module, ABC):
    """Built as ``Network(attention, attention_self, attention_cross, attention_fine, **options)``.

    The last three are ``None`` where ``attention`` serves there as well.
    """

    @abstractmethod
    def forward(
        self,
        image0_BIHW: Tensor,
        image1_BIHW: Tensor,
        mask0: Tensor | None = None,
        mask1: Tensor | None = None,
        *,
        threshold: float | None = None,
        fine: bool | None = None,
    ) -> Matches:
        """Match pairs of images."""
