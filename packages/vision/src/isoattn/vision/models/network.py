"""What every image network of this package offers to training, to swaps and to cost tables.

Shape suffixes: B batch, I input channels, H image rows, W image columns, L classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor, nn

from isoattn.vision.models.grid import Grid
from isoattn.vision.models.self_attention import SelfAttention
from isoattn.vision.models.stems import ImageSize, grid_of


class ImageNetwork(nn.Module, ABC):
    """An image classifier built as ``Network(attention, in_chans, num_classes, **options)``.

    Args:
        in_chans: I.
        num_classes: L.
        embed_dim: channels of a token.
        patch_size: pixels of a patch.
    """

    def __init__(self, in_chans: int, num_classes: int, embed_dim: int, patch_size: int) -> None:
        super().__init__()
        for name, value in (("in_chans", in_chans), ("num_classes", num_classes)):
            if value < 1:
                raise ValueError(f"{type(self).__name__} needs {name} >= 1, got {value}")
        self.in_chans = in_chans
        self.num_classes = num_classes
        self.embed_dim = embed_dim
        self.patch_size = patch_size

    @abstractmethod
    def forward(self, image_BIHW: Tensor) -> Tensor:
        """Logits (B, L)."""

    @abstractmethod
    def forward_features(self, image_BIHW: Tensor) -> Tensor:
        """The tokens that the head pools."""

    @abstractmethod
    def tokens(self, image_size: ImageSize) -> int:
        """Tokens that the swappable attention sees for an image size."""

    def grid(self, image_size: ImageSize | Sequence[int]) -> Grid:
        """Token rows and columns for an image size: each side over the patch, rounded up."""
        return grid_of(image_size, self.patch_size)

    def no_weight_decay(self) -> set[str]:
        """Names (as in ``named_parameters``) of the parameters exempt from weight decay.

        The position encoding and the class token, as the authors of XCiT and DeiT declare, and
        what each attention class declares in its own ``no_weight_decay``.
        """
        exempt = {
            f"{layer}.core.{name}"
            for layer, module in self.named_modules()
            if isinstance(module, SelfAttention)
            for name in getattr(module.core, "no_weight_decay", ())
        }
        own = ("pos_embed", "cls_token")
        names = [name for name, _ in self.named_parameters()]
        return {name for name in names if name in exempt or name.startswith(own)}
