"""Random feature attention."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from isoattn.core.contract import Attention, Capability, State
from isoattn.core.cost import Cost, Shape
from isoattn.core.frequencies import gaussian
from isoattn.core.ops import kernel_chunks, kernelised
from isoattn.core.ops.random_fourier import BOUNDS, Clamp, Lengths, RandomFourierKernel
from isoattn.core.ops.reference import random_fourier as reference
from isoattn.core.streams import Stream

EPS = 1e-2
"""Bound of the relative clamp: float32 keeps five digits of a row that is just inside it."""


class RandomFourier(Attention):
    """o_i = phi(q_i) S / phi(q_i) z, S = sum w_j phi(k_j) v_j^T, z = sum w_j phi(k_j) (RFA).

    phi(x) = [sin, cos](sigma w.x) of q and k brought to length 1 estimates the Gaussian kernel
    exp(-|sigma (q - k)|^2 / 2), for unit vectors softmax attention at temperature sigma^-2 (Peng et
    al. 2021, "Random Feature Attention", eq. 2-5). The weights are signed: the sum below the line
    may vanish, so it is kept away from 0, and where that acts a row does not sum to 1
    (``capability.normalised`` is False; with ``kernel="arccos"`` no weight is negative, nothing is
    clamped, and it is True). Each query head has directions of its own, so a key head that several
    query heads share costs as much as several.

    The directions are the buffer ``projection`` (heads, features, head_dim), matrix number 0 of the
    pool: copy numbers into it to set them by hand. In training mode call t takes matrix t modulo
    ``pool``; evaluation, :meth:`extend` and :meth:`step` always take the buffer, since all calls on
    one sequence need the same one. No other matrix is stored: each is drawn from the seed and its
    number. A rate that decays, the gate of eq. 7, is not part of this class.

    Args:
        heads: number of query heads H.
        head_dim: dimension D of a query or key head.
        features: number of random directions; phi has twice as many entries with sine and cosine.
            The paper needs 64 for causal and 128 for cross attention.
        kernel: ``"gaussian"`` as above; ``"arccos"`` has phi(x) = relu(sigma w.x). A query that no
            direction is near gives 0.
        lengths: ``"unit"`` brings q and k to length 1; ``"keep"`` takes them as they are, for the
            same kernel of their difference; ``"weigh"`` gives keys the weight exp(|sigma k|^2 / 2)
            besides, so that the estimate is of exp(sigma q . sigma k), without D^-1/2 (appendix
            A.4). Its noise grows with the lengths: from about 2 on it is larger than the estimate.
        norm_eps: x / (|x| + norm_eps) with ``"unit"``. 0 is the definition, released is 1e-3.
        sigma_init: initial sigma of every channel; parameter ``sigma`` (H, 1, D). A temperature tau
            of the released code is sigma_init = 1 / tau.
        learn_sigma: False freezes sigma (``requires_grad=False``).
        clamp: ``"relative"`` keeps the sign of the denominator and its size at least
            eps |phi(q)| |z|. The released code (Noahs-ARK/RFA) has phi = 0.1 [sin, cos] and divides
            by max(den, 1) in its recurrent and CUDA forms (``"released"``), by max(|den|, 1e-3) in
            its masked causal form (``"released_masked"``), by max(|den|, 1) across
            (``"released_cross"``), which do not agree with each other.
        eps: of the relative clamp, 0.01 unless given; 0 keeps all but an exact 0.
        pool: number of matrices that training goes through.
        redraw: False trains with the matrix of evaluation.
        seed: of the draws.
        chunk: tokens of the causal form that see each other by a matrix.

    Raises:
        ValueError: a size below 1, an unknown or a negative option, or options that exclude each
            other; says which.
    """

    capability = Capability(
        causal=True, cross=True, state="constant", stochastic=True, normalised=False
    )
    no_weight_decay: ClassVar[frozenset[str]] = frozenset({"sigma"})
    projection: Tensor

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        features: int = 64,
        kernel: Literal["gaussian", "arccos"] = "gaussian",
        lengths: Lengths = "unit",
        norm_eps: float = 0.0,
        sigma_init: float = 1.0,
        learn_sigma: bool = True,
        clamp: Clamp = "relative",
        eps: float | None = None,
        pool: int = 500,
        redraw: bool = True,
        seed: int = 0,
        chunk: int = 64,
    ) -> None:
        super().__init__(heads, head_dim)
        _check(features, kernel, pool, norm_eps, eps)
        _check_together(kernel, lengths, norm_eps, clamp, eps)
        self.chunk = kernel_chunks.whole_chunk(chunk)
        self.features, self.pool, self.redraw = features, pool, redraw
        self.kernel = RandomFourierKernel(
            features,
            kernel == "gaussian",
            lengths,
            norm_eps,
            clamp,
            EPS if eps is None else eps,
        )
        initial = torch.full((heads, 1, head_dim), float(sigma_init))
        self.sigma = nn.Parameter(initial, requires_grad=learn_sigma)
        self.stream = Stream(seed)
        self.register_buffer("projection", self._matrix(torch.zeros_like(self.stream.count)))
        self.capability = replace(
            self.capability, stochastic=redraw and pool > 1, normalised=kernel == "arccos"
        )

    def extra_repr(self) -> str:
        """Sizes and options shown by ``print(module)``."""
        options = self.kernel
        kind = "gaussian" if options.gaussian else "arccos"
        return (
            f"{super().extra_repr()}, features={self.features}, kernel={kind!r}, "
            f"lengths={options.lengths!r}, norm_eps={options.norm_eps}, "
            f"clamp={options.clamp!r}, eps={options.eps}, pool={self.pool}, "
            f"redraw={self.redraw}, chunk={self.chunk}"
        )

    def reseed(self, seed: int) -> None:
        """Give the draws another seed and begin again."""
        self.stream.reseed(seed)
        self.projection.copy_(self._matrix(torch.zeros_like(self.stream.count)))

    def _matrix(self, number: Tensor) -> Tensor:
        """Matrix of the pool (H, R, D), a function of seed and number."""
        key = torch.stack([self.stream.seed, number])
        return gaussian(key, self.heads, self.features, self.head_dim)

    def _directions(self) -> Tensor:
        if not (self.training and self.redraw):
            return self.projection
        number = self.stream.advance()[1] % self.pool
        return self._matrix(number).to(self.projection.dtype)

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, causal: bool
    ) -> Tensor:
        return kernelised.kernel_attention(
            self.kernel,
            q,
            k,
            v,
            key_mask=key_mask,
            causal=causal,
            chunk=self.chunk,
            parameters=(self.sigma, self._directions()),
        )

    def _extend(
        self, q: Tensor, k: Tensor, v: Tensor, state: State | None, key_mask: Tensor | None
    ) -> tuple[Tensor, State]:
        return kernelised.kernel_extension(
            self.kernel,
            q,
            k,
            v,
            state,
            key_mask=key_mask,
            chunk=self.chunk,
            parameters=(self.sigma, self.projection),
        )

    def cost(self, shape: Shape, *, causal: bool = False) -> Cost:
        """FLOPs and bytes of the eager path.

        Both forms map q and k and multiply phi(k)^T v, phi(q) S and phi(q) z; the causal form has
        the products inside each chunk besides, over whole chunks. Kept are q, k, v, the directions
        and S and z (and m): once, or where causal before each block of about 1,024 tokens but the
        first. The backward pass computes all of the forward pass again.
        """
        rows, dim, width = shape.batch * shape.heads, shape.head_dim, shape.value_dim
        wide, features = max(4, shape.itemsize), self.kernel.width(dim)
        weighted, keys = self.kernel.weighted, shape.keys
        inputs = rows * (shape.queries * dim + shape.keys * (dim + width))
        output = rows * shape.queries * width
        state = rows * (features * (width + 1) + weighted) * wide
        passed = 0
        if causal:
            keys = min(keys, shape.queries)
            chunk = min(self.chunk, shape.queries)
            products = rows * self._chunk_products(shape.queries, chunk, features, width)
            if weighted:
                pairs = _chunk_pairs(shape.queries, chunk)
                passed = 2 * rows * pairs * features * (width + 1)
            blocks = -(-shape.queries // kernel_chunks.block_tokens(chunk))
            kept = (blocks - 1) * state
        else:
            products = 2 * rows * features * (keys * width + shape.queries * (width + 1))
            kept = state
        mapped = 2 * rows * (shape.queries + keys) * dim * self.features
        matrix = self.projection.numel() * self.projection.element_size()
        return Cost(
            forward_flops=mapped + products + passed,
            backward_flops=2 * (mapped + passed) + 3 * products,
            min_bytes=(inputs + output) * shape.itemsize,
            saved_bytes=inputs * shape.itemsize + kept + matrix,
            state_bytes=state,
        )

    def _chunk_products(self, queries: int, chunk: int, features: int, width: int) -> int:
        """FLOPs of one head after the map, over whole chunks."""
        tokens = -(-queries // chunk) * chunk
        within = features + width
        if self.kernel.bounded and self.kernel.weighted:  # z of every row
            within += features
        return 2 * tokens * (2 * features * width + features + chunk * within)

    def reference(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        key_mask: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        """The definition in float64, with the directions of evaluation."""
        options = self.kernel
        return reference.random_fourier(
            q,
            k,
            v,
            self.sigma,
            self.projection,
            key_mask=key_mask,
            causal=causal,
            kernel="gaussian" if options.gaussian else "arccos",
            lengths=options.lengths,
            norm_eps=options.norm_eps,
            clamp=options.clamp,
            eps=options.eps,
        )


def _chunk_pairs(queries: int, chunk: int) -> int:
    """Pairs of chunks between which the weighted form rescales S and z, block by block."""
    chunks, whole = -(-queries // chunk), kernel_chunks.block_tokens(chunk) // chunk
    blocks = [min(whole, chunks - start) for start in range(0, chunks, whole)]
    return sum((n + 1) ** 2 for n in blocks)


def _check(features: int, kernel: str, pool: int, norm_eps: float, eps: float | None) -> None:
    if features < 1 or pool < 1:
        raise ValueError(
            f"RandomFourier needs features >= 1 and pool >= 1, got features={features}, pool={pool}"
        )
    if kernel not in ("gaussian", "arccos"):
        raise ValueError(f"kernel must be 'gaussian' or 'arccos', got {kernel!r}")
    if norm_eps < 0 or (eps is not None and not 0 <= eps < 1):
        raise ValueError(
            f"norm_eps must not be negative and eps must be in [0, 1); "
            f"got norm_eps={norm_eps}, eps={eps}"
        )


def _check_together(
    kernel: str, lengths: str, norm_eps: float, clamp: str, eps: float | None
) -> None:
    clamps, all_lengths = ("relative", *BOUNDS), ("unit", "keep", "weigh")
    if clamp not in clamps:
        raise ValueError(f"clamp must be one of {', '.join(clamps)}, got {clamp!r}")
    if lengths not in all_lengths:
        raise ValueError(f"lengths must be one of {', '.join(all_lengths)}, got {lengths!r}")
    if norm_eps and lengths != "unit":
        raise ValueError(f"norm_eps={norm_eps} is of lengths='unit', got lengths={lengths!r}")
    if kernel == "arccos" and (clamp != "relative" or eps is not None or lengths == "weigh"):
        raise ValueError(
            "kernel='arccos' sums numbers that are not negative and grow with the length of a key: "
            "it has no clamp, no eps and no lengths='weigh'; "
            f"got clamp={clamp!r}, eps={eps}, lengths={lengths!r}"
        )
    if clamp != "relative" and eps is not None:
        raise ValueError(
            f"eps={eps} is of clamp='relative', got clamp={clamp!r} with its own bound"
        )
    if clamp != "relative" and lengths == "weigh":
        raise ValueError(
            f"clamp={clamp!r} bounds a denominator that with lengths='weigh' is only known up to a "
            "factor. Use clamp='relative'"
        )
