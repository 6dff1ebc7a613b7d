"""Random directions for random features: independent Gaussian rows, or orthogonal ones.

Orthogonal rows are uniform on the orthogonal group (Haar): the signs of a QR decomposition are
mended by the diagonal of R (Mezzadri 2007, "How to generate random matrices from the classical
compact groups", section 5), which fast-transformers, performer-pytorch and NodeFormer leave out.

Shape suffixes: H heads, R rows (features), D dimension of a row, K blocks of D rows.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from isoattn.core.streams import draw

Norms = Literal["chi", "sqrt"]


def gaussian(key: Tensor, heads: int, features: int, dim: int) -> Tensor:
    """Independent standard normal rows (H, R, D), drawn per head, float32.

    Args:
        key: of the draw, from :class:`isoattn.core.streams.Stream`.
        heads: H.
        features: R.
        dim: D.

    Raises:
        ValueError: a size below 1.
    """
    _check(heads, features, dim)
    return draw(key, (heads, features, dim))


def orthogonal(key: Tensor, heads: int, features: int, dim: int, norms: Norms = "chi") -> Tensor:
    """Rows (H, R, D) that are orthogonal within each run of D, drawn per head, float32.

    Each row alone is uniform on the sphere, with ``norms="chi"`` standard normal.

    Args:
        key: of the draw, from :class:`isoattn.core.streams.Stream`.
        heads: H.
        features: R, any number: the last block is cut.
        dim: D.
        norms: lengths of the rows. ``"chi"`` are those of independent Gaussian rows (Choromanski
            et al. 2021), ``"sqrt"`` all sqrt(D).

    Raises:
        ValueError: a size below 1, or unknown norms.
    """
    _check(heads, features, dim)
    if norms not in ("chi", "sqrt"):
        raise ValueError(f"norms must be 'chi' or 'sqrt', got {norms!r}")
    blocks = -(-features // dim)
    normal_HKDD = draw(_part(key, 0), (heads, blocks, dim, dim), dtype=torch.float64)
    rows_HRD = _haar(normal_HKDD).flatten(1, 2)[:, :features]
    if norms == "sqrt":
        return (rows_HRD * dim**0.5).float()
    length_HR = draw(_part(key, 1), (heads, features, dim), dtype=torch.float64).norm(dim=-1)
    return (rows_HRD * length_HR.unsqueeze(-1)).float()


def _haar(normal: Tensor) -> Tensor:
    """Orthogonal matrices (..., D, D) by Haar measure from Gaussian ones."""
    q, r = torch.linalg.qr(normal)
    return q * torch.where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).unsqueeze(-2)


def _part(key: Tensor, number: int) -> Tensor:
    return torch.cat([key, key.new_full((1,), number)])


def _check(heads: int, features: int, dim: int) -> None:
    if min(heads, features, dim) < 1:
        raise ValueError(
            "random features need heads, features and dim >= 1, "
            f"got heads={heads}, features={features}, dim={dim}"
        )
