"""The approximation meter: how far an attention is from softmax, and from mean pooling.

Rows of queries are sampled and compared with exact softmax rows, so that no N x M matrix is held.
The rows of an attention are taken without knowing how it works: o is linear in v, so the gradient
of output n (channel c) with respect to v (channel c) is row n of its matrix. One forward and one
backward pass with a row a channel give as many exact rows as v has channels.

    reading = measure(Linear(4, 32), q, k, v)
    print(reading.skill.value, reading.skill.error)

    with record(model) as readings:  # layer name -> Reading
        model(batch)

Shape suffixes: as in :mod:`isoattn.core.contract`; S chosen samples, R chosen queries of each.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from isoattn.core.contract import Attention
from isoattn.core.ops.estimators import RowSample
from isoattn.core.ops.masking import no_autocast, zero_masked
from isoattn.core.reading import Quantity, Reading, against_softmax, of_rows
from isoattn.core.training.randomness import derive_seed

__all__ = ["Quantity", "Reading", "measure", "record"]

_ROWS_OF_A_SAMPLE = 8
"""So many rows of a chosen sample at least: the effective rank needs pairs of rows."""


def measure(
    attention: Attention,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    key_mask: Tensor | None = None,
    causal: bool = False,
    segments: Tensor | None = None,
    log_decay: Tensor | None = None,
    in_gate: Tensor | None = None,
    more: Mapping[str, Tensor] | None = None,
    queries: int = 64,
    seed: int = 0,
) -> Reading:
    """Compare an attention with exact softmax and with mean pooling on the same q, k, v.

    Nothing of the caller's changes: no gradient reaches q, k, v or a parameter, buffers, draws,
    mode and torch's generator are as before. The attention is measured in the mode it is in; in
    training mode a stochastic one is measured at one draw. Padded queries (where queries are the
    keys) and queries without a visible key are left out. Memory is O(queries x M) a head beside
    what the attention itself needs.

    Args:
        attention: what is measured.
        q: queries (B, H, N, D).
        k: keys (B, G, M, D).
        v: values (B, G, M, E).
        key_mask: bool (B, M), True = keep.
        causal: query i sees keys j <= i only.
        segments: integer ids (B, N), as in :meth:`Attention.forward`.
        log_decay: gate, for attentions that take it.
        in_gate: gate, for attentions that take it.
        more: what else its forward takes, by name, batch first (``noise``). A ``query_mask`` says
            which queries are tokens.
        queries: how many are looked at, in all samples together: up to queries / 8 samples are
            chosen, then queries of each.
        seed: of the choice.

    Returns:
        The reading; what is undefined for the mechanism says why.

    Raises:
        UnsupportedAttention: the form is not defined for this mechanism.
        ValueError: what does not fit, ``queries`` below 2, or no query that sees a key.
    """
    if queries < 2:
        raise ValueError(f"queries must be at least 2, got {queries}")
    optional = {"key_mask": key_mask, "segments": segments}
    optional |= {"log_decay": log_decay, "in_gate": in_gate, **(more or {})}
    given = {name: x for name, x in optional.items() if x is not None}
    taken = inspect.signature(attention.forward).parameters
    for name in given:
        if name not in taken:
            raise ValueError(f"{type(attention).__name__} takes no {name}")
    attention._check(q, k, v, key_mask, causal)
    with torch.inference_mode(False), torch.no_grad(), no_autocast(v.device.type):
        real = _real_queries(q, k, given, causal)
        sample, chosen_S, place_SR = _choose(real, queries, seed)
        # copies: tensors made in inference mode cannot take part in a gradient
        tensors = {"q": q, "k": k, "v": v, **given}
        tensors = {n: x.detach()[chosen_S].clone() for n, x in tensors.items()}
        # a NaN in a padded query would meet its zero gradient
        tensors["q"] = zero_masked(tensors["q"], real[chosen_S])
        call = _Call(attention, tensors, causal)
        seen_SRM = _visible(place_SR, tensors, causal)
        soft_SHRM = _softmax_rows(place_SR, seen_SRM, tensors)
        rows_SHRM = None
        if attention.capability.mixes != "channels":
            rows_SHRM = call.rows(place_SR)
        out_SHRE = _pick(call(tensors["v"]), place_SR).to(soft_SHRM.dtype)
        values_SHME = _wide(zero_masked(tensors["v"], tensors.get("key_mask")))
        values_SHME = values_SHME.repeat_interleave(attention.heads // v.shape[1], 1)
        eps = torch.finfo(v.dtype).eps
        return Reading(
            attention=type(attention).__name__,
            batch=q.shape[0],
            heads=attention.heads,
            queries=q.shape[2],
            keys=k.shape[2],
            rows=int(sample.keep_SR.sum()),
            causal=causal,
            **against_softmax(sample, out_SHRE, soft_SHRM, seen_SRM, values_SHME),
            **of_rows(sample, rows_SHRM, soft_SHRM, seen_SRM, eps),
        )


@contextmanager
def record(model: nn.Module, *, queries: int = 64, seed: int = 0) -> Iterator[dict[str, Reading]]:
    """Measure every attention in a model while it runs.

    Args:
        model: any module; attentions in it are found.
        queries: looked at in each, as in :func:`measure`.
        seed: of the choice of queries, which each layer makes anew.

    Yields:
        A dict that fills during the forward pass: name of the layer -> reading. A layer that is
        called again adds ``name#2``, ``name#3``, ... Only ``forward`` is seen, not ``extend``.
    """
    readings: dict[str, Reading] = {}
    busy = False

    def hook_for(name: str) -> Any:
        calls = 0

        def hook(module: Attention, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            nonlocal busy, calls
            if busy:  # an attention inside an attention, called by the meter itself
                return
            calls += 1
            key = name if calls == 1 else f"{name}#{calls}"
            busy = True
            try:
                bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments
                known = {n: x for n, x in bound.items() if n in _ARGUMENTS}
                more = {n: x for n, x in bound.items() if n not in _ARGUMENTS}
                readings[key] = measure(
                    module, **known, more=more, queries=queries, seed=derive_seed(seed, key)
                )
            finally:
                busy = False

        return hook

    handles = [
        module.register_forward_pre_hook(hook_for(name), with_kwargs=True)
        for name, module in model.named_modules()
        if isinstance(module, Attention)
    ]
    try:
        yield readings
    finally:
        for handle in handles:
            handle.remove()


_ARGUMENTS = frozenset(inspect.signature(measure).parameters)


class _Quiet(nn.Module):
    """Calls the forward of an attention without its hooks."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, *args: Tensor, **kwargs: Any) -> Tensor:
        return self.attention.forward(*args, **kwargs)


