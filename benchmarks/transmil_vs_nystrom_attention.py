"""TransMIL, ours against the same model on nystrom-attention, and every linear arm on a large bag.

    pip install nystrom-attention                     # optional: without it our model runs alone
    python benchmarks/transmil_vs_nystrom_attention.py speed --tiles 8800
    python benchmarks/transmil_vs_nystrom_attention.py memory --tiles 8800 100000

``speed``: one training step (forward and backward) of both on one bag with equal weights, in turn
(A B A B ...), after a check that both give the same logits and gradients in evaluation mode. Times
are CPU seconds of this process, which other programs disturb less than the clock on the wall does;
the ratio is taken pair by pair (below 1: ours is faster). ``memory``: what such a step adds to the
peak of resident memory, each in a process of its own.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isoattn.core import Favor, Linear, Mean, Nystrom, Softmax
from isoattn.wsi import RELEASED, TransMIL, load_weights

Step = Callable[[], None]

ARMS: dict[str, dict[str, object]] = {
    "Nystrom, released": {"attention": RELEASED},
    "Nystrom, without pads": {"attention": partial(Nystrom, landmarks=256)},
    "Nystrom, m = 64": {"attention": partial(Nystrom, landmarks=64)},
    "Linear": {"attention": Linear},
    "Favor": {"attention": Favor},
    "Mean": {"attention": Mean},
    "Softmax": {"attention": Softmax},
    "Softmax, only cls in layer 2": {"attention": Softmax, "cls_only": True},
}
LINEAR = [name for name in ARMS if not name.startswith("Softmax")]
PEER = "nystrom-attention"


class Peer(nn.Module):
    """TransMIL from its description, around the layer of nystrom-attention."""

    def __init__(self, in_dim: int, classes: int, dim: int = 512) -> None:
        super().__init__()
        from nystrom_attention import NystromAttention

        self._fc1 = nn.Sequential(nn.Linear(in_dim, dim), nn.ReLU())
        self.cls_token = nn.Parameter(torch.randn(1, 1, dim))
        for number in (1, 2):
            layer = nn.Module()
            layer.norm = nn.LayerNorm(dim)
            layer.attn = NystromAttention(
                dim,
                dim_head=dim // 8,
                heads=8,
                num_landmarks=dim // 2,
                pinv_iterations=6,
                residual=True,
                dropout=0.1,
            )
            self.add_module(f"layer{number}", layer)
        self.pos_layer = nn.Module()
        for name, size in (("proj", 7), ("proj1", 5), ("proj2", 3)):
            conv = nn.Conv2d(dim, dim, size, padding=size // 2, groups=dim)
            self.pos_layer.add_module(name, conv)
        self.norm = nn.LayerNorm(dim)
        self._fc2 = nn.Linear(dim, classes)

    def forward(self, bag_BnI: Tensor) -> Tensor:
        """Logits (B, C)."""
        h = self._fc1(bag_BnI)
        side = int(-(-(h.shape[1] ** 0.5) // 1))
        h = torch.cat([h, h[:, : side * side - h.shape[1]]], 1)
        h = torch.cat([self.cls_token.expand(len(h), -1, -1), h], 1)
        h = h + self.layer1.attn(self.layer1.norm(h))
        cls, tiles = h[:, :1], h[:, 1:]
        grid = tiles.transpose(1, 2).view(len(h), -1, side, side)
        place = self.pos_layer
        grid = place.proj(grid) + grid + place.proj1(grid) + place.proj2(grid)
        h = torch.cat([cls, grid.flatten(2).transpose(1, 2)], 1)
        h = h + self.layer2.attn(self.layer2.norm(h))
        out: Tensor = self._fc2(self.norm(h)[:, 0])
        return out


def build(name: str, in_dim: int) -> nn.Module:
    """A model by its name, in train mode."""
    torch.manual_seed(0)
    if name == PEER:
        return Peer(in_dim, 2).train()
    options = dict(ARMS[name])
    attention = options.pop("attention")
    return TransMIL(attention, in_dim, 2, **options).train()  # type: ignore[arg-type]


def step(model: nn.Module, bag: Tensor) -> Step:
    """Forward and backward of one bag."""
    label = torch.zeros(1, dtype=torch.int64)

    def run() -> None:
        F.cross_entropy(model(bag), label).backward()
        model.zero_grad(set_to_none=True)

    return run


def check_equal(ours: nn.Module, theirs: nn.Module, bag: Tensor) -> None:
    """Raise unless both give the same logits and the same gradient at the features."""
    found = []
    for model in (ours, theirs):
        model.eval()
        x = bag.clone().requires_grad_()
        logits = model(x)
        logits.square().sum().backward()
        found.append((logits.detach(), x.grad))
        model.zero_grad(set_to_none=True)
        model.train()
    for mine, its in zip(*found, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-3, atol=1e-3 * its.abs().max().item())


def cpu_seconds(run: Step) -> float:
    """CPU seconds of one call."""
    start = time.process_time()
    run()
    return time.process_time() - start


def spread(values: list[float], digits: int) -> str:
    """Median and interquartile range."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def speed(args: argparse.Namespace) -> None:
    """A Markdown table of both, or of ours alone."""
    torch.set_num_threads(args.threads)
    ours = build("Nystrom, released", args.features)
    runs = {"ours": ours}
    if peer_installed():
        runs["peer"] = build(PEER, args.features)
        load_weights(ours, runs["peer"].state_dict())
    print("|tiles|isoattn, s|nystrom-attention, s|ratio|")
    print("|---|---|---|---|")
    for tiles in args.tiles:
        bag = torch.randn(1, tiles, args.features)
        if "peer" in runs:
            check_equal(ours, runs["peer"], bag)
        steps = [step(model, bag) for model in runs.values()]
        for run in steps:
            run()
        rounds = []
        gc.disable()
        for number in range(args.repeats):
            order = list(range(len(steps)))[:: -1 if number % 2 else 1]
            times = {i: cpu_seconds(steps[i]) for i in order}
            rounds.append([times[i] for i in range(len(steps))])
        gc.enable()
        columns = [spread([r[i] for r in rounds], 3) for i in range(len(steps))]
        ratio = spread([r[0] / r[1] for r in rounds], 3) if "peer" in runs else "-"
        print(f"|{tiles}|" + "|".join([*columns, *["-"] * (2 - len(columns)), ratio]) + "|")


