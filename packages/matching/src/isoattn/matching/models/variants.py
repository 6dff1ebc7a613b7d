"""Named matchers: the published LoFTR, and smaller ones for studies on the CPU."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from isoattn.core import AttentionFactory
from isoattn.matching.models.backbone import BackboneName, Widths
from isoattn.matching.models.coarse import MatchKind
from isoattn.matching.models.matcher import Matcher
from isoattn.matching.models.positions import PositionEncoding


@dataclass(frozen=True)
class Variant:
    """Sizes of a named matcher; the options are those of :class:`Matcher`."""

    backbone: BackboneName
    widths: Widths
    heads: int
    layers: int
    fine: bool
    border: int


VARIANTS = {
    "loftr": Variant("resnet_fpn", (128, 196, 256), heads=8, layers=8, fine=True, border=2),
    "small": Variant("resnet_fpn", (64, 96, 128), heads=8, layers=4, fine=True, border=2),
    "tiny": Variant("residual", (16, 32, 64), heads=4, layers=4, fine=False, border=0),
    "tiny-context": Variant("patch", (16, 32, 64), heads=4, layers=4, fine=False, border=0),
}
"""``tiny-context`` sees 15 pixels before its attention and is the one to compare attentions with;
``tiny`` sees about 100, on small images as good without any."""


def make_matcher(
    variant: str,
    attention: AttentionFactory,
    *,
    attention_self: AttentionFactory | None = None,
    attention_cross: AttentionFactory | None = None,
    attention_fine: AttentionFactory | None = None,
    pe: PositionEncoding = "fixed",
    match: MatchKind = "dual_softmax",
    threshold: float = 0.2,
    fine: bool | None = None,
) -> Matcher:
    """A matcher by name.

    Args:
        variant: ``"loftr"`` (11.6 M parameters), ``"small"``, ``"tiny"`` or ``"tiny-context"``.
        attention: of every layer.
        attention_self: of the coarse self layers.
        attention_cross: of the coarse cross layers.
        attention_fine: of the fine layers.
        pe: position encoding; ``"released"`` for outdoor_ds, indoor_ds and the ``_ot`` weights.
        match: ``"dual_softmax"``, or ``"sinkhorn"`` for the ``_ot`` weights.
        threshold: confidence that a match must exceed.
        fine: ``None``: as the variant has it; False leaves the fine part out.

    Raises:
        ValueError: an unknown variant.

    Example:
        >>> model = make_matcher("loftr", Softmax)
    """
    if variant not in VARIANTS:
        raise ValueError(f"variant must be one of {', '.join(VARIANTS)}, got {variant!r}")
    options = asdict(VARIANTS[variant])
    if fine is not None:
        options["fine"] = fine
    return Matcher(
        attention,
        attention_self,
        attention_cross,
        attention_fine,
        pe=pe,
        match=match,
        threshold=threshold,
        **options,
    )
