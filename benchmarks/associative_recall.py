"""Multi-query associative recall against the size of the state that a causal mixer carries.

    python benchmarks/associative_recall.py --out docs/benchmarks/associative_recall

A sequence holds key-value pairs, then the same keys again in random places; at each of them the
model has to say the value (Arora et al. 2023, "Zoology", section 3). Softmax attention keeps every
token and can; a state of fixed size has to choose. Every model is the same but for the mixer: two
layers of width --dim, a causal convolution over --conv tokens before each mixer (so that a key can
be bound to the value after it), no positions, no MLP. Each size of each mixer trains at every
learning rate of --rates on one seed; the best rate trains again on fresh --seeds, and those are
reported. Finished trainings are kept in OUT/runs.jsonl: called again, it goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isoattn.core import GatedAttentionUnit, MultiHead, seed_attentions
from isoattn.core.mixers.base import Mixer
from isoattn.core.training.randomness import derive_seed

SEARCH_SEED = 100


@dataclass(frozen=True)
class Task:
    """The task and the training that all models share.

    Args:
        tokens: length of a sequence N.
        pairs: key-value pairs in it.
        vocab: half of it are keys, half values; 0 is the filler.
        dim: width of the model.
        heads: of the mixer.
        conv: tokens of the convolution before each mixer.
        layers: of the model.
        batch: sequences a step.
        steps: of training.
    """

    tokens: int = 48
    pairs: int = 8
    vocab: int = 64
    dim: int = 64
    heads: int = 2
    conv: int = 3
    layers: int = 2
    batch: int = 32
    steps: int = 800

    def __post_init__(self) -> None:
        if self.tokens < 3 * self.pairs:
            raise SystemExit(
                f"--tokens {self.tokens} has no room for {self.pairs} pairs and their queries: "
                f"it needs 3 tokens a pair, {3 * self.pairs} at least"
            )
        if self.vocab < 2 * self.pairs + 2:
            raise SystemExit(
                f"--vocab {self.vocab} has too few keys: {2 * self.pairs + 2} at least"
            )


def draw(task: Task, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sequences and labels (B, N); labels are -100 where nothing is asked."""
    shape = (task.batch, task.tokens)
    half = (task.vocab - 1) // 2
    order = torch.rand(task.batch, half, generator=generator).argsort(1)
    keys = 1 + order[:, : task.pairs]
    values = 1 + half + torch.randint(half, keys.shape, generator=generator)
    x, y = torch.zeros(shape, dtype=torch.long), torch.full(shape, -100)
    x[:, 0 : 2 * task.pairs : 2] = keys
    x[:, 1 : 2 * task.pairs : 2] = values
    free = task.tokens - 2 * task.pairs
    places = torch.rand(task.batch, free, generator=generator).argsort(1)[:, : task.pairs]
    places = places + 2 * task.pairs
    return x.scatter(1, places, keys), y.scatter(1, places, values)


class Layer(nn.Module):
    """x + mixer(convolution(norm(x)))."""

    def __init__(self, task: Task, mixer: Mixer) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(task.dim)
        self.conv = nn.Conv1d(task.dim, task.dim, task.conv, groups=task.dim)
        self.mixer = mixer

    def forward(self, x: Tensor) -> Tensor:
        """Mix x (B, N, C)."""
        width = self.conv.kernel_size[0] - 1
        h = self.conv(F.pad(self.norm(x).transpose(1, 2), (width, 0))).transpose(1, 2)
        mixed: Tensor = self.mixer(F.silu(h), causal=True)
        return x + mixed


