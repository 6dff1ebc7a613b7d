"""Random directions for random features: independent Gaussian rows, or orthogonal ones.

Orthogonal rows are uniform on the orthogonal group (Haar): the signs of a QR decomposition are
mended by the diagonal of R (Mezzadri 2007, "How to generate random matrices from the classical
compact groups", section 5), which fast-transformers, performer-pytorch and NodeFormer leave out.

Shape suffixes: H heads, R rows (features), D dimension of a row, K blocks of D rows.
"""

from __future__ import annotations

import math
from typing import Literal, cast

import torch
from torch import Tensor, nn

from isoattn.core.streams import Stream, draw

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
    rows_HRD: Tensor = _haar(normal_HKDD).flatten(1, 2)[:, :features]
    if norms == "sqrt":
        return (rows_HRD * math.sqrt(dim)).float()
    other = draw(_part(key, 1), (heads, features, dim), dtype=torch.float64)
    length_HR: Tensor = torch.linalg.vector_norm(other, dim=-1)
    return (rows_HRD * length_HR.unsqueeze(-1)).float()


def _haar(normal: Tensor) -> Tensor:
    """Orthogonal matrices (..., D, D) by Haar measure from Gaussian ones."""
    q, r = torch.linalg.qr(normal)
    sign: Tensor = torch.where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0)
    out: Tensor = q * sign.unsqueeze(-2)
    return out


def _part(key: Tensor, number: int) -> Tensor:
    return torch.cat([key, key.new_full((1,), number)])


def _check(heads: int, features: int, dim: int) -> None:
    if min(heads, features, dim) < 1:
        raise ValueError(
            "random features need heads, features and dim >= 1, "
            f"got heads={heads}, features={features}, dim={dim}"
        )


class Projection(nn.Module):
    """Random rows as a buffer, drawn anew every so many calls in training mode.

    Args:
        heads: H.
        features: R.
        dim: D.
        orthogonal: orthogonal rows or independent ones.
        norms: of orthogonal rows.
        redraw_every: calls in training mode between two draws; 0 is never. Evaluation keeps the
            last rows.
        seed: of the draws.

    Raises:
        ValueError: a size out of range, or norms that rows which are not orthogonal cannot have.
    """

    rows: Tensor

    def __init__(
        self,
        heads: int,
        features: int,
        dim: int,
        *,
        orthogonal: bool = True,
        norms: Norms = "chi",
        redraw_every: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if redraw_every < 0:
            raise ValueError(f"redraw_every must be 0 (never) or more, got {redraw_every}")
        if not orthogonal and norms != "chi":
            raise ValueError(
                f"norms={norms!r} is for orthogonal rows; independent ones have norms='chi'"
            )
        self.sizes = (heads, features, dim)
        self.orthogonal = orthogonal
        self.norms: Norms = norms
        self.redraw_every = redraw_every
        self.stream = Stream(seed)
        self.register_buffer("rows", self._drawn(self.stream.key()))

    def reseed(self, seed: int) -> None:
        """Begin again with another seed."""
        self.stream.reseed(seed)
        self.rows.copy_(self._drawn(self.stream.key()))

    def forward(self) -> Tensor:
        """The rows (H, R, D) of this call; the n-th draw serves calls n * redraw_every and on.

        Where they may change they are a copy: a backward pass needs those of its own call, whatever
        is drawn in between.
        """
        if self.training and self.redraw_every:
            _redraw(
                self.rows,
                self.stream.seed,
                self.stream.count,
                *self.sizes,
                self.redraw_every,
                self.orthogonal,
                self.norms,
            )
            return self.rows.clone()
        return self.rows

    def _drawn(self, key: Tensor) -> Tensor:
        return _rows(key, *self.sizes, self.orthogonal, self.norms)


def _rows(key: Tensor, heads: int, features: int, dim: int, ortho: bool, norms: Norms) -> Tensor:
    if ortho:
        return orthogonal(key, heads, features, dim, norms)
    return gaussian(key, heads, features, dim)


@torch.library.custom_op("isoattn::redraw", mutates_args=("rows", "count"))
def _redraw(
    rows: Tensor,
    seed: Tensor,
    count: Tensor,
    heads: int,
    features: int,
    dim: int,
    every: int,
    ortho: bool,
    norms: str,
) -> None:
    """Count a call and draw where it is due; an operator, so that the compiler need not look."""
    calls = int(count)
    if calls and calls % every == 0:
        key = torch.stack([seed, count // every])
        rows.copy_(_rows(key, heads, features, dim, ortho, cast(Norms, norms)))
    count.add_(1)


@_redraw.register_fake
def _(
    rows: Tensor,
    seed: Tensor,
    count: Tensor,
    heads: int,
    features: int,
    dim: int,
    every: int,
    ortho: bool,
    norms: str,
) -> None:
    return None