class _Call:
    """An attention as a function of v alone, every call with the same draws and no side effect."""

    def __init__(self, attention: Attention, tensors: dict[str, Tensor], causal: bool) -> None:
        self.module = _Quiet(attention)
        self.q, self.k, self.v = tensors["q"], tensors["k"], tensors["v"]
        self.form: dict[str, Any]
        self.form = {n: x for n, x in tensors.items() if n not in ("q", "k", "v")}
        self.form |= {"causal": causal}
        self.devices = [self.v.device] if self.v.device.type == "cuda" else []

    def __call__(self, v: Tensor) -> Tensor:
        state = {n: x.detach() for n, x in self.module.named_parameters()}
        state |= {n: x.detach().clone() for n, x in self.module.named_buffers()}
        with torch.random.fork_rng(devices=self.devices):
            out: Tensor = functional_call(self.module, state, (self.q, self.k, v), self.form)
        return out

    def rows(self, place_SR: Tensor) -> Tensor:
        """Rows of the implied matrix (S, H, R, M), in float32 at least."""
        samples, groups, keys, width = self.v.shape
        heads, rows = self.q.shape[1], place_SR.shape[1]
        found = self.v.new_empty(samples, heads, rows, keys)
        sample_S1 = torch.arange(samples, device=self.v.device)[:, None]
        for start in range(0, rows, width):
            place = place_SR[:, start : start + width]
            channel = torch.arange(place.shape[1], device=self.v.device)
            with torch.enable_grad():
                probe = torch.zeros_like(self.v).requires_grad_()
                out = self(probe)
            repeats = heads // groups
            for r in range(repeats):  # query heads that share a key head, one after the other
                pick = torch.zeros_like(out)
                pick[:, r::repeats].transpose(1, 2)[sample_S1, place, :, channel] = 1.0
                (grad,) = torch.autograd.grad(out, probe, pick, retain_graph=r + 1 < repeats)
                part = grad[..., : place.shape[1]].transpose(2, 3)
                found[:, r::repeats, start : start + width] = part
        return found.to(torch.promote_types(found.dtype, torch.float32))