def memory(args: argparse.Namespace) -> None:
    """A Markdown table, a child process for each model and size."""
    names = args.arms or [*LINEAR, *([PEER] if peer_installed() else [])]
    print("|arm|" + "|".join(f"{tiles} tiles, MB|CPU s" for tiles in args.tiles) + "|")
    print("|---|" + "---|" * 2 * len(args.tiles))
    for name in names:
        cells = []
        for tiles in args.tiles:
            command = [sys.executable, __file__, "one", "--arms", name, "--tiles", str(tiles)]
            command += ["--features", str(args.features), "--threads", str(args.threads)]
            out = subprocess.run(command, capture_output=True, text=True, check=False)
            if out.returncode:
                cells += [f"failed ({out.returncode})", "-"]
                sys.stderr.write(out.stderr[-2000:])
                continue
            found = json.loads(out.stdout)
            cells += [f"{found['bytes'] / 1e6:,.0f}", f"{found['seconds']:.1f}"]
        print(f"|{name}|" + "|".join(cells) + "|", flush=True)


def one(args: argparse.Namespace) -> None:
    """Peak memory and time of one step, as JSON."""
    torch.set_num_threads(args.threads)
    model = build(args.arms[0], args.features)
    step(model, torch.randn(1, 600, args.features))()  # what is loaded on first use
    bag = torch.randn(1, args.tiles[0], args.features)
    with suppress(OSError):  # Linux: start the count of the peak anew
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = peak()
    seconds = cpu_seconds(step(model, bag))
    print(json.dumps({"bytes": peak() - before, "seconds": seconds}))


def peak() -> int:
    """Peak of resident memory in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def peer_installed() -> bool:
    """Whether nystrom-attention is there."""
    return importlib.util.find_spec("nystrom_attention") is not None


def main() -> None:
    """Run a part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["speed", "memory", "one"])
    parser.add_argument("--tiles", type=int, nargs="+", default=[8800])
    parser.add_argument("--features", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--arms", nargs="+", choices=[*ARMS, PEER])
    args = parser.parse_args()
    {"speed": speed, "memory": memory, "one": one}[args.part](args)


if __name__ == "__main__":
    main()
