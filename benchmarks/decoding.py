"""Decoding: time and memory of one more token against the number of tokens before it.

    python benchmarks/decoding.py --out docs/benchmarks/decoding

Each mixer reads a prompt with ``extend`` and then goes on with ``step``; the median of the steps
and the bytes of the state are written down. Softmax attention keeps every token, so both grow with
the prompt; the others carry a state of fixed size. One sequence, float32, no training.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from isoattn.core import GatedAttentionUnit, MultiHead
from isoattn.core.contract import State
from isoattn.core.mixers.base import Mixer

MULTI_HEAD = ("Softmax", "Linear", "Retention", "StateSpaceDual", "GatedLinear", "MLSTM")


def mixers(dim: int, heads: int) -> dict[str, Callable[[], Mixer]]:
    """Every mixer by name."""
    found: dict[str, Callable[[], Mixer]] = {
        name: partial(MultiHead, dim, heads, name) for name in MULTI_HEAD
    }
    found["FLASH"] = partial(GatedAttentionUnit, dim, expansion=2, key_dim=dim // 2, chunk=64)
    return found


def read(mixer: Mixer, tokens: int, piece: int = 1024) -> State:
    """The state after that many random tokens, read in pieces."""
    generator = torch.Generator().manual_seed(tokens)
    state: State | None = None
    for start in range(0, tokens, piece):
        x = torch.randn(1, min(piece, tokens - start), mixer.dim, generator=generator)
        _, state = mixer.extend(x, state)
    assert state is not None
    return state


def step_time(mixer: Mixer, state: State, steps: int) -> float:
    """Median seconds of one more token."""
    x = torch.randn(1, mixer.dim, generator=torch.Generator().manual_seed(1))
    times = []
    for _ in range(steps):
        began = time.perf_counter()
        _, state = mixer.step(x, state)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main() -> None:
    """Measure and write table, data and picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/decoding"))
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument(
        "--tokens", type=int, nargs="+", default=[64, 256, 1024, 4096, 16384, 65536]
    )
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3, help="interleaved over the mixers")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    args.out.mkdir(parents=True, exist_ok=True)
    models = {name: build() for name, build in mixers(args.dim, args.heads).items()}
    rows = []
    for tokens in args.tokens:
        states = {name: read(mixer, tokens) for name, mixer in models.items()}
        times: dict[str, list[float]] = {name: [] for name in models}
        for _ in range(args.rounds):
            for name, mixer in models.items():
                times[name].append(step_time(mixer, states[name], args.steps))
        for name, state in states.items():
            held = sum(x.numel() * x.element_size() for x in state.values())
            rows.append(
                {
                    "mixer": name,
                    "tokens": tokens,
                    "ms": 1e3 * statistics.median(times[name]),
                    "state_bytes": held,
                }
            )
            print(rows[-1], flush=True)
    (args.out / "decoding.json").write_text(json.dumps(rows, indent=1) + "\n")
    report(rows, args)


def report(rows: list[dict[str, object]], args: argparse.Namespace) -> None:
    """The table as markdown and the picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(str(r["mixer"]) for r in rows))
    at = {(r["mixer"], r["tokens"]): r for r in rows}
    lines = [
        "# Decoding: the cost of one more token",
        "",
        f"`python benchmarks/decoding.py` on {time.strftime('%Y-%m-%d')}, torch "
        f"{torch.__version__}, CPU, one thread; width {args.dim}, {args.heads} heads, one "
        f"sequence, float32. Median of {args.steps} steps, then of {args.rounds} interleaved "
        "rounds.",
    ]
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for title, key, form, axis in (
        ("Milliseconds a token", "ms", "{:.3f}", axes[0]),
        ("State, bytes", "state_bytes", "{:,}", axes[1]),
    ):
        lines += ["", f"## {title}", "", "| tokens before | " + " | ".join(names) + " |"]
        lines.append("|---:|" + "---:|" * len(names))
        for tokens in args.tokens:
            cells = (form.format(at[name, tokens][key]) for name in names)
            lines.append(f"| {tokens:,} | " + " | ".join(cells) + " |")
        for name in names:
            axis.plot(args.tokens, [at[name, t][key] for t in args.tokens], "o-", label=name)
        axis.set(xscale="log", yscale="log", xlabel="tokens before", title=title)
        axis.grid(alpha=0.3)
    axes[0].legend()
    figure.savefig(args.out / "decoding.png", dpi=120)
    lines += ["", "![time and state against tokens](decoding.png)", ""]
    (args.out / "README.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
