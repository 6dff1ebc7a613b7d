"""Parts that every block shares: MLP, stochastic depth and the scaled residual.

Shape suffixes: B batch, N tokens, C channels, F hidden channels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from isoattn.core import Attention

NORM_EPS = 1e-6
"""LayerNorm epsilon of XCiT, DeiT and timm's ViT (torch's own default is 1e-5)."""


class LayerNorm(nn.LayerNorm):
    """LayerNorm over the channels with the epsilon of the released models.

    Args:
        dim: channels C.
    """

    def __init__(self, dim: int) -> None:
        super().__init__(dim, eps=NORM_EPS)


class MLP(nn.Module):
    """Two linear layers with an exact GELU between: (B, N, C) -> (B, N, C).

    Args:
        dim: channels C.
        ratio: hidden channels F = int(C * ratio).
    """

    def __init__(self, dim: int, ratio: float = 4.0) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, int(dim * ratio))
        self.act = nn.GELU()
        self.fc2 = nn.Linear(int(dim * ratio), dim)

    def forward(self, x_BNC: Tensor) -> Tensor:
        """Apply to each token on its own."""
        out: Tensor = self.fc2(self.act(self.fc1(x_BNC)))
        return out


class Residual(nn.Module):
    """``x + keep * gamma * branch``: LayerScale and stochastic depth in one pass over memory.

    Holds no parameter: ``gamma`` belongs to the block, under the names of the released weights.
    The per-sample draw comes from torch's global generator, so it is fixed by ``manual_seed`` and
    the same whatever attention the block contains.

    Source: LayerScale, arXiv 2103.17239 section 2; stochastic depth, arXiv 1603.09382.

    Args:
        drop_path: probability of leaving the branch out of a sample, in [0, 1). Active in train
            mode only; kept branches are divided by 1 - drop_path.

    Raises:
        ValueError: drop_path outside [0, 1).
    """

    def __init__(self, drop_path: float = 0.0) -> None:
        super().__init__()
        if not 0.0 <= drop_path < 1.0:
            raise ValueError(f"drop_path is a probability in [0, 1), got {drop_path}")
        self.drop_path = drop_path

    def forward(self, x_BNC: Tensor, branch_BNC: Tensor, gamma_C: Tensor | None = None) -> Tensor:
        """Add the branch to the stream; ``gamma_C=None`` means no LayerScale."""
        scale = gamma_C
        if self.training and self.drop_path > 0.0:
            keep = 1.0 - self.drop_path
            kept_B11 = branch_BNC.new_empty(len(branch_BNC), 1, 1).bernoulli_(keep).div_(keep)
            scale = kept_B11 if scale is None else scale * kept_B11
        if scale is None:
            return x_BNC + branch_BNC
        return torch.addcmul(x_BNC, branch_BNC, scale)

    def extra_repr(self) -> str:
        """Show the rate."""
        return f"drop_path={self.drop_path}"


def init_linear(root: nn.Module, std: float = 0.02) -> None:
    """Truncated normal weights and zero biases for every linear layer outside attention cores.

    The cores keep their own initial values, and the order of draws does not depend on them: that
    is what makes two models of one seed equal in everything but the attention.

    Args:
        root: module to initialise in place.
        std: standard deviation (XCiT and DeiT use 0.02).
    """
    if isinstance(root, Attention):
        return
    if isinstance(root, nn.Linear):
        nn.init.trunc_normal_(root.weight, std=std)
        if root.bias is not None:
            nn.init.zeros_(root.bias)
    for child in root.children():
        init_linear(child, std)
