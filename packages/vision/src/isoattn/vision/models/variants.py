"""The fourteen published XCiT models (arXiv 2106.09681, table 1 and facebookresearch/xcit)."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from isoattn.core import AttentionFactory, CrossCovariance
from isoattn.vision.models.xcit import XCiT


@dataclass(frozen=True)
class Variant:
    """One published model.

    Args:
        embed_dim: channels.
        depth: blocks.
        heads: of blocks and class attention.
        patch_size: 8 or 16.
        eta: initial LayerScale.
        tokens_norm: see :class:`~isoattn.vision.models.class_attention.ClassAttentionBlock`.
        parameters: with 1000 classes and 3 input channels.
    """

    embed_dim: int
    depth: int
    heads: int
    patch_size: int
    eta: float
    tokens_norm: bool
    parameters: int


def _variant(
    dim: int, depth: int, heads: int, patch: int, parameters: int, *, tokens_norm: bool = True
) -> Variant:
    eta = 1.0 if depth == 12 else 1e-5
    return Variant(dim, depth, heads, patch, eta, tokens_norm, parameters)


VARIANTS: dict[str, Variant] = {
    "nano_12_p16": _variant(128, 12, 4, 16, 3_053_224, tokens_norm=False),
    "nano_12_p8": _variant(128, 12, 4, 8, 3_049_016, tokens_norm=False),
    "tiny_12_p16": _variant(192, 12, 4, 16, 6_716_272),
    "tiny_12_p8": _variant(192, 12, 4, 8, 6_706_504),
    "tiny_24_p16": _variant(192, 24, 4, 16, 12_116_896),
    "tiny_24_p8": _variant(192, 24, 4, 8, 12_107_128),
    "small_12_p16": _variant(384, 12, 8, 16, 26_253_304),
    "small_12_p8": _variant(384, 12, 8, 8, 26_213_032),
    "small_24_p16": _variant(384, 24, 8, 16, 47_671_384),
    "small_24_p8": _variant(384, 24, 8, 8, 47_631_112),
    "medium_24_p16": _variant(512, 24, 8, 16, 84_395_752),
    "medium_24_p8": _variant(512, 24, 8, 8, 84_323_624),
    "large_24_p16": _variant(768, 24, 16, 16, 189_096_136),
    "large_24_p8": _variant(768, 24, 16, 8, 188_932_648),
}
"""By name without the ``xcit_`` prefix."""


def xcit(
    variant: str,
    attention: AttentionFactory = CrossCovariance,
    num_classes: int = 1000,
    in_chans: int = 3,
    *,
    drop_path: float = 0.0,
) -> XCiT:
    """A published XCiT with random weights.

    Args:
        variant: a key of :data:`VARIANTS`, with or without the ``xcit_`` prefix.
        attention: token mixer of the blocks.
        num_classes: classes of the head.
        in_chans: input channels (the released code has 3 hard-coded).
        drop_path: stochastic depth (0.05 in the recipe of the small model).

    Raises:
        ValueError: unknown variant; lists near names.

    Example:
        >>> sum(p.numel() for p in xcit("nano_12_p16").parameters())
        3053224
    """
    name = variant.removeprefix("xcit_")
    if name not in VARIANTS:
        near = difflib.get_close_matches(name, VARIANTS, n=3)
        hint = f"Did you mean {' or '.join(near)}?" if near else f"Known: {', '.join(VARIANTS)}."
        raise ValueError(f"There is no XCiT variant {variant!r}. {hint}")
    spec = VARIANTS[name]
    return XCiT(
        attention,
        in_chans,
        num_classes,
        embed_dim=spec.embed_dim,
        depth=spec.depth,
        heads=spec.heads,
        patch_size=spec.patch_size,
        eta=spec.eta,
        tokens_norm=spec.tokens_norm,
        drop_path=drop_path,
    )
