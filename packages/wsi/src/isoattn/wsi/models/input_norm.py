"""What is done to the features of a bag before the network sees them.

Shape suffixes: B bags, n tiles, I features.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

InputNormName = Literal["none", "layer", "standard"]


class Standardise(nn.Module):
    """(x - mean) / deviation with the moments of the training features, feature by feature.

    The moments are buffers, so a checkpoint brings them along. A feature that does not vary is
    only centred: no floor is added to the deviations, which a floor can drown
    (features of deviation 1e-3 are common).

    Args:
        in_dim: I.
    """

    mean: Tensor
    deviation: Tensor
    fitted: Tensor

    def __init__(self, in_dim: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(in_dim))
        self.register_buffer("deviation", torch.ones(in_dim))
        self.register_buffer("fitted", torch.tensor(False))

    def fit(self, mean_I: Tensor, deviation_I: Tensor) -> None:
        """Take the moments over.

        Raises:
            ValueError: shapes that do not fit, or numbers that are not finite.
        """
        for name, x in (("mean", mean_I), ("deviation", deviation_I)):
            if x.shape != self.mean.shape or not bool(x.isfinite().all()):
                raise ValueError(
                    f"The {name} of the features must be {len(self.mean)} finite numbers, got "
                    f"{tuple(x.shape)}"
                )
        self.mean.copy_(mean_I)
        self.deviation.copy_(deviation_I.where(deviation_I > 0, 1.0))
        self.fitted.fill_(True)

    def forward(self, x_BnI: Tensor) -> Tensor:
        """The same shape.

        Raises:
            ValueError: the moments were never set.
        """
        if not self.fitted:
            raise ValueError(
                "The features cannot be standardised: their moments are not known. Train with "
                "BagClassifier, which takes them from the training bags, or call set_moments()."
            )
        return (x_BnI - self.mean) / self.deviation


def input_norm(name: InputNormName, in_dim: int) -> nn.Module:
    """``none`` as released; ``layer``: LayerNorm over a tile's features; ``standard``.

    Raises:
        ValueError: another name.
    """
    if name == "none":
        return nn.Identity()
    if name == "layer":
        return nn.LayerNorm(in_dim)
    if name == "standard":
        return Standardise(in_dim)
    raise ValueError(f"norm must be one of {', '.join(get_args(InputNormName))}, got {name!r}")
