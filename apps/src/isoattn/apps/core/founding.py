"""The mechanisms of the two pages that this package began with, and where each of them is.

The pages are *Linear Attention Mechanisms* (an introduction) and *Linear attention* (a survey of
eight papers). A name is a class of isoattn.core, or a class and what belongs to it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mechanism:
    """One mechanism.

    Args:
        what: in the words of the field.
        names: ``Linear``, ``Linear.extend``, ``Softmax(path='fused')``.
        note: what to know before comparing; may be empty.
    """

    what: str
    names: tuple[str, ...]
    note: str = ""


INTRODUCTION = (
    Mechanism("Scaled dot-product attention, the quadratic baseline", ("Softmax",)),
    Mechanism("Kernel trick: S and z summed once, used by every query", ("Linear",)),
    Mechanism("elu(x) + 1 as feature map", ("Linear",), "computed so that it never rounds to 0"),
    Mechanism("Random Fourier features (cosine and sine)", ("RandomFourier",), "correction 1"),
    Mechanism(
        "Positive orthogonal random features, FAVOR+",
        ("Favor",),
        "correction 1; Favor(orthogonal=False) has independent ones",
    ),
    Mechanism(
        "Recurrent form: a running S and z, one token at a time",
        ("Linear.extend", "Linear.step"),
        "correction 2",
    ),
    Mechanism("Gated linear attention (GLA)", ("GatedLinear",), "correction 5"),
    Mechanism("Fixed exponential decay (RetNet)", ("Retention",)),
    Mechanism("HGRN2", ("HGRN2",), "correction 3"),
    Mechanism(
        "Hawk, Griffin",
        ("RGLRU", "SlidingWindow"),
        "correction 3; Griffin's local attention is a causal window of one key head",
    ),
    Mechanism("Sliding window and global tokens (Longformer)", ("SlidingWindow",)),
    Mechanism("Window, global and random blocks (BigBird)", ("BigBird",)),
    Mechanism("Projected keys and values (Linformer)", ("Linformer",)),
    Mechanism(
        "Exact attention by tiles (FlashAttention)",
        ("Softmax(path='fused')",),
        "torch's own kernel",
    ),
    Mechanism("S4, diagonal state space", ("S4D",), "correction 4"),
    Mechanism("Mamba, selective scan", ("SelectiveSSM",)),
    Mechanism("Linear recurrence seen as attention (Mamba-2)", ("StateSpaceDual", "Mamba2")),
    Mechanism("RWKV", ("RWKV6",), "version 6"),
    Mechanism("Rows that sum to one", ("Capability.normalised",), "correction 6"),
)

SURVEY = (
    Mechanism("Random Fourier features, unit norm (RFA)", ("RandomFourier",), "correction 10"),
    Mechanism("RFA without unit norm: a scalar more a key", ("RandomFourier(lengths='weigh')",)),
    Mechanism("Arc-cosine features (RFA)", ("RandomFourier(kernel='arccos')",)),
    Mechanism("RFA with a recency gate", ("GatedRandomFourier",), "correction 10"),
    Mechanism("elu(x) + 1, as in LoFTR", ("Linear",), "correction 8"),
    Mechanism("Scalar decay, chunked (SSD, Mamba-2)", ("StateSpaceDual",)),
    Mechanism("Landmarks (Nystrom), as in TransMIL", ("Nystrom",), "correction 9"),
    Mechanism("Gumbel noise on random features (NodeFormer)", ("GumbelFavor",), "correction 7"),
    Mechanism(
        "Its released scaling and noise in training alone",
        ("GumbelFavor(fidelity='released')",),
    ),
    Mechanism("Attention over channels (XCA, XCiT)", ("CrossCovariance",)),
    Mechanism("Matrix memory with exponential gates (mLSTM)", ("MLSTM",)),
    Mechanism("Gated attention unit, one head (GAU)", ("GatedAttentionUnit",)),
    Mechanism(
        "Exact in chunks, linear across them (FLASH)",
        ("GatedAttentionUnit",),
        "both scalings: as the equation, as the listing",
    ),
    Mechanism("Loop over a running state, optional decay", ("Linear.step", "GatedLinear.step")),
    Mechanism("Multi-query and grouped keys", ("Attention.forward",), "k and v with G | H heads"),
)

CORRECTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "The Performer's features are positive, not Fourier features: exp(w.x - |x|^2 / 2). "
        "Without the second term the mean is exp(|q + k|^2 / 2), not exp(q.k).",
        ("Favor",),
    ),
    ("The normaliser z_t is a vector with one entry a feature, not a scalar.", ("Linear",)),
    (
        "Of HGRN2, Hawk and Griffin only Griffin has local attention: HGRN2 is a gated linear "
        "attention with k = 1 - f, Hawk a recurrence alone.",
        ("HGRN2", "RGLRU"),
    ),
    ("S4 is diagonal plus low rank; the diagonal one is S4D.", ("S4D",)),
    ("GLA's gate is a vector over the channels of k, not a free matrix.", ("GatedLinear",)),
    (
        "Many members have no normaliser at all (SSD, GLA, RetNet, GAU): rows need not sum to one. "
        "Every class declares it and a law checks it.",
        ("Retention", "StateSpaceDual"),
    ),
    (
        "NodeFormer predicts at its training temperature in one of its scripts only; its two large "
        "benchmarks are evaluated at temperature 1.",
        ("GumbelFavor",),
    ),
    (
        "LoFTR's scaling of the values protects the sum of k v^T in float16, not the denominator, "
        "which overflows from some thousand tokens on. Here sums are float32 at least.",
        ("Linear",),
    ),
    (
        "TransMIL's code does state its sizes: 8 heads, half the width as landmarks, 6 iterations.",
        ("Nystrom",),
    ),
    (
        "The released RFA code is not the model of the paper: no gate, another scale, a clamped "
        "denominator. A signed denominator must not be divided by unguarded.",
        ("RandomFourier",),
    ),
    (
        "From how many tokens on a linear attention is faster depends on which: measure it, "
        "`isoattn bench`.",
        ("Softmax",),
    ),
)
