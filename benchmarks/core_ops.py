"""Speed of the attentions of isoattn.core against their peers, in the same run.

    python benchmarks/core_ops.py --tokens 16384 --threads 1

Each row is the median of the rounds, forward and forward + backward, in milliseconds: processor
time on one thread, wall time on more. The ratio is to the first row of its group, taken round by
round. Methods are interleaved (A B A B), so that a slow moment of the machine hits all of them.
q, k, v are given, batch 1, float32.
kornia, performer-pytorch and nystrom-attention are compared where they are installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from isoattn.core import (
    CrossCovariance,
    Favor,
    GumbelFavor,
    GumbelSoftmax,
    Linear,
    Nystrom,
    Softmax,
)

Method = Callable[[Tensor, Tensor, Tensor], Tensor]


def einsum_elu1(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Linear attention as it is usually written, eps and all."""
    q, k = F.elu(q) + 1, F.elu(k) + 1
    state = torch.einsum("bhmd,bhme->bhde", k, v)
    inverse = 1 / (torch.einsum("bhnd,bhd->bhn", q, k.sum(2)) + 1e-6)
    return torch.einsum("bhnd,bhde,bhn->bhne", q, state, inverse)


def loftr_elu1(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The form of LoFTR and kornia: token-major, values divided by their number meanwhile."""
    q, k, v = (x.transpose(1, 2) for x in (F.elu(q) + 1, F.elu(k) + 1, v / v.shape[2]))
    state = torch.einsum("nshd,nshv->nhdv", k, v)
    inverse = 1 / (torch.einsum("nlhd,nhd->nlh", q, k.sum(1)) + 1e-6)
    out = torch.einsum("nlhd,nhdv,nlh->nlhv", q, state, inverse) * v.shape[1]
    return out.transpose(1, 2)


def normalised_xca(q: Tensor, k: Tensor, v: Tensor, temperature: Tensor) -> Tensor:
    """Cross-covariance attention with both inputs normalised first, as in timm."""
    q, k, v = (x.transpose(-2, -1) for x in (q, k, v))
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    weights = ((q @ k.transpose(-2, -1)) * temperature).softmax(-1)
    return (weights @ v).transpose(-2, -1)


def kornia_linear() -> Method | None:
    """The LinearAttention of kornia (token-major), or None where kornia is not installed."""
    if importlib.util.find_spec("kornia") is None:
        return None
    from kornia.feature.loftr.loftr_module.linear_attention import LinearAttention

    module = LinearAttention()
    return lambda q, k, v: module(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)


def performer(dim: int, features: int) -> Method | None:
    """The FastAttention of performer-pytorch, or None where it is not installed."""
    if importlib.util.find_spec("performer_pytorch") is None:
        return None
    from performer_pytorch import FastAttention

    module: Method = FastAttention(dim_heads=dim, nb_features=features)
    return module


def nystrom_attention(heads: int, dim: int, landmarks: int) -> Method | None:
    """The operator of nystrom-attention: its module with projections that change nothing."""
    if importlib.util.find_spec("nystrom_attention") is None:
        return None
    from nystrom_attention import NystromAttention

    module = NystromAttention(
        heads * dim, dim_head=dim, heads=heads, num_landmarks=landmarks, residual=False
    )
    module.to_out = torch.nn.Identity()
    module.to_qkv = torch.nn.Identity()  # it is called on q, k and v side by side

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        beside = torch.cat([x.transpose(1, 2).flatten(2) for x in (q, k, v)], -1)
        out: Tensor = module(beside)
        return out.unflatten(-1, (heads, dim)).transpose(1, 2)

    return attend


def exact_gumbel(draws: int, tau: float) -> Method:
    """Softmax with noise per key, one N x N matrix a draw: what GumbelFavor approximates."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        logits = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 / tau)
        total = torch.zeros_like(v)
        for _ in range(draws):
            noise = -torch.empty(*k.shape[:2], 1, k.shape[2]).exponential_().log() / tau
            total = total + (logits + noise).softmax(-1) @ v
        return total / draws

    return attend


def peers(heads: int, dim: int) -> dict[str, dict[str, Method]]:
    """Groups against packages, where those are installed."""
    found: dict[str, dict[str, Method]] = {}
    favor, nystrom = performer(dim, 266), nystrom_attention(heads, dim, 64)
    if favor:
        found["favor, 266 features"] = {
            "performer-pytorch": favor,
            "isoattn Favor": Favor(heads, dim, features=266),
        }
    if nystrom:
        found["nystrom, 64 landmarks"] = {
            "nystrom-attention": nystrom,
            "isoattn Nystrom": Nystrom(heads, dim, landmarks=64),
        }
    kornia = kornia_linear()
    if kornia:
        found["linear against kornia"] = {"kornia": kornia, "isoattn Linear": Linear(heads, dim)}
    return found


def groups(heads: int, dim: int, compiled: bool) -> dict[str, dict[str, Method]]:
    """The peers first: ratios are to the first of a group."""
    temperature = torch.ones(heads, 1, 1, requires_grad=True)
    linear, cross, softmax = (c(heads, dim) for c in (Linear, CrossCovariance, Softmax))
    found: dict[str, dict[str, Method]] = {
        "linear": {
            "einsum elu+1": einsum_elu1,
            "einsum elu+1, as LoFTR": loftr_elu1,
            "isoattn Linear": linear,
        },
        "cross-covariance": {
            "normalise first": lambda q, k, v: normalised_xca(q, k, v, temperature),
            "isoattn CrossCovariance": cross,
        },
        "softmax": {"torch SDPA": F.scaled_dot_product_attention, "isoattn Softmax": softmax},
    }
    if compiled:
        found["linear"]["isoattn Linear, compiled"] = torch.compile(linear)
        found["cross-covariance"]["isoattn CrossCovariance, compiled"] = torch.compile(cross)
    found["gumbel, 10 draws, 30 features"] = {
        "exact, a matrix a draw": exact_gumbel(10, 0.25),
        "isoattn GumbelSoftmax": GumbelSoftmax(heads, dim, draws=10, tau=0.25).train(),
        "isoattn GumbelFavor": GumbelFavor(heads, dim, features=30, draws=10, tau=0.25).train(),
    }
    return {**found, **peers(heads, dim)}


def timed(method: Method, shape: tuple[int, ...], layout: str) -> tuple[float, float]:
    """Milliseconds of a forward pass, and of a forward and backward pass."""
    q, k, v = inputs(shape, layout)
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    out = method(q, k, v)
    middle = clock()
    grad = torch.ones_like(out)
    again = clock()
    torch.autograd.backward(out, grad)
    end = clock()
    return 1e3 * (middle - start), 1e3 * (middle - start + end - again)


def inputs(shape: tuple[int, ...], layout: str) -> tuple[Tensor, ...]:
    """q, k, v on their own, or as views of one fused projection (B, N, 3, H, D)."""
    batch, heads, tokens, dim = shape
    if layout == "separate":
        return tuple(torch.randn(shape).requires_grad_() for _ in range(3))
    fused = torch.randn(batch, tokens, 3, heads, dim, requires_grad=True)
    return fused.permute(2, 0, 3, 1, 4).unbind(0)


def compare(methods: dict[str, Method], shape: tuple[int, ...], args: argparse.Namespace) -> None:
    """Time the methods of one group in turn and print a row for each."""
    rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in methods}
    for number in range(args.warmup + args.rounds):
        for name, method in methods.items():
            result = timed(method, shape, args.layout)
            if number >= args.warmup:
                rounds[name].append(result)
    base = next(iter(rounds.values()))
    for name, results in rounds.items():
        cells = []
        for part in (0, 1):
            ratio = statistics.median(r[part] / b[part] for r, b in zip(results, base, strict=True))
            cells.append(f"{statistics.median(r[part] for r in results):10.2f} {ratio:6.2f}")
        print(f"{name:36s}{cells[0]}{cells[1]}")


