"""What the closed forms of the mixers share.

R rows are the tokens of all samples.
"""

from __future__ import annotations

from torch import nn

from isoattn.core.contract import UnsupportedAttention
from isoattn.core.cost import Cost
from isoattn.core.mixers.base import Mixer


def check_call(mixer: Mixer, batch: int, tokens: int, causal: bool) -> None:
    """Refuse what a call would refuse.

    Args:
        mixer: whose cost is asked for.
        batch: B.
        tokens: N.
        causal: which form.

    Raises:
        UnsupportedAttention: there is no such form; says why.
        ValueError: a size below 1.
    """
    name = type(mixer).__name__
    if batch < 1 or tokens < 1:
        raise ValueError(
            f"{name}.cost needs batch >= 1 and tokens >= 1, got batch={batch}, tokens={tokens}"
        )
    form = "causal" if causal else "bidirectional"
    if not getattr(mixer.capability, form):
        reason = mixer.unsupported.get(form, "not defined for this mixer")
        raise UnsupportedAttention(f"{name} has no {form} form: {reason}")


def projection_flops(rows: int, *layers: nn.Linear) -> int:
    """Of the forward pass of linear maps over R rows each; the backward pass takes twice that."""
    return sum(2 * rows * layer.in_features * layer.out_features for layer in layers)


def rotary_numbers(rows: int, channels: int, tensors: int) -> int:
    """Cosines and sines that stay for the gradient, a table of R rows for each turned tensor."""
    return 2 * tensors * rows * (channels // 2)


def whole(
    mixer: Mixer,
    rows: int,
    itemsize: int,
    *,
    projected: int,
    forward: int,
    backward: int,
    saved: int,
    state: int,
) -> Cost:
    """A mixer's cost from its parts.

    Args:
        mixer: whose parameters are read.
        rows: R of x and y.
        itemsize: bytes of an element.
        projected: FLOPs of the forward pass of the projections.
        forward: FLOPs of what is between them.
        backward: of its backward pass.
        saved: bytes kept beside x.
        state: bytes of the state.
    """
    tokens = rows * mixer.dim * itemsize
    parameters = sum(p.numel() for p in mixer.parameters()) * itemsize
    return Cost(
        forward_flops=projected + forward,
        backward_flops=2 * projected + backward,
        min_bytes=2 * tokens + parameters,
        saved_bytes=tokens + saved,
        state_bytes=state,
    )
