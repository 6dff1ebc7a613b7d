"""Kernel attention with positive random features, in blocks (Choromanski et al. 2021).

With phi(x) = exp(l(x)), x a query or a key, and a noise b per key and draw t (0 and one draw where
there is none; Wu et al. 2022, "NodeFormer", eq. 5-7):

    o_i = mean_t  phi(q_i) S_t / phi(q_i) z_t,
    S_t = sum_j phi(k_j) exp(b_jt) v_j^T,  z_t = sum_j phi(k_j) exp(b_jt).

Blocks of tokens are mapped, summed and forgotten, in the backward pass again: N x R numbers never
exist at once. Exponents are kept in range by shifts that cancel, so that inputs and noise may be
of any size. There are two ways to choose them: a shift for each feature and draw
(:mod:`isoattn.core.ops.favor_joint`), which always serves, and, for several draws, one for each
feature and one for each draw (:mod:`isoattn.core.ops.favor_draws`), which takes T times fewer
exponentials and serves wherever such shifts can be found.

Shape suffixes: as in :mod:`isoattn.core.contract`; R features, T draws.
"""

from __future__ import annotations

import torch
from torch import Tensor

from isoattn.core.ops.favor_dense import favor_dense
from isoattn.core.ops.favor_draws import favor_draws, find_shifts
from isoattn.core.ops.favor_joint import favor_joint
from isoattn.core.ops.positive_features import Kernel


def favor_attention(
    q_BHND: Tensor,
    k_BGMD: Tensor,
    v_BGME: Tensor,
    projection_HPD: Tensor,
    kernel: Kernel,
    *,
    key_mask: Tensor | None = None,
    noise_BHMT: Tensor | None = None,
) -> Tensor:
    """Bidirectional attention with positive features; see the module.

    Args:
        q_BHND: queries.
        k_BGMD: keys; G divides H.
        v_BGME: values.
        projection_HPD: rows w of each query head, not differentiated.
        kernel: of the features.
        key_mask: bool (B, M), True = keep.
        noise_BHMT: b, added to the exponents of the keys; not differentiated.

    Returns:
        (B, H, N, E) in the dtype of v.
    """
    tensors = (q_BHND, k_BGMD, v_BGME, projection_HPD)
    if torch.compiler.is_compiling() or not k_BGMD.shape[2]:
        return favor_dense(*tensors, noise_BHMT, key_mask, kernel)
    if noise_BHMT is not None and noise_BHMT.shape[3] > 1:
        several = (*tensors, noise_BHMT, key_mask, kernel)
        shifts = find_shifts(*several)
        if shifts is not None:
            return favor_draws(*several, shifts)
    return favor_joint(*tensors, noise_BHMT, key_mask, kernel)