def _real_queries(q: Tensor, k: Tensor, given: dict[str, Tensor], causal: bool) -> Tensor:
    """Which queries are tokens and see a key: bool (B, N).

    Raises:
        ValueError: none.
    """
    batch, tokens, keys = q.shape[0], q.shape[2], k.shape[2]
    real = torch.ones(batch, tokens, dtype=torch.bool, device=q.device)
    keep = given.get("key_mask")
    if keep is not None and tokens == keys:
        real = keep
    elif keep is not None:
        real = keep.any(1, keepdim=True).expand(batch, tokens)
        if causal:  # key i at the latest
            first = keep.long().argmax(1, keepdim=True)
            real = real & (first <= torch.arange(tokens, device=q.device))
    if "query_mask" in given:
        real = real & given["query_mask"]
    if not keys or not real.any():
        masked = "" if keep is None else f", of which {int(keep.sum())} are not masked"
        raise ValueError(
            f"There is no query that sees a key: q {tuple(q.shape)}, {keys} keys{masked}"
        )
    return real


def _choose(real_BN: Tensor, queries: int, seed: int) -> tuple[RowSample, Tensor, Tensor]:
    """Samples (S) and queries of each (S, R); places of a sample with fewer are filled with 0."""
    real = real_BN.cpu()
    generator = torch.Generator().manual_seed(derive_seed(seed, "meter"))
    usable = real.any(1).nonzero()[:, 0]
    count = min(len(usable), max(2, queries // _ROWS_OF_A_SAMPLE))
    chosen = usable[torch.randperm(len(usable), generator=generator)[:count]].sort().values
    size = -(-queries // count)
    order = torch.rand(real.shape, generator=generator)[chosen].masked_fill(~real[chosen], 2.0)
    place = order.argsort(1)[:, :size]
    rows = real[chosen].sum(1)
    keep_SR = torch.arange(place.shape[1]) < rows[:, None]
    sample = RowSample(keep_SR, rows.double(), len(usable))
    device = real_BN.device
    return sample, chosen.to(device), place.where(keep_SR, 0).to(device)


def _visible(place_SR: Tensor, tensors: dict[str, Tensor], causal: bool) -> Tensor:
    """Which chosen query sees which key: (S, R, M)."""
    samples, keys = tensors["k"].shape[0], tensors["k"].shape[2]
    key = torch.arange(keys, device=place_SR.device)
    seen = torch.ones(samples, place_SR.shape[1], keys, dtype=torch.bool, device=place_SR.device)
    if "key_mask" in tensors:
        seen &= tensors["key_mask"][:, None]
    if causal:
        seen &= key <= place_SR[..., None]
    if "segments" in tensors:
        ids = tensors["segments"]
        seen &= ids[:, None] == ids.gather(1, place_SR)[..., None]
    return seen


def _softmax_rows(place_SR: Tensor, seen_SRM: Tensor, tensors: dict[str, Tensor]) -> Tensor:
    """Exact softmax rows (S, H, R, M) of the chosen queries, float64 on the CPU."""
    q, k = _wide(tensors["q"]), _wide(zero_masked(tensors["k"], tensors.get("key_mask")))
    q = _pick(q, place_SR)
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    logits = (q @ k.transpose(-2, -1)) * q.shape[-1] ** -0.5
    rows: Tensor = logits.masked_fill(~seen_SRM[:, None], -math.inf).softmax(-1)
    return rows


def _pick(x_SHNE: Tensor, place_SR: Tensor) -> Tensor:
    index = place_SR[:, None, :, None].expand(-1, x_SHNE.shape[1], -1, x_SHNE.shape[3])
    return x_SHNE.gather(2, index)


def _wide(x: Tensor) -> Tensor:
    wide = torch.float64 if x.device.type in ("cpu", "cuda") else torch.float32
    return x.to(torch.promote_types(x.dtype, wide))
