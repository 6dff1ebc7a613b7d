"""GumbelSoftmax: what GumbelFavor estimates, computed exactly by the fused softmax kernel."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from isoattn.core.attention.key_noise import Fidelity, KeyNoise
from isoattn.core.contract import Capability
from isoattn.core.cost import Cost, Shape
from isoattn.core.ops import softmax_pairs
from isoattn.core.ops.blocks import accumulation_dtype
from isoattn.core.ops.masking import no_autocast
from isoattn.core.ops.reference import direct as reference
from isoattn.core.ops.softmax import fused_softmax_attention


class GumbelSoftmax(KeyNoise):
    """o_i = mean_t sum_j softmax_j(s q_i.k_j + g_jt / tau) v_j, s = 1 / tau.

    The exact partner of :class:`GumbelFavor` (Wu et al. 2022, "NodeFormer", eq. 4 with the noise of
    eq. 6): the same options, and from the same seed the same noise. A draw is one call of torch's
    fused kernel on q' = (s q, 1), k' = (k, g_t / tau), so no N x M numbers are held. It has no
    parameters and no projection; of a state_dict of GumbelFavor it shares ``stream``.

    Args:
        heads: number of query heads H.
        head_dim: dimension D of a query or key head; NodeFormer's heads have the full width.
        tau: temperature.
        tau_eval: temperature in evaluation mode, that of training unless given.
        draws: T, samples of noise averaged in training mode, one kernel call each; 0 is no noise.
        eval_draws: samples of noise in evaluation mode, the same ones at every call until training
            goes on; 0 is none.
        noise_every: calls in training mode after which the noise is drawn anew; 0 is never.
        fidelity: ``"paper"`` as above, or ``"released"``: s = 1 / (tau sqrt(D)). What else the
            released code does belongs to its random features.
        seed: of the noise.

    Raises:
        ValueError: a size or an option out of range; says which.
    """

    capability = Capability(cross=True, stochastic=True, double_backward=False)

    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        tau: float = 0.25,
        tau_eval: float | None = None,
        draws: int = 10,
        eval_draws: int = 0,
        noise_every: int = 1,
        fidelity: Fidelity = "paper",
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

    @property
    def scale(self) -> float:
        """The factor s of the present mode."""
        return self.logit_scale(self.temperature)

    def _prepared(self) -> Callable[..., Tensor]:
        return self._with_noise

    def _with_noise(
        self,
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
        with no_autocast(v.device.type):
            if noise is None:
                out = fused_softmax_attention(q, k, v, key_mask=key_mask, scale=self.scale)
            else:
                out = self._mean_of_draws(q, k, v, noise.detach(), key_mask)
        return out.to(dtype)

    def _mean_of_draws(
        self, q: Tensor, k: Tensor, v: Tensor, noise: Tensor, key_mask: Tensor | None
    ) -> Tensor:
        """In float32 at least: rounded to half, g / tau moves a weight by a tenth."""
        wide, repeats, value_dim = accumulation_dtype(v), self.heads // k.shape[1], v.shape[3]
        q, k, v = q.to(wide) * self.scale, k.to(wide), v.to(wide)
        if repeats > 1:
            k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
        bias = noise.to(wide) / self.temperature
        width = _width(q.shape[3], value_dim, q.device)
        q = F.pad(torch.cat([q, q.new_ones(*q.shape[:3], 1)], -1), (0, width - q.shape[3] - 1))
        v = F.pad(v, (0, width - value_dim))
        spare = width - k.shape[3] - 1
        total: Tensor | None = None
        for g in bias.unbind(-1):
            noisy = F.pad(torch.cat([k, g.unsqueeze(-1)], -1), (0, spare))
            out = fused_softmax_attention(q, noisy, v, key_mask=key_mask, scale=1.0)
            total = out if total is None else total + out
        assert total is not None  # _check_noise: at least one draw
        return total[..., :value_dim] / bias.shape[-1]

    def _edges(
        self,
        q: Tensor,
        k: Tensor,
        edge_index: Tensor,
        key_mask: Tensor | None,
        segments: Tensor | None,
    ) -> Tensor:
        return softmax_pairs.edge_log_prob(
            q, k, edge_index, scale=self.scale, key_mask=key_mask, segments_BN=segments
        )

    def _strongest(
        self, q: Tensor, k: Tensor, count: int, key_mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return softmax_pairs.strongest_keys(q, k, count, scale=self.scale, key_mask=key_mask)

    def cost(self, shape: Shape, *, causal: bool = False) -> Cost:
        """FLOPs and bytes on a CPU in the present mode: two products a draw.

        Kept are q', v' and, for each draw, k', its output and one log-sum-exp a row; without noise
        q, k, v, the output and the log-sum-exps.
        """
        rows, samples, wide = shape.batch * shape.heads, self._samples(), max(4, shape.itemsize)
        q = rows * shape.queries * shape.head_dim
        kv = rows * shape.keys * (shape.head_dim + shape.value_dim)
        o = rows * shape.queries * shape.value_dim
        if samples:
            width = _width(shape.head_dim, shape.value_dim, torch.device("cpu"))
            flops = samples * 4 * rows * shape.queries * shape.keys * width
            tokens = rows * width * (shape.queries + shape.keys)
            saved = (1 + samples) * tokens * wide + samples * rows * shape.queries * wide
            output = 0  # it is the mean of those that are kept
        else:
            flops = 2 * rows * shape.queries * shape.keys * (shape.head_dim + shape.value_dim)
            saved = (q + kv + o) * shape.itemsize + rows * shape.queries * wide
            output = o * shape.itemsize
        least = (q + kv + o) * shape.itemsize
        return Cost(flops, 2 * flops, least, saved, saved_output_bytes=output)

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
        """The definition in float64, with the noise given."""
        bias = None if noise is None else noise.double() / self.temperature
        return reference.key_noise_softmax(
            q, k, v, scale=self.scale, bias_BHMT=bias, key_mask=key_mask, causal=causal
        )


def _width(head_dim: int, value_dim: int, device: torch.device) -> int:
    """Channels of q', k' and v': fused kernels want v as wide as q, on a GPU a multiple of 8."""
    width = max(head_dim + 1, value_dim)
    return width if device.type == "cpu" else -(-width // 8) * 8
