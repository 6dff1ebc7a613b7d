"""Scores of the tiles of a bag under a trained network: where it looks, or what speaks for a class.

Shape suffixes: n tiles, I features, C classes.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from isoattn.wsi.models import BagNetwork, MaxPooling

Evidence = Literal["attention", "gradient"]
"""attention: weights of the tiles; gradient: what speaks for a class."""

NAMES = {"attention": "attention, 1 = even", "gradient": "evidence for the class, 1 = mean size"}


def tile_evidence(
    network: BagNetwork,
    features_nI: Tensor,
    cells_n2: Tensor | None = None,
    *,
    kind: Evidence = "attention",
    target: int = -1,
) -> tuple[Tensor, str]:
    """One number a tile, (n,) in its order, and what it is.

    ``attention`` is the network's own ``tile_weights`` times n, so that bags of all sizes are on
    one scale and 1 is what each tile has where nothing is preferred; of max pooling it is the
    probability that a tile has by itself. It says where the network looks, not for which class.

    ``gradient`` is the gradient of the log-odds of a class with respect to a tile's features, times
    the deviation of these from the mean tile of the bag, summed over features: to first order what
    replacing the tile by a mean one would take from the class. Signed; over the mean of its size.

    Args:
        network: its mode is left as it is.
        features_nI: one bag.
        cells_n2: its cells.
        kind: which.
        target: number of the class, for ``gradient``.

    Raises:
        ValueError: another kind.
        UnsupportedAttention: the network has no weights of tiles.
    """
    if kind not in get_args(Evidence):
        raise ValueError(f"kind must be one of {', '.join(get_args(Evidence))}, got {kind!r}")
    if kind == "attention":
        weights = network.tile_weights(features_nI, cells_n2)
        if isinstance(network, MaxPooling):
            return weights, "probability of the tile"
        return weights * len(features_nI), NAMES[kind]
    found = _gradient(network, features_nI, cells_n2, target)
    return found / found.abs().mean().clamp(min=torch.finfo(found.dtype).tiny), NAMES[kind]


def _gradient(
    network: BagNetwork, features_nI: Tensor, cells_n2: Tensor | None, target: int
) -> Tensor:
    training = network.training
    network.eval()
    try:
        with torch.inference_mode(False), torch.enable_grad():
            x = features_nI.detach().clone().requires_grad_()
            cells = None if cells_n2 is None else cells_n2.clone()[None]
            logits_C = network(x[None], cells)[0]
            others = [c for c in range(len(logits_C)) if c != target % len(logits_C)]
            odds = logits_C[target] - logits_C[others].logsumexp(0)
            (slope,) = torch.autograd.grad(odds, x)
    finally:
        network.train(training)
    return (slope * (features_nI - features_nI.mean(0))).sum(1)
