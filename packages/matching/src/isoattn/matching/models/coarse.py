"""Confidence between the cells of two images: dual softmax, or optimal transport with a dustbin.

Sun et al. 2021 (arXiv 2104.00680), section 3.3.

Shape suffixes: B pairs, N cells of image 0, M cells of image 1, C channels of a token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from isoattn.matching.models.cells import Grid
from isoattn.matching.models.dual_softmax import dual_log_softmax, similarity, stream_nearest
from isoattn.matching.models.nearest import Nearest, nearest
from isoattn.matching.models.optimal_transport import (
    log_optimal_transport,
    match_log_confidence,
)

MatchKind = Literal["dual_softmax", "sinkhorn"]


@dataclass(frozen=True)
class ImageFeatures:
    """What the matcher keeps of a batch of images; may be used for any number of pairs.

    Args:
        tokens: (B, N, C), row-major over the grid, with positions.
        grid: rows and columns of cells.
        mask: bool (B, N), True = keep, or ``None``.
        fine: map at 1/2 (B, c, V, U), or ``None``.
    """

    tokens: Tensor
    grid: Grid
    mask: Tensor | None
    fine: Tensor | None


class CoarseMatching(nn.Module):
    """Confidence between cells: dual softmax, or optimal transport with a dustbin.

    Args:
        kind: ``"dual_softmax"`` or ``"sinkhorn"``.
        temperature: t of the dual softmax; optimal transport has none.
        iterations: of Sinkhorn.
        prefilter: outside training, cells that go to the dustbin match nothing.

    Raises:
        ValueError: unknown kind, a temperature or number out of range.
    """

    def __init__(
        self,
        kind: MatchKind = "dual_softmax",
        *,
        temperature: float = 0.1,
        iterations: int = 3,
        prefilter: bool = True,
    ) -> None:
        super().__init__()
        if kind not in ("dual_softmax", "sinkhorn"):
            raise ValueError(f"match must be 'dual_softmax' or 'sinkhorn', got {kind!r}")
        if temperature <= 0:
            raise ValueError(f"temperature must be above 0, got {temperature}")
        if iterations < 1:
            raise ValueError(f"Sinkhorn needs at least one iteration, got {iterations}")
        self.kind = kind
        self.temperature = temperature
        self.iterations = iterations
        self.prefilter = prefilter
        if kind == "sinkhorn":
            self.bin_score = nn.Parameter(torch.tensor(1.0))

    def log_assignment(self, x0: ImageFeatures, x1: ImageFeatures) -> Tensor:
        """Optimal transport with its dustbins, (B, N + 1, M + 1)."""
        scores = similarity(x0.tokens, x1.tokens, 1.0)
        return log_optimal_transport(scores, self.bin_score, self.iterations, x0.mask, x1.mask)

    def without_bins(self, log_assignment: Tensor) -> Tensor:
        """Of an assignment the confidences (B, N, M); outside training after the prefilter."""
        return match_log_confidence(log_assignment, prefilter=self.prefilter and not self.training)

    def log_confidence(self, x0: ImageFeatures, x1: ImageFeatures) -> Tensor:
        """Log confidence (B, N, M), -inf where either cell is masked; differentiable."""
        if self.kind == "sinkhorn":
            return self.without_bins(self.log_assignment(x0, x1))
        logits = similarity(x0.tokens, x1.tokens, self.temperature)
        return dual_log_softmax(logits, x0.mask, x1.mask)

    def nearest(self, x0: ImageFeatures, x1: ImageFeatures) -> Nearest:
        """Mutual nearest neighbours; of a dual softmax without its matrix."""
        if self.kind == "sinkhorn":
            return nearest(self.log_confidence(x0, x1))
        return stream_nearest(x0.tokens, x1.tokens, self.temperature, x0.mask, x1.mask)
