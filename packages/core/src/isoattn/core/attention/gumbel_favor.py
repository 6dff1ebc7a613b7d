"""GumbelFavor: attention over all pairs of nodes with noise per key (NodeFormer)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from isoattn.core.attention.key_noise import Fidelity, KeyNoise
from isoattn.core.cost import Cost, Shape
from isoattn.core.frequencies import Norms, Projection
from isoattn.core.ops import gumbel
from isoattn.core.ops.favor import favor_attention
from isoattn.core.ops.masking import no_autocast
from isoattn.core.ops.positive_features import Kernel
from isoattn.core.ops.reference import favor as reference


class GumbelFavor(KeyNoise):
    """o_i = mean_t sum_j w_ijt v_j / sum_j w_ijt, w_ijt = phi(q_i).phi(k_j) exp(g_jt / tau).

    phi are positive random features of x / sqrt(tau), so that phi(q).phi(k) estimates
    exp(q.k / tau) without bias, and g_jt is Gumbel noise of key j in draw t, shared by all queries
    (Wu et al. 2022, "NodeFormer", eq. 5-7). In training mode every call draws noise anew; in
    evaluation there is none unless ``eval_draws`` or ``noise=`` say so. The noise stands inside the
    exponent and the maximum over the keys is taken off, so no tau overflows. Each head has a
    projection of its own, the buffer ``projection.rows`` (heads, features, head_dim): copy numbers
    into it to set them by hand.

    Args:
        heads: number of query heads H.
        head_dim: dimension D of a query or key head; NodeFormer's heads have the full width.
        features: number R of features.
        tau: temperature.
        tau_eval: temperature in evaluation mode, that of training unless given (the released
            scripts evaluate their two large graphs at 1).
        draws: T, samples of noise averaged in training mode; 0 is no noise.
        eval_draws: samples of noise in evaluation mode, the same ones at every call until training
            goes on; 0 is none, as released.
        noise_every: calls in training mode after which the noise is drawn anew; 0 is never, which
            is what the released code comes to (it resets the generator in every forward).
        fidelity: ``"paper"``, or ``"released"`` (qitianwu/NodeFormer, nodeformer.py), which divides
            the exponent by sqrt(D) and adds 1e-6 to each exponential.
        orthogonal: whether rows are orthogonal within each D of them, or independent.
        norms: lengths of orthogonal rows, ``"chi"`` as of Gaussian ones or ``"sqrt"`` all sqrt(D).
        redraw_every: calls in training mode after which the projection is drawn anew; 0 is never.
        seed: of projection and noise.

    Raises:
        ValueError: a size or an option out of range; says which.
    """

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        features: int = 30,
        tau: float = 0.25,
        tau_eval: float | None = None,
        draws: int = 10,
        eval_draws: int = 0,
        noise_every: int = 1,
        fidelity: Fidelity = "paper",
        orthogonal: bool = True,
        norms: Norms = "chi",
        redraw_every: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(
            heads,
            head_dim,
            tau=tau,
            tau_eval=tau_eval,
            draws=draws,
            eval_draws=eval_draws,
            noise_every=noise_every,
            fidelity=fidelity,
            seed=seed,
        )
        self.features = features
        self._kernel, self._kernel_eval = (self._kernel_at(t) for t in (tau, self.tau_eval))
        if redraw_every == 1:
            self.deviations = {}
            self._declare(anew=True)
        if fidelity == "released":
            self.deviations = {
                **self.deviations,
                "long_dtypes": "where inputs are large (standard deviation 3) all features are the "
                "added 1e-6 and the gradients of q and k vanish: rounding is all that is left",
            }
        self.projection = Projection(
            heads,
            features,
            head_dim,
            orthogonal=orthogonal,
            norms=norms,
            redraw_every=redraw_every,
            seed=seed,
        )

    def extra_repr(self) -> str:
        """Sizes and options shown by ``print(module)``."""
        return f"{super().extra_repr()}, features={self.features}"

    @property
    def kernel(self) -> Kernel:
        """The features of the present mode."""
        return self._kernel if self.training else self._kernel_eval

    def _kernel_at(self, tau: float) -> Kernel:
        released = self.fidelity == "released"
        return Kernel(
            "positive",
            self.logit_scale(tau) ** 0.5,
            1e-6 if released else 0.0,
            constant_top=not released,
        )

    def reseed(self, seed: int) -> None:
        """Draw projection and noise anew, from another seed."""
        super().reseed(seed)
        self.projection.reseed(seed)

    def _prepared(self) -> Callable[..., Tensor]:
        return partial(self._with_noise, self.projection())

    def _edges(
        self,
        q: Tensor,
        k: Tensor,
        edge_index: Tensor,
        key_mask: Tensor | None,
        segments: Tensor | None,
    ) -> Tensor:
        logs = gumbel.log_features(q, k, self.projection.rows, self.kernel, key_mask)
        return gumbel.edge_log_prob(*logs, edge_index, segments)

    def _strongest(
        self, q: Tensor, k: Tensor, count: int, key_mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        logs = gumbel.log_features(q, k, self.projection.rows, self.kernel, key_mask)
        return gumbel.strongest_keys(*logs, count)

    def _with_noise(
        self,
        rows: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        noise: Tensor | None = None,
        *,
        key_mask: Tensor | None,
    ) -> Tensor:
        dtype = v.dtype
        wide = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
        q, k, v = q.to(wide), k.to(wide), v.to(wide)
        bias = None if noise is None else noise.detach() / self.temperature
        with no_autocast(v.device.type):
            out = favor_attention(q, k, v, rows, self.kernel, key_mask=key_mask, noise_BHMT=bias)
        return out.to(dtype)

    def cost(self, shape: Shape, *, causal: bool = False) -> Cost:
        """FLOPs and bytes of the eager path in the present mode, with one projection throughout.

        Dot products with the rows for q and k, and for each draw phi(k)^T v and phi(q) S. With
        several draws the dot products of k are taken twice, to find the shifts of features and
        draws first; where there are none in reach, as with very long keys at a small tau, the
        exponentials are taken draw by draw, in more time but no more FLOPs. Kept are q, k, v, the
        projection, the noise, S, z and the shifts.
        """
        rows, dim, width = shape.batch * shape.heads, shape.head_dim, shape.value_dim
        samples, size = self._samples(), max(4, shape.itemsize)
        inputs = rows * (shape.queries * dim + shape.keys * (dim + width)) * shape.itemsize
        output = rows * shape.queries * width * shape.itemsize
        table = self.projection.rows
        sums = max(1, samples) * self.features
        dots = 2 * rows * self.features * dim
        forward = (dots + 2 * rows * sums * width) * (shape.queries + shape.keys)
        backward = 2 * forward
        forward += 2 * rows * sums * shape.queries  # phi(q) z
        backward += 4 * rows * sums * shape.queries
        shifts = self.features
        if samples > 1:
            forward += (dots + 2 * rows * sums) * shape.keys
            backward += 2 * rows * sums * (shape.queries + shape.keys)
            shifts += samples
        saved = inputs + table.numel() * table.element_size()
        saved += rows * (sums * (width + 1) + shifts) * size
        saved += rows * shape.keys * samples * 4
        if self.kernel.softened:
            forward += dots * shape.keys
            saved += rows * (size + 8)
        return Cost(
            forward_flops=forward,
            backward_flops=backward,
            min_bytes=inputs + output,
            saved_bytes=saved,
        )

    def reference(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        key_mask: Tensor | None = None,
        causal: bool = False,
        noise: Tensor | None = None,
    ) -> Tensor:
        """The definition in float64 with the present projection, and with the noise given."""
        return reference.favor(
            q,
            k,
            v,
            self.projection.rows,
            kind="positive",
            scale=self.kernel.scale,
            eps=self.kernel.eps,
            key_mask=key_mask,
            causal=causal,
            noise_BHMT=None if noise is None else noise.double() / self.temperature,
            constant_top=self.kernel.constant_top,
        )