class Model(nn.Module):
    """Embedding, layers, and a head tied to nothing."""

    def __init__(self, task: Task, mixer: Callable[[], Mixer]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(task.vocab, task.dim)
        self.layers = nn.Sequential(*(Layer(task, mixer()) for _ in range(task.layers)))
        self.head = nn.Sequential(nn.LayerNorm(task.dim), nn.Linear(task.dim, task.vocab))
        seed_attentions(self, 0)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (B, N) to logits (B, N, vocab)."""
        logits: Tensor = self.head(self.layers(self.embedding(x)))
        return logits

    def state_bytes(self, tokens: int) -> int:
        """Of all mixers after that many tokens of one sequence, measured."""
        x = torch.zeros(1, tokens, self.embedding.embedding_dim)
        total = 0
        for layer in self.layers:
            _, state = layer.mixer.extend(x)
            total += sum(s.numel() * s.element_size() for s in state.values())
        return total


def mixers(task: Task) -> dict[str, dict[str, Callable[[], Mixer]]]:
    """Every mixer by name, each in several sizes of its state."""
    found: dict[str, dict[str, Callable[[], Mixer]]] = {}
    for name in ("Softmax", "Linear", "Retention", "StateSpaceDual", "GatedLinear", "MLSTM"):
        found[name] = {
            f"head_dim {d}": partial(MultiHead, task.dim, task.heads, name, head_dim=d)
            for d in (4, 8, 16)
        }
    found["MLSTM, head norm"] = {  # its published layers have one
        f"head_dim {d}": partial(
            MultiHead, task.dim, task.heads, "MLSTM", head_dim=d, out_norm=True
        )
        for d in (4, 8, 16)
    }
    found["FLASH"] = {
        f"key_dim {d}": partial(GatedAttentionUnit, task.dim, expansion=1, key_dim=d, chunk=8)
        for d in (4, 16, 64)
    }
    return found


def train(task: Task, mixer: Callable[[], Mixer], rate: float, seed: int) -> dict[str, float]:
    """One training; accuracy on 32 batches that no training sees."""
    torch.set_num_threads(1)
    torch.manual_seed(derive_seed(seed, "weights"))
    model = Model(task, mixer)
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.1)
    warm = max(1, task.steps // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser,
        lambda s: min(1.0, (s + 1) / warm) * (0.5 + 0.5 * math.cos(math.pi * s / task.steps)),
    )
    data = torch.Generator().manual_seed(derive_seed(seed, "data"))
    began = time.process_time()
    loss = torch.zeros(())
    for _ in range(task.steps):
        x, y = draw(task, data)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        if not loss.isfinite():
            return {"accuracy": 0.0, "loss": math.inf, "seconds": time.process_time() - began}
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
    test = torch.Generator().manual_seed(derive_seed(0, "test"))
    hits = asked = 0
    with torch.no_grad():
        for _ in range(32):
            x, y = draw(task, test)
            guess = model(x).argmax(-1)
            hits += int((guess == y)[y >= 0].sum())
            asked += int((y >= 0).sum())
    return {
        "accuracy": hits / asked,
        "loss": loss.item(),
        "seconds": time.process_time() - began,
        "state_bytes": model.state_bytes(task.tokens),
        "parameters": sum(p.numel() for p in model.parameters()),
    }


Job = tuple[str, str, float, int]


def _run(task: Task, job: Job) -> dict[str, object]:
    name, size, rate, seed = job
    result = train(task, mixers(task)[name][size], rate, seed)
    return {"mixer": name, "size": size, "rate": rate, "seed": seed, **result}


class Results:
    """Finished trainings, one a line; a half-written last line is dropped."""

    def __init__(self, out: Path, task: Task) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self.file = out / "runs.jsonl"
        self.task = asdict(task)
        self.rows: list[dict[str, object]] = []
        if self.file.exists():
            for line in self.file.read_text().splitlines():
                try:
                    row = json.loads(line)
                except json.JSONDecodeError:
                    continue
                if row.pop("task") != self.task:
                    raise SystemExit(f"{self.file} holds another task: give a new --out")
                self.rows.append(row)

    def add(self, row: dict[str, object]) -> None:
        """Keep one."""
        self.rows.append(row)
        with self.file.open("a") as file:
            file.write(json.dumps({**row, "task": self.task}) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def of(self, name: str, size: str, seed: int | None = None) -> list[dict[str, object]]:
        """Those of one model."""
        return [
            r
            for r in self.rows
            if (r["mixer"], r["size"]) == (name, size) and seed in (None, r["seed"])
        ]


def _work(task: Task, jobs: list[Job], results: Results, workers: int) -> None:
    done = {(r["mixer"], r["size"], r["rate"], r["seed"]) for r in results.rows}
    left = [job for job in jobs if job not in done]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        for n, row in enumerate(pool.imap_unordered(partial(_run, task), left), 1):
            results.add(row)
            print(
                f"[{n}/{len(left)}] {row['mixer']:16} {row['size']:12} rate {row['rate']:g} "
                f"seed {row['seed']}: {row['accuracy']:.3f} in {row['seconds']:.0f} s",
                flush=True,
            )


def _best(results: Results, name: str, size: str) -> float:
    searched = results.of(name, size, SEARCH_SEED)
    return float(str(max(searched, key=lambda r: float(str(r["accuracy"])))["rate"]))


def _models(task: Task, only: list[str]) -> Iterator[tuple[str, str]]:
    for name, sizes in mixers(task).items():
        if not only or name in only:
            for size in sizes:
                yield name, size


def report(task: Task, results: Results, models: list[tuple[str, str]], out: Path) -> None:
    """The table as markdown and the picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines = [
        "# Associative recall against the size of the state",
        "",
        f"`python benchmarks/associative_recall.py` on {time.strftime('%Y-%m-%d')}, torch "
        f"{torch.__version__}, CPU, one thread a training. {task.pairs} pairs in {task.tokens} "
        f"tokens, vocabulary {task.vocab}; {task.layers} layers of width {task.dim}, "
        f"{task.heads} heads, {task.steps} steps of {task.batch} sequences. Chance is "
        f"{1 / ((task.vocab - 1) // 2):.1%}.",
        "",
        "| mixer | size | state, bytes | parameters | rate | recall: median (each seed) |",
        "|---|---|---:|---:|---:|---|",
    ]
    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    curves: dict[str, list[tuple[int, list[float]]]] = {}
    for name, size in models:
        rows = [r for r in results.of(name, size) if r["seed"] != SEARCH_SEED]
        scores = [float(str(r["accuracy"])) for r in rows]
        held = int(str(rows[0]["state_bytes"]))
        curves.setdefault(name, []).append((held, scores))
        each = ", ".join(f"{s:.1%}" for s in scores)
        lines.append(
            f"| {name} | {size} | {held:,} | {int(str(rows[0]['parameters'])):,} "
            f"| {rows[0]['rate']:g} | {statistics.median(scores):.1%} ({each}) |"
        )
    for name, points in curves.items():
        held, scores = zip(*sorted(points), strict=True)
        (line,) = axes.plot(held, [statistics.median(each) for each in scores], label=name)
        for size, each in zip(held, scores, strict=True):  # a run learns it or not: no bars, dots
            axes.plot([size] * len(each), each, "o", color=line.get_color(), markersize=4)
    axes.set(xscale="log", ylim=(0, 1.03), ylabel="recall: a dot a seed, lines through medians")
    axes.set_xlabel(f"state after {task.tokens} tokens, bytes in all layers")
    figure.legend(loc="outside right upper")
    axes.grid(alpha=0.3)
    figure.savefig(out / "recall.png", dpi=120)
    lines += ["", "![recall against state size](recall.png)", ""]
    (out / "README.md").write_text("\n".join(lines))
    print("\n".join(lines[4:]))


def main() -> None:
    """Train what is missing, then report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/associative_recall"))
    for name, value in asdict(Task()).items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"default {value}")
    parser.add_argument("--rates", type=float, nargs="+", default=[5e-3, 1e-2, 2e-2])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--only", nargs="+", default=[], help="mixers by name; all unless given")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at once")
    args = parser.parse_args()
    task = Task(**{name: getattr(args, name) for name in asdict(Task())})
    unknown = set(args.only) - set(mixers(task))
    if unknown:
        parser.error(f"--only {' '.join(unknown)}: choose from {', '.join(mixers(task))}")
    if SEARCH_SEED in args.seeds:
        parser.error(f"seed {SEARCH_SEED} chooses the rate and cannot confirm it")
    results = Results(args.out, task)
    models = list(_models(task, args.only))
    search = [(name, size, rate, SEARCH_SEED) for name, size in models for rate in args.rates]
    _work(task, search, results, args.jobs)
    confirm = [
        (name, size, _best(results, name, size), seed)
        for name, size in models
        for seed in args.seeds
    ]
    _work(task, confirm, results, args.jobs)
    report(task, results, models, args.out)


if __name__ == "__main__":
    main()
