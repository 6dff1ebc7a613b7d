"""Multi-scale retention, the token mixer of RetNet (Sun et al. 2023, section 2.2).

Shape suffixes: B batch, N tokens, C channels, H heads, D and E dimensions of keys and values.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isoattn.core.attention.decay import head_decays
from isoattn.core.contract import State
from isoattn.core.cost import Cost
from isoattn.core.mixers.costs import check_call, projection_flops, rotary_numbers, whole
from isoattn.core.mixers.recurrent import RecurrentMixer
from isoattn.core.ops.blocks import accumulation_dtype
from isoattn.core.ops.decay import CHUNK, decay_attention, decay_flops
from isoattn.core.ops.masking import no_autocast
from isoattn.core.ops.rotary import rotate


class MultiScaleRetention(RecurrentMixer):
    """y = W_o (silu(W_g x) * norm(retention(W_q x, W_k x, W_v x))).

    The norm is of each head, without weight. q and k are rotated by position *
    10000^-linspace(0, 1, D / 2), without growth; head h decays by 1 - 2^(-5-h). Parameters
    have the names and shapes of torchscale (``component/multiscale_retention.py``), so its weights
    load as they are.

    The norm is sum / sqrt(c_n), then x / sqrt(mean(x^2) + eps), c_n = sum of the decays of the n
    tokens so far: the normaliser of torchscale's recurrent form. All three of our forms have it and
    agree exactly. Torchscale's parallel and chunkwise forms divide by other row sums besides, which
    cancel in the norm but for its eps; they differ from ours (and from each other) where the output
    of a head is small against sqrt(eps).

    Args:
        dim: channels of x and y, D heads of them.
        heads: H; D must be even.
        value_dim: channels of all values, E heads of them; dim unless given. RetNet has 2 dim.
        eps: of the norm.
        chunk: tokens computed together; ``None`` is all at once. It changes speed and memory, not
            the result.

    Raises:
        ValueError: sizes that do not divide, or an eps that is not positive; says which.

    Example:
        >>> mixer = MultiScaleRetention(64, 4)
        >>> y = mixer(torch.randn(2, 50, 64), causal=True)
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        value_dim: int | None = None,
        eps: float = 1e-6,
        chunk: int | None = CHUNK,
    ) -> None:
        super().__init__(dim)
        values = dim if value_dim is None else value_dim
        if heads < 1 or dim % (2 * heads) or values < 1 or values % heads:
            raise ValueError(
                "MultiScaleRetention needs a dim that 2 * heads divides (rotated channels come in "
                f"pairs) and a value_dim that heads divides; got dim={dim}, heads={heads}, "
                f"value_dim={values}"
            )
        if eps <= 0:
            raise ValueError(f"eps must be positive, got {eps}: a head may give 0")
        if chunk is not None and chunk < 1:
            raise ValueError(f"chunk must be at least 1 or None (all tokens at once), got {chunk}")
        self.heads, self.eps, self.chunk = heads, eps, chunk
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, dim, bias=False)
        self.v_proj = nn.Linear(dim, values, bias=False)
        self.g_proj = nn.Linear(dim, values, bias=False)
        self.out_proj = nn.Linear(values, dim, bias=False)
        for layer in (self.q_proj, self.k_proj, self.v_proj, self.g_proj):
            nn.init.xavier_uniform_(layer.weight, gain=2**-2.5)
        nn.init.xavier_uniform_(self.out_proj.weight, gain=2**-1)

    def extra_repr(self) -> str:
        """Sizes and options shown by ``print(module)``."""
        return f"dim={self.dim}, heads={self.heads}, eps={self.eps}, chunk={self.chunk}"

    def cost(self, batch: int, tokens: int, *, causal: bool = False, itemsize: int = 4) -> Cost:
        """As :meth:`Mixer.cost`: five projections and the decay engine of every head.

        Kept are x, q, k, v, the rotation's tables, the numbers of the norm and of the gate, and
        what goes into W_o.
        """
        check_call(self, batch, tokens, causal)
        rows, wide, heads = batch * tokens, max(4, itemsize), self.heads
        dim, values = self.dim // heads, self.v_proj.out_features
        forward, backward = decay_flops(tokens, dim, values // heads, self.chunk, False)
        narrow = rows * (2 * self.dim + 5 * values)  # q, k; v, gate before and after, both factors
        numbers = rows * (values + 2 * heads) + heads + rotary_numbers(rows, dim, 2)
        layers = (self.q_proj, self.k_proj, self.v_proj, self.g_proj, self.out_proj)
        return whole(
            self,
            rows,
            itemsize,
            projected=projection_flops(rows, *layers),
            forward=batch * heads * forward,
            backward=batch * heads * backward,
            saved=narrow * itemsize + numbers * wide,
            state=batch * (dim * values * wide + 8),
        )

    def _recur(self, x: Tensor, state: State | None, mask: Tensor | None) -> tuple[Tensor, State]:
        q, k, v = (self._split(p(x)) for p in (self.q_proj, self.k_proj, self.v_proj))
        kept = x.new_ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
        before = (
            torch.zeros_like(kept[:, :1], dtype=torch.long) if state is None else state["count"]
        )
        seen_BN = kept.cumsum(1) + before
        with no_autocast(x.device.type):
            out, end = self._retention(q, k, v, seen_BN, state, mask)
        out = out.transpose(1, 2).flatten(2).to(v.dtype)
        y: Tensor = self.out_proj(F.silu(self.g_proj(x)) * out)
        return y, {"S": end, "count": before + kept.sum(1, keepdim=True)}

    def _retention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        seen_BN: Tensor,
        state: State | None,
        mask: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Normed outputs (B, H, N, E) and the state (B, H, D, E)."""
        dim = q.shape[3]
        base = 10_000.0 ** (dim / (dim - 2)) if dim > 2 else 10_000.0  # linspace ends at 1
        q, k = (rotate(x, seen_BN[:, None], base=base) for x in (q, k))
        log_H = head_decays(self.heads, q.device)
        decay = log_H.to(accumulation_dtype(v))[None, :, None].expand(k.shape[:3])
        out, end = decay_attention(
            q,
            k,
            v,
            decay,
            None if state is None else state["S"],
            key_mask=mask,
            scale=dim**-0.5,
            chunk=self.chunk,
        )
        log = log_H[None, :, None]
        total_BHN = torch.expm1(log * seen_BN[:, None].clamp(min=1)) / torch.expm1(log)
        out = out.to(decay.dtype) * total_BHN.rsqrt().to(decay.dtype).unsqueeze(-1)
        return out * (out.square().mean(-1, keepdim=True) + self.eps).rsqrt(), end

    def _split(self, x_BNC: Tensor) -> Tensor:
        batch, tokens, channels = x_BNC.shape
        return x_BNC.view(batch, tokens, self.heads, channels // self.heads).transpose(1, 2)
