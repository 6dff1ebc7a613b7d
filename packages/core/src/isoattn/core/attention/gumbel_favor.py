"""GumbelFavor: attention over all pairs of nodes with noise per key (NodeFormer)."""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
from torch import Tensor

from isoattn.core.contract import Attention, Capability
from isoattn.core.cost import Cost, Shape
from isoattn.core.frequencies import Norms, Projection
from isoattn.core.ops import gumbel
from isoattn.core.ops.favor import favor_attention
from isoattn.core.ops.masking import no_autocast
from isoattn.core.ops.positive_features import Kernel
from isoattn.core.ops.reference import favor as reference
from isoattn.core.ops.segments import over_segments
from isoattn.core.streams import Stream


class GumbelFavor(Attention):
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
        draws: T, samples of noise averaged in training mode; 0 is no noise.
        eval_draws: samples of noise in evaluation mode, the same ones at every call until training
            goes on; 0 is none, as released.
        fidelity: ``"paper"``, or ``"released"`` (qitianwu/NodeFormer, nodeformer.py), which divides
            the exponent by sqrt(D) and adds 1e-6 to each exponential.
        orthogonal: whether rows are orthogonal within each D of them, or independent.
        norms: lengths of orthogonal rows, ``"chi"`` as of Gaussian ones or ``"sqrt"`` all sqrt(D).
        redraw_every: calls in training mode after which the projection is drawn anew; 0 is never.
        seed: of projection and noise.

    Raises:
        ValueError: a size or an option out of range; says which.
    """

    capability = Capability(cross=True, stochastic=True)
    unsupported = {
        "causal": "nodes of a graph have no order, and the noise of a key is shared by all queries"
    }

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        features: int = 30,
        tau: float = 0.25,
        draws: int = 10,
        eval_draws: int = 0,
        fidelity: Literal["paper", "released"] = "paper",
        orthogonal: bool = True,
        norms: Norms = "chi",
        redraw_every: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(heads, head_dim)
        if fidelity not in ("paper", "released"):
            raise ValueError(f"fidelity must be 'paper' or 'released', got {fidelity!r}")
        if not tau > 0:
            raise ValueError(f"tau must be > 0, got {tau}")
        if draws < 0 or eval_draws < 0:
            raise ValueError(
                "draws and eval_draws must be 0 (no noise) or more, "
                f"got draws={draws}, eval_draws={eval_draws}"
            )
        self.features = features
        self.tau = tau
        self.draws = draws
        self.eval_draws = eval_draws
        self.fidelity: Literal["paper", "released"] = fidelity
        released = fidelity == "released"
        self.kernel = Kernel(
            "positive",
            (tau * head_dim**0.5 if released else tau) ** -0.5,
            1e-6 if released else 0.0,
            constant_top=not released,
        )
        if released:
            self.deviations = {
                "long_dtypes": "where inputs are large (standard deviation 3) all features are the "
                "added 1e-6 and the gradients of q and k vanish: rounding is all that is left"
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
        self.stream = Stream(seed)

    def extra_repr(self) -> str:
        """Sizes and options shown by ``print(module)``."""
        return (
            f"{super().extra_repr()}, features={self.features}, tau={self.tau}, "
            f"draws={self.draws}, eval_draws={self.eval_draws}, fidelity={self.fidelity!r}"
        )

    def reseed(self, seed: int) -> None:
        """Draw projection and noise anew, from another seed."""
        self.projection.reseed(seed)
        self.stream.reseed(seed)

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        key_mask: Tensor | None = None,
        causal: bool = False,
        segments: Tensor | None = None,
        noise: Tensor | None = None,
    ) -> Tensor:
        """Attend, as :meth:`Attention.forward`, with noise.

        Args:
            q: queries (B, H, N, D).
            k: keys (B, G, M, D); G divides H.
            v: values (B, G, M, E).
            key_mask: bool (B, M), True = keep.
            causal: must be False.
            segments: integer ids (B, N), as in :meth:`Attention.forward`.
            noise: g (B, H, M, T), as of :meth:`draw_noise`; drawn here unless given.

        Returns:
            (B, H, N, E) in the dtype of v.

        Raises:
            UnsupportedAttention: the form is not defined for this mechanism; says why.
            ValueError: shapes or dtypes that do not fit; names them.
        """
        self._check(q, k, v, key_mask, causal)
        if noise is None:
            noise = self.draw_noise(k.shape[0], k.shape[2])
        else:
            self._check_noise(noise, k)
        rows = self.projection()
        call = partial(self._with_noise, rows)
        if segments is None:
            return call(q, k, v, noise, key_mask=key_mask)
        tensors = {"q": q, "k": k, "v": v}
        if noise is not None:
            tensors["noise"] = noise
        return over_segments(call, segments, tensors, key_mask)

    def draw_noise(self, batch: int, keys: int) -> Tensor | None:
        """The noise g (B, H, M, T) of the next call, so that another attention can use the same.

        A logit of key j in draw t gains g_jt / tau. ``None`` where the mode has no noise. In
        training mode each call draws on; in evaluation all calls give the same.
        """
        draws = self._samples()
        if not draws:
            return None
        key = self.stream.advance() if self.training else self.stream.key()
        return gumbel.gumbel_noise(key, batch, self.heads, keys, draws)

    def edge_log_prob(
        self,
        q: Tensor,
        k: Tensor,
        edge_index: Tensor,
        *,
        key_mask: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> Tensor:
        """Log A_(end, start) of given edges without noise, for a loss on an observed graph.

        NodeFormer's is ``(log_prob / indegree[end]).mean()``, to be made large. Time and memory
        are O(edges), whatever the number of pairs.

        Args:
            q: queries (B, H, N, D).
            k: keys (B, G, M, D).
            edge_index: int64 (2, edges): start (a key) and end (a query) of each.
            key_mask: bool (B, M), True = keep.
            segments: integer ids (B, N); rows are normalised over the keys of their own segment.

        Returns:
            (B, H, edges) in float32 at least; -inf where the key is masked or in another segment.

        Raises:
            ValueError: shapes, dtypes or node numbers that do not fit; names them.
        """
        self._check(q, k, k, key_mask, causal=False)
        _check_edges(edge_index, q.shape[2], k.shape[2])
        if segments is not None and segments.shape != (q.shape[0], q.shape[2]):
            raise ValueError(
                f"segments must be (batch, tokens) = ({q.shape[0]}, {q.shape[2]}), "
                f"got {tuple(segments.shape)}"
            )
        with no_autocast(q.device.type):
            logs = gumbel.log_features(q, k, self.projection.rows, self.kernel, key_mask)
            return gumbel.edge_log_prob(*logs, edge_index, segments)

    @torch.no_grad()
    def top_k(
        self, q: Tensor, k: Tensor, count: int, *, key_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The strongest keys of each query without noise, edges of the graph or not.

        Args:
            q: queries (B, H, N, D).
            k: keys (B, G, M, D).
            count: keys for each query.
            key_mask: bool (B, M), True = keep; a masked key has weight 0 and comes last.

        Returns:
            Weights, falling, and key numbers, both (B, H, N, count). N x M numbers never exist.

        Raises:
            ValueError: a count that is not between 1 and M; shapes that do not fit.
        """
        self._check(q, k, k, key_mask, causal=False)
        if not 1 <= count <= k.shape[2]:
            raise ValueError(f"count must be from 1 to the {k.shape[2]} keys, got {count}")
        with no_autocast(q.device.type):
            logs = gumbel.log_features(q, k, self.projection.rows, self.kernel, key_mask)
            return gumbel.strongest_keys(*logs, count)

    def _samples(self) -> int:
        return self.draws if self.training else self.eval_draws

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, causal: bool
    ) -> Tensor:
        noise = self.draw_noise(k.shape[0], k.shape[2])
        return self._with_noise(self.projection(), q, k, v, noise, key_mask=key_mask)

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
        bias = None if noise is None else noise.detach() / self.tau
        with no_autocast(v.device.type):
            out = favor_attention(q, k, v, rows, self.kernel, key_mask=key_mask, noise_BHMT=bias)
        return out.to(dtype)

    def cost(self, shape: Shape, *, causal: bool = False) -> Cost:
        """FLOPs and bytes of the eager path in the present mode, with one projection throughout.

        Dot products with the rows for q and k once, and for each draw phi(k)^T v and phi(q) S.
        Kept are q, k, v, the projection, the noise, S, z and the maxima.
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
        if samples <= 1:  # phi(q) z, with more draws an elementwise product
            forward += 2 * rows * self.features * shape.queries
            backward += 4 * rows * self.features * shape.queries
        saved = inputs + table.numel() * table.element_size() + rows * sums * (width + 2) * size
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
            noise_BHMT=None if noise is None else noise.double() / self.tau,
            constant_top=self.kernel.constant_top,
        )

    def _check_noise(self, noise: Tensor, k: Tensor) -> None:
        want = (k.shape[0], self.heads, k.shape[2])
        if noise.ndim != 4 or noise.shape[:3] != want or not noise.shape[3]:
            raise ValueError(
                f"noise must be (batch, heads, keys, draws) = {want} and at least one draw, "
                f"got {tuple(noise.shape)}"
            )


def _check_edges(edge_index: Tensor, queries: int, keys: int) -> None:
    if edge_index.ndim != 2 or edge_index.shape[0] != 2 or edge_index.dtype != torch.int64:
        raise ValueError(
            "edge_index must be int64 (2, edges): start and end of each; "
            f"got {edge_index.dtype} {tuple(edge_index.shape)}"
        )
    for name, nodes, count in zip(("start", "end"), edge_index, (keys, queries), strict=True):
        if nodes.numel() and not 0 <= int(nodes.min()) <= int(nodes.max()) < count:
            raise ValueError(
                f"edge_index: the {name} of an edge must be from 0 to {count - 1}, "
                f"got {int(nodes.min())} to {int(nodes.max())}"
            )
