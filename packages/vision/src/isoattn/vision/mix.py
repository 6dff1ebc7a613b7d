"""Mixup and CutMix on a batch of any size, with soft targets.

mixup: Zhang et al., ICLR 2018 (arXiv 1710.09412). CutMix: Yun et al., ICCV 2019 (arXiv 1905.04899).
Partners come from a random permutation, so odd batches work, and so does a batch of one: it is its
own partner and stays as it is.

Shape suffixes: B batch, C channels, H, W pixels, K classes.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor


def soft_targets(labels_B: Tensor, num_classes: int, smoothing: float = 0.0) -> Tensor:
    """One-hot targets with label smoothing: (B, K), rows sum to 1.

    Args:
        labels_B: int64 (B,).
        num_classes: K.
        smoothing: mass spread evenly over all classes, the true one included.
    """
    one_hot_BK = torch.nn.functional.one_hot(labels_B, num_classes).float()
    return one_hot_BK * (1 - smoothing) + smoothing / num_classes


def mix_batch(
    images_BCHW: Tensor,
    labels_B: Tensor,
    num_classes: int,
    *,
    generator: torch.Generator,
    mixup: float = 0.0,
    cutmix: float = 0.0,
    smoothing: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Mix a batch by mixup or CutMix; with both on, each is chosen half the time.

    Args:
        images_BCHW: float images.
        labels_B: int64 (B,).
        num_classes: K.
        generator: CPU generator; nothing else is random.
        mixup: Beta parameter of mixup, 0 for off (DeiT: 0.8).
        cutmix: Beta parameter of CutMix, 0 for off (DeiT: 1.0).
        smoothing: label smoothing of the targets.

    Returns:
        Mixed images (B, C, H, W) and targets (B, K) with rows that sum to 1. The share of the
        partner's target is its share of the image, exactly.

    Raises:
        ValueError: a negative parameter, or a smoothing outside [0, 1).
    """
    if mixup < 0 or cutmix < 0 or not 0 <= smoothing < 1:
        raise ValueError(
            "mixup and cutmix must not be negative and smoothing lies in [0, 1); got "
            f"mixup={mixup}, cutmix={cutmix}, smoothing={smoothing}"
        )
    targets_BK = soft_targets(labels_B, num_classes, smoothing)
    if mixup == 0 and cutmix == 0:
        return images_BCHW, targets_BK
    order_B = torch.randperm(len(labels_B), generator=generator).to(images_BCHW.device)
    cut = cutmix > 0 and (mixup == 0 or bool(torch.rand((), generator=generator) < 0.5))
    share = _beta(cutmix if cut else mixup, generator)
    partners_BCHW = images_BCHW[order_B]
    if cut:
        top, left, bottom, right = _box(images_BCHW.shape[-2:], 1 - share, generator)
        mixed_BCHW = images_BCHW.clone()
        mixed_BCHW[..., top:bottom, left:right] = partners_BCHW[..., top:bottom, left:right]
        # The box is whole pixels inside the picture, so the share is counted, not the one drawn.
        share = 1 - (bottom - top) * (right - left) / math.prod(images_BCHW.shape[-2:])
    else:
        mixed_BCHW = share * images_BCHW + (1 - share) * partners_BCHW
    return mixed_BCHW, share * targets_BK + (1 - share) * targets_BK[order_B]


def _beta(alpha: float, generator: torch.Generator) -> float:
    # torch's Beta has no generator argument; NumPy's own generator is seeded from ours.
    seed = int(torch.randint(2**63 - 1, (), generator=generator))
    return float(np.random.default_rng(seed).beta(alpha, alpha))


def _box(size: torch.Size, area: float, generator: torch.Generator) -> tuple[int, int, int, int]:
    """A box of about this part of the area, centre uniform, cut at the borders."""
    height, width = size
    half_h, half_w = math.sqrt(area) * height / 2, math.sqrt(area) * width / 2
    y, x = (torch.rand(2, generator=generator) * torch.tensor([height, width])).tolist()
    top, left = max(round(y - half_h), 0), max(round(x - half_w), 0)
    return top, left, min(round(y + half_h), height), min(round(x + half_w), width)
