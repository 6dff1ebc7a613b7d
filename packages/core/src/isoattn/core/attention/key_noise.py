"""What the attentions with Gumbel noise per key share: temperature, noise, edges, neighbours."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from isoattn.core.contract import Attention, Capability
from isoattn.core.ops import gumbel
from isoattn.core.ops.masking import no_autocast
from isoattn.core.ops.segments import over_segments
from isoattn.core.streams import Stream

Fidelity = Literal["paper", "released"]


class KeyNoise(Attention):
    """Attention whose logits l_ij gain g_jt / tau, Gumbel noise of key j in draw t.

    The noise of a key is shared by all queries, and the outputs of the draws are averaged (Wu et
    al. 2022, "NodeFormer", eq. 5-7). It comes from the stream of the module: two classes with one
    seed and one number of calls behind them have the same, so that a comparison of them is paired.

    Args:
        heads: number of query heads H.
        head_dim: dimension D of a query or key head.
        tau: temperature.
        tau_eval: temperature in evaluation mode; that of training unless given.
        draws: T, samples of noise averaged in training mode; 0 is no noise.
        eval_draws: samples of noise in evaluation mode; 0 is none.
        noise_every: calls in training mode after which the noise is drawn anew; 0 is never.
        fidelity: ``"paper"``, or ``"released"``, which divides the logits by sqrt(D).
        seed: of the noise.

    Raises:
        ValueError: an option out of range; says which.
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
        tau: float,
        tau_eval: float | None,
        draws: int,
        eval_draws: int,
        noise_every: int,
        fidelity: Fidelity,
        seed: int,
    ) -> None:
        super().__init__(heads, head_dim)
        if fidelity not in ("paper", "released"):
            raise ValueError(f"fidelity must be 'paper' or 'released', got {fidelity!r}")
        for name, value in (("tau", tau), ("tau_eval", tau_eval)):
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be > 0, got {value}")
        if draws < 0 or eval_draws < 0:
            raise ValueError(
                "draws and eval_draws must be 0 (no noise) or more, "
                f"got draws={draws}, eval_draws={eval_draws}"
            )
        if noise_every < 0:
            raise ValueError(f"noise_every must be 0 (never) or more, got {noise_every}")
        self.tau = tau
        self.tau_eval = tau if tau_eval is None else tau_eval
        self.draws = draws
        self.eval_draws = eval_draws
        self.noise_every = noise_every
        self.fidelity: Fidelity = fidelity
        self.stream = Stream(seed)
        self._declare(draws > 0 and noise_every == 1)

    def _declare(self, anew: bool) -> None:
        """Say whether every call in training mode draws anew, and where it knowingly does not."""
        self.capability = replace(self.capability, stochastic=anew)
        if not anew and (self.draws or self.tau_eval != self.tau):
            what = (
                f"noise_every={self.noise_every}: calls share their noise, evaluation has none"
                if self.draws
                else f"tau={self.tau} in training, tau_eval={self.tau_eval} in evaluation"
            )
            self.deviations = {"draws": what}

    def extra_repr(self) -> str:
        """Sizes and options shown by ``print(module)``."""
        evaluated = "" if self.tau_eval == self.tau else f", tau_eval={self.tau_eval}"
        return (
            f"{super().extra_repr()}, tau={self.tau}{evaluated}, draws={self.draws}, "
            f"eval_draws={self.eval_draws}, fidelity={self.fidelity!r}"
        )

    @property
    def temperature(self) -> float:
        """Tau of the present mode."""
        return self.tau if self.training else self.tau_eval

    def logit_scale(self, tau: float) -> float:
        """What q.k is multiplied by at a temperature."""
        return 1.0 / (tau * self.head_dim**0.5 if self.fidelity == "released" else tau)

    def reseed(self, seed: int) -> None:
        """Draw anew, from another seed."""
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
        call = self._prepared()
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
        key = self.stream.advance() if self.training and self.noise_every else self.stream.key()
        if self.noise_every > 1:
            key = torch.stack([key[0], key[1] // self.noise_every])
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

        NodeFormer's is ``(log_prob / indegree[end]).mean()``, to be made large. No N x M numbers
        are held.

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
        check_edges(edge_index, q.shape[2], k.shape[2])
        if segments is not None and segments.shape != (q.shape[0], q.shape[2]):
            raise ValueError(
                f"segments must be (batch, tokens) = ({q.shape[0]}, {q.shape[2]}), "
                f"got {tuple(segments.shape)}"
            )
        with no_autocast(q.device.type):
            return self._edges(q, k, edge_index, key_mask, segments)

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
            return self._strongest(q, k, count, key_mask)

    def _samples(self) -> int:
        return self.draws if self.training else self.eval_draws

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, causal: bool
    ) -> Tensor:
        noise = self.draw_noise(k.shape[0], k.shape[2])
        return self._prepared()(q, k, v, noise, key_mask=key_mask)

    @abstractmethod
    def _prepared(self) -> Callable[..., Tensor]:
        """The mechanism of one call: takes q, k, v, noise or None, and ``key_mask``."""

    @abstractmethod
    def _edges(
        self,
        q: Tensor,
        k: Tensor,
        edge_index: Tensor,
        key_mask: Tensor | None,
        segments: Tensor | None,
    ) -> Tensor:
        """Log-probabilities of edges on checked inputs, outside autocast."""

    @abstractmethod
    def _strongest(
        self, q: Tensor, k: Tensor, count: int, key_mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Weights and numbers of the strongest keys on checked inputs, outside autocast."""

    def _check_noise(self, noise: Tensor, k: Tensor) -> None:
        want = (k.shape[0], self.heads, k.shape[2])
        if noise.ndim != 4 or noise.shape[:3] != want or not noise.shape[3]:
            raise ValueError(
                f"noise must be (batch, heads, keys, draws) = {want} and at least one draw, "
                f"got {tuple(noise.shape)}"
            )


def check_edges(edge_index: Tensor, queries: int, keys: int) -> None:
    """Raise ValueError unless edges are int64 (2, edges) of keys and queries that exist."""
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
