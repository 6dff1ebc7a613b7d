"""Nystrom: softmax attention through landmarks."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import torch
from torch import Tensor, nn

from isoattn.core.contract import Attention, Capability
from isoattn.core.cost import Cost, Shape
from isoattn.core.ops import landmark
from isoattn.core.ops.blocks import accumulation_dtype
from isoattn.core.ops.landmark import Compat
from isoattn.core.ops.masking import no_autocast, zero_masked
from isoattn.core.ops.reference import landmark as reference
from isoattn.core.ops.softmax import fused_softmax_attention
from isoattn.core.streams import draw


class Nystrom(Attention):
    """o = softmax(s q k~^T) Z softmax(s q~ k^T) v (Xiong et al. 2021, "Nystromformer", eq. 13).

    s = D^-1/2; q~, k~ are the means of m contiguous segments of the visible tokens, token of rank r
    in segment floor(r m / visible); Z approximates the inverse of A = softmax(s q~ k~^T) by
    iterations from A^T / (||A||_1 ||A||_inf), taken for each matrix alone. A sample with at most m
    visible queries or keys gets softmax attention itself. In all cases nothing larger than
    tokens x m is held, and rows of the matrix neither sum to 1 nor are free of negative weights.

    q~ are means over the queries, so an output depends on the other queries too. With as many keys
    as queries ``key_mask`` says which queries are tokens; in cross-attention all of them are.

    Args:
        heads: number of query heads H.
        head_dim: dimension D of a query or key head.
        landmarks: m.
        iterations: of the inverse. After 6, the published number, it may be far from converged,
            which :meth:`inverse_residual` measures, and more is not always closer to softmax.
            ``None`` takes the pseudo-inverse by singular values, in float64.
        compat: ``"none"`` is the above.

            ``"nystrom-attention"`` is that package, version 0.0.14, and so TransMIL: zero tokens
            are put in front up to a multiple of m, and without a mask they are seen; with one,
            masked means get 1e-8 in the denominator and hidden rows are uniform; ||A||_1 is one
            maximum over all heads and samples.

            ``"authors"`` is attention_nystrom.py of mlpen/Nystromformer: masked tokens stay in the
            means as zeros, only the third softmax hides keys, ||A||_1 as before. Where m does not
            divide the tokens, which that code refuses, segments are cut at floor(i m / N).
        residual_kernel: odd number of taps of a depthwise convolution over the tokens of v, a
            learned kernel for each head, which is added to the output: parameter
            ``residual_weight`` (H, 1, taps, 1), as nystrom-attention names its shape and draws it
            (33 taps there). None is without.

    Raises:
        ValueError: a size or option out of range; says which.
    """

    capability = Capability(
        cross=True,
        positions="rank",
        normalised=False,
        double_backward=False,
        independent_queries=False,
    )
    unsupported = {"causal": "landmarks pool the future"}

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        landmarks: int = 64,
        iterations: int | None = 6,
        compat: Compat = "none",
        residual_kernel: int | None = None,
    ) -> None:
        super().__init__(heads, head_dim)
        if landmarks < 1:
            raise ValueError(f"landmarks must be at least 1, got {landmarks}")
        if iterations is not None and iterations < 0:
            raise ValueError(
                f"iterations must be at least 0, or None for the pseudo-inverse; got {iterations}"
            )
        if compat not in get_args(Compat):
            raise ValueError(f"compat must be one of {', '.join(get_args(Compat))}; got {compat!r}")
        if residual_kernel is not None and (residual_kernel < 1 or residual_kernel % 2 == 0):
            raise ValueError(
                "residual_kernel must be an odd number of taps, or None for no convolution; "
                f"got {residual_kernel}"
            )
        self.landmarks = landmarks
        self.iterations = iterations
        self.compat: Compat = compat
        if compat != "none":
            self._follow(compat)
        self.residual_weight: nn.Parameter | None = None
        if residual_kernel is not None:
            self._local("the convolution of v needs one value for every query")
            self.residual_weight = nn.Parameter(torch.empty(heads, 1, residual_kernel, 1))
            self.reseed(0)

    def _local(self, reason: str) -> None:
        self.capability = replace(self.capability, cross=False, positions="distance")
        self.unsupported = {**self.unsupported, "cross": reason}

    def _follow(self, compat: Compat) -> None:
        whole = "the inverse starts from one maximum over all heads and samples"
        masked = {
            "nystrom-attention": "zero tokens in front are seen where there is no mask",
            "authors": "masked tokens stay in the landmarks as zeros",
        }
        self._local("the released code takes one sequence")
        broken = {"key_mask": masked[compat]}
        if compat == "nystrom-attention":
            broken["packed"] = masked[compat]
        if self.iterations is not None:
            broken["batch_leak"] = whole
        self.deviations = broken

    def extra_repr(self) -> str:
        """Sizes and options shown by ``print(module)``."""
        taps = None if self.residual_weight is None else self.residual_weight.shape[2]
        return (
            f"{super().extra_repr()}, landmarks={self.landmarks}, iterations={self.iterations}, "
            f"compat={self.compat!r}, residual_kernel={taps}"
        )

    def reseed(self, seed: int) -> None:
        """Draw the kernels of the convolution anew: uniform within taps^-1/2 of 0."""
        if self.residual_weight is not None:
            weight = self.residual_weight
            bound = weight.shape[2] ** -0.5
            with torch.no_grad():
                key = torch.tensor([seed, 0])
                weight.copy_(bound * (2.0 * draw(key, weight.shape, kind="uniform") - 1.0))

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        key_mask: Tensor | None = None,
        causal: bool = False,
        segments: Tensor | None = None,
        query_mask: Tensor | None = None,
    ) -> Tensor:
        """Attend, as :meth:`Attention.forward`.

        Args:
            q: queries (B, H, N, D).
            k: keys (B, G, M, D); G divides H.
            v: values (B, G, M, E).
            key_mask: bool (B, M), True = keep.
            causal: must be False.
            segments: integer ids (B, N), as in :meth:`Attention.forward`.
            query_mask: bool (B, N), which queries are tokens, for cross-attention; the others do
                not enter the landmarks. ``None`` takes ``key_mask`` where there are as many keys
                as queries, and all of them elsewhere.

        Returns:
            (B, H, N, E) in the dtype of v.

        Raises:
            UnsupportedAttention: the form is not defined; says why.
            ValueError: shapes or dtypes that do not fit, or a ``query_mask`` beside ``segments`` or
                ``compat``, which know one mask.
        """
        if query_mask is None:
            return super().forward(q, k, v, key_mask=key_mask, causal=causal, segments=segments)
        self._check(q, k, v, key_mask, causal)
        self._check_queries(q, query_mask, segments)
        dtype = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
        with no_autocast(v.device.type):
            out = self._mix(q.to(dtype), k.to(dtype), v.to(dtype), key_mask, query_mask)
        return out.to(v.dtype)

    def _check_queries(self, q: Tensor, query_mask: Tensor, segments: Tensor | None) -> None:
        if segments is not None or not self.capability.cross:
            beside = f"compat={self.compat!r} or a convolution" if segments is None else "segments"
            raise ValueError(
                f"query_mask has no meaning with {beside}: queries and keys are the same tokens "
                "there. Use key_mask alone."
            )
        want = (q.shape[0], q.shape[2])
        if query_mask.dtype != torch.bool or tuple(query_mask.shape) != want:
            raise ValueError(
                f"query_mask must be bool (batch, queries) = {want}, True = keep; "
                f"got {query_mask.dtype} {tuple(query_mask.shape)}"
            )

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, causal: bool
    ) -> Tensor:
        return self._mix(q, k, v, key_mask, None)

    def _mix(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, query_mask: Tensor | None
    ) -> Tensor:
        exact = self._exact(q, k)
        if exact and self.residual_weight is None:
            return fused_softmax_attention(q, k, v, key_mask=key_mask)
        values = zero_masked(v, key_mask).to(accumulation_dtype(v))
        if exact:
            out = fused_softmax_attention(q, k, v, key_mask=key_mask)
        else:
            out = landmark.mix(self._plan(q, k, key_mask, query_mask), values)
        if self.residual_weight is None:
            return out
        return out + landmark.token_convolution(values, self.residual_weight)

    def _exact(self, q: Tensor, k: Tensor) -> bool:
        return landmark.exact(q.shape[2], k.shape[2], self.landmarks, self.compat)

    def _plan(
        self, q: Tensor, k: Tensor, key_mask: Tensor | None, query_mask: Tensor | None
    ) -> landmark.Plan:
        return landmark.plan(
            q,
            k,
            landmarks=self.landmarks,
            iterations=self.iterations,
            key_mask=key_mask,
            query_mask=query_mask,
            compat=self.compat,
        )

    def cls_row(
        self,
        q_cls: Tensor,
        q: Tensor,
        k: Tensor,
        *,
        key_mask: Tensor | None = None,
        query_mask: Tensor | None = None,
        front: bool = False,
    ) -> Tensor:
        """Weights of some queries, such as the class token, on every key: rows of the matrix.

        In O(n m) operations, and under ``torch.no_grad`` in O(n) memory. Weights are signed and do
        not sum to 1; times v they are the output without the convolution.

        Args:
            q_cls: the queries wanted (B, H, R, D), of visible tokens: ``q[:, :, :1]`` for the
                first token.
            q: all queries (B, H, N, D), which form the landmarks; q_cls is among them.
            k: keys (B, G, M, D).
            key_mask: bool (B, M), as given to :meth:`forward`.
            query_mask: bool (B, N), as given to :meth:`forward`.
            front: with ``compat="nystrom-attention"`` keep the weights of the zero tokens that were
                put in front, so that the mass they take can be seen.

        Returns:
            (B, H, R, M), with ``front`` (B, H, R, zeros + M), in the dtype of q, float32 at least.

        Raises:
            ValueError: shapes or dtypes that do not fit; names them.
        """
        self._check(q, k, k, key_mask, False)
        self._check(q_cls, q_cls, q_cls, None, False)
        if len(q_cls) != len(q):
            self._misfit(q_cls, q, q, f"reads rows of {len(q)} samples for {len(q_cls)} q_cls")
        if query_mask is not None:
            self._check_queries(q, query_mask, None)
        with no_autocast(q.device.type):
            if self._exact(q, k):
                return landmark.softmax_rows(q_cls, k, key_mask)
            plan = self._plan(q, k, key_mask, query_mask)
            rows = landmark.weight_rows(plan, q_cls, key_mask)
        return rows if front else rows[..., plan.front :]

    def inverse_residual(
        self,
        q: Tensor,
        k: Tensor,
        *,
        key_mask: Tensor | None = None,
        query_mask: Tensor | None = None,
    ) -> Tensor:
        """How far the iterations are from an inverse: max |A Z A - A| of every head, (B, H).

        0 where softmax is taken itself. A small residual is no promise of a small error against
        softmax: Z may be large.
        """
        self._check(q, k, k, key_mask, False)
        with no_autocast(q.device.type):
            if self._exact(q, k):
                return q.new_zeros(q.shape[:2], dtype=accumulation_dtype(q))
            plan = self._plan(q, k, key_mask, query_mask)
            a = plan.a_BHLL
            return (a @ plan.inverse_BHLL @ a - a).abs().amax((-2, -1))

    def cost(self, shape: Shape, *, causal: bool = False) -> Cost:
        """FLOPs and bytes of the eager path, values as wide as keys.

        Softmax attention where the sizes are small; else four products of tokens x m, A, four
        products of m x m an iteration, and Z times its values. Kept are q, k, v, o (in float32 at
        least, with the zeros in front), the landmarks, and five m x m an iteration.
        """
        rows, dim, width = shape.batch * shape.heads, shape.head_dim, shape.value_dim
        n, m, marks = shape.queries, shape.keys, self.landmarks
        least = rows * (n * dim + m * (dim + width) + n * width) * shape.itemsize
        wide = max(4, shape.itemsize)
        exact = landmark.exact(n, m, marks, self.compat)
        square, saved = rows * marks**2, 0
        if exact:
            forward = 2 * rows * n * m * (dim + width)
            saved = least + rows * n * wide
            if self.residual_weight is not None and shape.itemsize < 4:  # values in float32
                saved += rows * m * width * wide
        else:
            if self.compat == "nystrom-attention":
                if self.residual_weight is not None and n % marks:
                    saved += rows * m * width * wide  # besides the padded values
                n, m = n + -n % marks, m + -m % marks
            forward = 2 * rows * marks * (n + m) * (dim + width) + 2 * square * (dim + width)
            numbers = rows * (n * (dim + width + 1) + m * (dim + width))
            numbers += rows * marks * (3 * dim + 2 * width + 1) + square
            saved += sum(8 * x + marks * wide for x in (n, m) if x % marks)
            if self.iterations is not None:
                forward += 8 * square * marks * self.iterations
                numbers += square * (5 * self.iterations + 1) + rows * (marks + 1)
                numbers += self.compat != "none"
            saved += numbers * wide
        backward = 2 * forward
        if self.iterations is None and not exact:
            backward += 16 * square * marks
            saved += square * (16 + wide) + 1
        if self.residual_weight is not None:
            taps = 2 * rows * shape.queries * width * self.residual_weight.shape[2]
            forward, backward = forward + taps, backward + 2 * taps
        # The last fused call keeps its output; in the padded forms a part of it is the output.
        own = (exact or self.compat == "none") and self.residual_weight is None
        kept = rows * n * width * shape.itemsize if own else 0
        return Cost(forward, backward, least, saved, saved_output_bytes=kept)

    def reference(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        key_mask: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        """The definition in float64; the released forms written out as they are."""
        forms = {
            "none": reference.nystrom,
            "nystrom-attention": reference.released,
            "authors": reference.authors,
        }
        out = forms[self.compat](
            q,
            k,
            v,
            landmarks=self.landmarks,
            iterations=self.iterations,
            key_mask=key_mask,
        )
        if self.residual_weight is not None:
            out = out + reference.token_convolution(v, self.residual_weight, key_mask)
        return out