def main() -> None:
    """Read the sizes, warm up, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=16_384)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7, help="at least 5")
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--softmax-tokens", type=int, default=2_048, help="its cost is quadratic")
    parser.add_argument("--gumbel-tokens", type=int, default=2_708, help="the nodes of Cora")
    parser.add_argument("--only", nargs="+", default=[], help="groups whose name begins so")
    parser.add_argument("--layout", choices=["separate", "fused"], default="separate")
    parser.add_argument("--compiled", action="store_true", help="also through torch.compile")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    # Until some gelu(tanh) has run in the process, float32 elu is several times slower.
    F.gelu(torch.randn(1000), approximate="tanh")
    print(
        f"torch {torch.__version__}, {args.threads} thread(s), batch {args.batch}, "
        f"{args.heads} heads of {args.dim}, {args.layout} inputs, float32"
    )
    print(f"{'':36s}{'fwd ms':>10s} {'ratio':>6s}{'f+b ms':>10s} {'ratio':>6s}")
    for title, methods in groups(args.heads, args.dim, args.compiled).items():
        if args.only and not title.startswith(tuple(args.only)):
            continue
        tokens = {"softmax": args.softmax_tokens, "gumbel": args.gumbel_tokens}.get(
            title.split(",")[0], args.tokens
        )
        print(f"{title}, {tokens} tokens")
        compare(methods, (args.batch, args.heads, tokens, args.dim), args)


if __name__ == "__main__":
    main()
