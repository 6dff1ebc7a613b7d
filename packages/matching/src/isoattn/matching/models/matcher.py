"""The matcher: images -> tokens at 1/8 -> transformer -> matched cells -> refined points.

LoFTR (Sun et al. 2021, arXiv 2104.00680) with an attention that can be chosen for self, cross and
fine layers separately. Parameter names are those of zju3dv/LoFTR and of kornia.

Shape suffixes: B pairs, H image rows, W image columns, N cells of image 0, M cells of image 1,
C channels of a token, K matches.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from isoattn.core import AttentionFactory, attention_factory
from isoattn.matching.matches import Matches
from isoattn.matching.models.backbone import BackboneName, Maps, Widths, make_backbone
from isoattn.matching.models.cells import cell_mask, cell_points, grid_of, inner_cells
from isoattn.matching.models.coarse import CoarseMatching, ImageFeatures, MatchKind
from isoattn.matching.models.fine import (
    FinePreprocess,
    Refinement,
    expectation,
    no_refinement,
)
from isoattn.matching.models.nearest import CellMatches, nearest, select
from isoattn.matching.models.network import MatchNetwork
from isoattn.matching.models.positions import PositionEncoding, frequencies, sinusoid
from isoattn.matching.models.transformer import CrossUpdate, PairTransformer, alternating

_LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601


class Matcher(MatchNetwork):
    """Matches two images of any sizes.

    Args:
        attention: called as ``attention(heads, head_dim)`` once per layer; a name or
            ``{class_path, init_args}`` does as well.
        attention_self: of the coarse self layers, instead of ``attention``.
        attention_cross: of the coarse cross layers, likewise.
        attention_fine: of the fine layers, likewise.
        backbone: ``"resnet_fpn"``, ``"residual"`` or ``"patch"``; the last two have no fine map.
        widths: channels at 1/2, 1/4 and 1/8; the last are those of a token, the first those of the
            fine layers.
        heads: of every layer.
        layers: of the coarse transformer: self, cross, self, ...
        pe: ``"fixed"`` or ``"released"`` position encoding; weights know which they need.
        cross_update: ``"sequential"`` as published, or ``"parallel"``.
        match: ``"dual_softmax"`` or ``"sinkhorn"``.
        temperature: of the dual softmax.
        threshold: confidence that a match must exceed, unless the call says otherwise.
        border: cells at each side of the valid image that never match.
        fine: refine matches; False leaves those parameters out.

    Raises:
        ValueError: options out of range or that do not fit each other; says which.

    Example:
        >>> matcher = Matcher(Linear, backbone="patch", widths=(16, 32, 64), heads=4, fine=False)
        >>> matches = matcher(torch.rand(1, 1, 120, 160), torch.rand(1, 1, 90, 101))
        >>> matches.keypoints0.shape
        torch.Size([..., 2])
    """

    def __init__(
        self,
        attention: AttentionFactory,
        attention_self: AttentionFactory | None = None,
        attention_cross: AttentionFactory | None = None,
        attention_fine: AttentionFactory | None = None,
        *,
        backbone: BackboneName = "resnet_fpn",
        widths: Widths = (128, 196, 256),
        heads: int = 8,
        layers: int = 8,
        pe: PositionEncoding = "fixed",
        cross_update: CrossUpdate = "sequential",
        match: MatchKind = "dual_softmax",
        temperature: float = 0.1,
        threshold: float = 0.2,
        border: int = 2,
        fine: bool = True,
    ) -> None:
        super().__init__()
        frequencies(widths[-1], pe)  # refuses what has none
        if border < 0 or layers < 0:
            raise ValueError(f"border and layers must be 0 or more, got {border} and {layers}")
        of = {
            "self": attention_factory(attention_self or attention),
            "cross": attention_factory(attention_cross or attention),
        }
        of_fine = attention_factory(attention_fine or attention)
        self.pe: PositionEncoding = pe
        self.threshold = threshold
        self.border = border
        self.backbone = make_backbone(backbone, widths, fine=fine)
        self.dim, self.fine_dim = widths[2], widths[0]
        kinds = alternating(layers)
        self.loftr_coarse = PairTransformer(
            [of[kind] for kind in kinds], self.dim, heads, kinds, cross_update=cross_update
        )
        self.coarse_matching = CoarseMatching(match, temperature=temperature)
        self.fine_preprocess: FinePreprocess | None = None
        self.loftr_fine: PairTransformer | None = None
        if fine:
            self.fine_preprocess = FinePreprocess(self.dim, self.fine_dim)
            self.loftr_fine = PairTransformer(
                [of_fine, of_fine],
                self.fine_dim,
                heads,
                ["self", "cross"],
                cross_update=cross_update,
            )

    @property
    def has_fine(self) -> bool:
        """Whether matches are refined unless a call says otherwise."""
        return self.loftr_fine is not None

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
        """Match pairs of images.

        Args:
            image0_BIHW: grey (B, 1, H, W) or RGB (B, 3, H, W), floating, in [0, 1].
            image1_BIHW: likewise, of the same B and any size.
            mask0: bool, True = keep, over pixels (B, H, W) or cells (B, ceil(H/8), ceil(W/8)).
            mask1: likewise of image 1.
            threshold: confidence that a match must exceed; 0 gives every mutual nearest neighbour,
                which is what a metric without threshold needs. ``None``: the matcher's own.
            fine: refine, ``None`` = where the matcher can; False also leaves the fine maps out.

        Raises:
            ValueError: images or masks that do not fit; says what is allowed.
        """
        features = self.features_of_pair(image0_BIHW, image1_BIHW, mask0, mask1, fine=fine)
        return self.match(*features, threshold=threshold)

    def features(
        self, image_BIHW: Tensor, mask: Tensor | None = None, *, fine: bool | None = None
    ) -> ImageFeatures:
        """What is seen in images on their own, to be kept and matched with any number of others.

        Raises:
            ValueError: an image or mask that does not fit.
        """
        grey = self._grey(image_BIHW, "image")
        maps = self.backbone(grey, fine=self._wants_fine(fine))
        return self._tokens(maps, cell_mask(mask, grey), grey)

    def features_of_pair(
        self,
        image0_BIHW: Tensor,
        image1_BIHW: Tensor,
        mask0: Tensor | None = None,
        mask1: Tensor | None = None,
        *,
        fine: bool | None = None,
    ) -> tuple[ImageFeatures, ImageFeatures]:
        """The features of both images.

        In training images of one size go through the backbone together and share their batch
        statistics, as in the released code. Otherwise one after the other, in half of the memory.

        Raises:
            ValueError: images or masks that do not fit.
        """
        grey0, grey1 = self._grey(image0_BIHW, "image0"), self._grey(image1_BIHW, "image1")
        if len(grey0) != len(grey1):
            raise ValueError(
                f"A batch has as many images 0 as images 1, got {len(grey0)} and {len(grey1)}"
            )
        cells = (cell_mask(mask0, grey0, "mask0"), cell_mask(mask1, grey1, "mask1"))
        wanted = self._wants_fine(fine)
        if self.training and grey0.shape == grey1.shape:
            maps = self.backbone(torch.cat([grey0, grey1]), fine=wanted).halves()
        else:
            maps = (self.backbone(grey0, fine=wanted), self.backbone(grey1, fine=wanted))
        return (
            self._tokens(maps[0], cells[0], grey0),
            self._tokens(maps[1], cells[1], grey1),
        )

    def attend(self, x0: ImageFeatures, x1: ImageFeatures) -> tuple[ImageFeatures, ImageFeatures]:
        """Let the tokens of two batches of images look at themselves and at each other."""
        tokens = self.loftr_coarse(x0.tokens, x1.tokens, x0.mask, x1.mask)
        return replace(x0, tokens=tokens[0]), replace(x1, tokens=tokens[1])

    def log_confidence(self, x0: ImageFeatures, x1: ImageFeatures) -> Tensor:
        """Log confidence (B, N, M) between cells after :meth:`attend`; what a loss needs."""
        return self.coarse_matching.log_confidence(x0, x1)

    def match(
        self, x0: ImageFeatures, x1: ImageFeatures, *, threshold: float | None = None
    ) -> Matches:
        """Match features of images, refined where both have fine maps.

        Args:
            x0: of :meth:`features`, B images.
            x1: as many.
            threshold: as in :meth:`forward`.
        """
        x0, x1 = self.attend(x0, x1)
        return self.matches(x0, x1, self.coarse_matches(x0, x1, threshold=threshold))

    def coarse_matches(
        self,
        x0: ImageFeatures,
        x1: ImageFeatures,
        *,
        threshold: float | None = None,
        border: int | None = None,
        log_confidence: Tensor | None = None,
    ) -> CellMatches:
        """Mutual nearest cells above a threshold and inside the border, after :meth:`attend`.

        Args:
            x0: attended features of image 0.
            x1: of image 1.
            threshold: as in :meth:`forward`.
            border: cells at each side that never match, ``None``: the matcher's own.
            log_confidence: (B, N, M), where it is known already.
        """
        if log_confidence is None:
            found = self.coarse_matching.nearest(x0, x1)
        else:
            found = nearest(log_confidence)
        width = self.border if border is None else border
        inner = (inner_cells(x.mask, len(x.tokens), x.grid, width) for x in (x0, x1))
        return select(found, self.threshold if threshold is None else threshold, *inner)

    def refine(self, x0: ImageFeatures, x1: ImageFeatures, cells: CellMatches) -> Refinement:
        """Where the points of image 0 lie in the windows of image 1, after :meth:`attend`.

        Raises:
            ValueError: features without fine maps.
        """
        built = self.fine_preprocess is not None and self.loftr_fine is not None
        if not built or x0.fine is None or x1.fine is None:
            raise ValueError(
                "Refinement needs fine maps: build the matcher with fine=True and make the "
                "features with fine=True"
            )
        if not len(cells):
            return no_refinement(x0.tokens)
        assert self.fine_preprocess is not None and self.loftr_fine is not None
        windows = [
            self.fine_preprocess(x.fine, x.tokens, cells.batch, cell, x.grid)
            for x, cell in ((x0, cells.cell0), (x1, cells.cell1))
        ]
        return expectation(*self.loftr_fine(*windows))

    def matches(self, x0: ImageFeatures, x1: ImageFeatures, cells: CellMatches) -> Matches:
        """Matched cells as points; refined where both features have fine maps."""
        confidence = cells.confidence
        points0 = cell_points(cells.cell0, x0.grid, confidence.dtype)
        points1 = cell_points(cells.cell1, x1.grid, confidence.dtype)
        std = None
        if x0.fine is not None and x1.fine is not None:
            found = self.refine(x0, x1, cells)
            points1 = points1 + found.offset().to(points1.dtype)
            std = found.std
        return Matches(
            points0,
            points1,
            confidence,
            cells.batch,
            len(x0.tokens),
            cell0=cells.cell0,
            cell1=cells.cell1,
            std=std,
        )

    def _wants_fine(self, fine: bool | None) -> bool:
        return self.has_fine if fine is None else fine

    def _tokens(self, maps: Maps, mask: Tensor | None, grey: Tensor) -> ImageFeatures:
        grid = grid_of(*grey.shape[-2:])
        # by permutation, not flatten and transpose: the gradient of that has, for a batch of one, a
        # batch stride which the BatchNorm of torch 2.14 misreads
        tokens = maps.coarse.permute(0, 2, 3, 1).reshape(len(grey), -1, self.dim)
        place = sinusoid(grid, self.dim, self.pe, dtype=tokens.dtype, device=tokens.device)
        return ImageFeatures(tokens + place, grid, mask, maps.fine)

    def _grey(self, image: Tensor, name: str) -> Tensor:
        if image.ndim != 4 or image.shape[1] not in (1, 3) or not image.is_floating_point():
            raise ValueError(
                f"{name} must be floating (B, 1, H, W) or (B, 3, H, W) in [0, 1], "
                f"got {image.dtype} {tuple(image.shape)}"
            )
        if image.shape[1] == 1:
            return image
        weight = image.new_tensor(_LUMA)[:, None, None]
        return (image * weight).sum(1, keepdim=True)
