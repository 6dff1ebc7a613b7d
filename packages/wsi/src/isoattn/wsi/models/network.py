"""What every bag network of this package offers to training and to heat maps.

Shape suffixes: B bags of one size, n tiles of a bag, I features of a tile, C classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from isoattn.wsi.models.input_norm import InputNormName, Standardise, input_norm


class BagNetwork(nn.Module, ABC):
    """A bag classifier built as ``Network(attention, in_dim, num_classes, **options)``.

    Args:
        in_dim: I.
        num_classes: C.
        norm: of the features before anything else sees them; see
            :func:`~isoattn.wsi.models.input_norm.input_norm`.

    Raises:
        ValueError: a size below 1, or an unknown norm.
    """

    def __init__(self, in_dim: int, num_classes: int, norm: InputNormName = "none") -> None:
        super().__init__()
        for name, value in (("in_dim", in_dim), ("num_classes", num_classes)):
            if value < 1:
                raise ValueError(f"{type(self).__name__} needs {name} >= 1, got {value}")
        self.in_dim = in_dim
        self.num_classes = num_classes
        self.input_norm = input_norm(norm, in_dim)

    @abstractmethod
    def forward(self, features_BnI: Tensor, cells_Bn2: Tensor | None = None) -> Tensor:
        """Logits (B, C).

        Args:
            features_BnI: of any floating dtype.
            cells_Bn2: int64, column and row of each tile in the slide's grid, for networks that
                look at places.

        Raises:
            ValueError: an empty bag, or another number of features.
        """

    @abstractmethod
    def tile_weights(self, features_nI: Tensor, cells_n2: Tensor | None = None) -> Tensor:
        """One number a tile of a single bag, (n,) in its order: what a heat map shows.

        In evaluation mode and without gradient, whatever the mode of the network.

        Raises:
            UnsupportedAttention: the network has no such numbers.
        """

    @property
    def needs_moments(self) -> bool:
        """Whether the input norm waits for the moments of the training features."""
        return isinstance(self.input_norm, Standardise) and not bool(self.input_norm.fitted)

    def set_moments(self, mean_I: Tensor, deviation_I: Tensor) -> None:
        """Give ``norm="standard"`` the moments of the training features.

        Raises:
            ValueError: another norm, or shapes that do not fit.
        """
        if not isinstance(self.input_norm, Standardise):
            raise ValueError(f"{type(self).__name__} takes no moments: build it with 'standard'")
        self.input_norm.fit(mean_I, deviation_I)

    def prepared(self, features_BnI: Tensor) -> Tensor:
        """Checked features in the dtype of the weights, normalised as the network was built."""
        if features_BnI.ndim != 3 or features_BnI.shape[2] != self.in_dim:
            raise ValueError(
                f"{type(self).__name__} takes features (bags, tiles, {self.in_dim}), got "
                f"{tuple(features_BnI.shape)}: give the features of the encoder it was built for, "
                "or build it with another in_dim"
            )
        if not features_BnI.shape[1]:
            raise ValueError(f"{type(self).__name__}: the bag has no tiles, so nothing to classify")
        like = next(p for p in self.parameters() if p.is_floating_point())
        out: Tensor = self.input_norm(features_BnI.to(like.dtype))
        return out

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Evaluation mode without gradient; afterwards the mode is as it was."""
        training = self.training
        self.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.train(training)


NetworkFactory = Callable[..., BagNetwork]
"""``factory(attention, in_dim, num_classes) -> BagNetwork``."""
