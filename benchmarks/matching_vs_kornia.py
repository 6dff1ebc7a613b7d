"""LoFTR, ours against kornia's with the same weights; and what softmax training takes.

    pip install --no-deps kornia kornia-rs            # optional: without it ours runs alone
    python benchmarks/matching_vs_kornia.py speed --sizes 240x320 480x640
    python benchmarks/matching_vs_kornia.py memory --sizes 480x640
    python benchmarks/matching_vs_kornia.py train --sizes 240x320

``speed``: one pair in evaluation mode, in turn (A B A B ...), after a check that both give the same
confidences. ``coarse`` is matching on the 8-pixel grid, for which kornia's backbone makes its map
at 1/2 as well; ``whole`` adds the refinement of all mutual nearest neighbours, which is more than a
threshold would leave. Times are CPU seconds of this process; the ratio is taken pair by pair (below
1: ours is faster). ``memory``: what one such call adds to the peak of resident memory, each in a
process of its own. ``train``: peak memory and time of one training step of the coarse transformer
on a padded batch, by attention, with the einsum form in which LoFTR released softmax.
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
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from isoattn.core import Attention, Capability, Cost, Linear, Shape, Softmax
from isoattn.matching import Matcher, load_weights, make_matcher
from isoattn.matching.models import PairTransformer
from isoattn.matching.models.transformer import alternating

Step = Callable[[], object]
Size = tuple[int, int]

PARTS = ("coarse", "whole")


class ReleasedSoftmax(Attention):
    """Softmax as LoFTR released it: einsum over (B, N, H, D), weights (B, N, M, H) kept."""

    capability = Capability(cross=True)

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, causal: bool
    ) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        logits = torch.einsum("bnhd,bmhd->bnmh", q, k)
        if key_mask is not None:
            logits = logits.masked_fill(~key_mask[:, None, :, None], -torch.inf)
        weights = (logits / self.head_dim**0.5).softmax(2)
        return torch.einsum("bnmh,bmhd->bnhd", weights, v).transpose(1, 2)

    def cost(self, shape: Shape, *, causal: bool = False) -> Cost:
        """Not used here."""
        raise NotImplementedError


ARMS: dict[str, Any] = {"Linear": Linear, "Softmax": Softmax, "softmax, einsum": ReleasedSoftmax}


def peer_installed() -> bool:
    """Whether kornia can be imported."""
    return importlib.util.find_spec("kornia") is not None


def ours() -> Matcher:
    """The published size in evaluation mode, with kornia's weights where it is installed."""
    torch.manual_seed(0)
    model = make_matcher("loftr", partial(Linear, eps=1e-6), pe="released", threshold=0.0).eval()
    if peer_installed():
        load_weights(model, peer().state_dict(), pe="released")
    return model


def peer() -> Any:
    """Kornia's LoFTR with random weights in evaluation mode."""
    from kornia.feature.loftr.loftr import LoFTR

    torch.manual_seed(1)
    model = LoFTR(None).eval()
    model.coarse_matching.thr = 0.0
    return model


def pair(size: Size) -> tuple[Tensor, Tensor]:
    """Two images that have much in common."""
    generator = torch.Generator().manual_seed(0)
    image0, image1 = torch.rand(2, 1, 1, *size, generator=generator)
    return image0, 0.7 * image0 + 0.3 * image1


def their_coarse(model: Any, image0: Tensor, image1: Tensor) -> dict[str, Any]:
    """Kornia's steps up to the matched cells; its forward has no way to stop there."""
    features = model.extract_features(torch.cat([image0, image1]))["coarse"]
    tokens = [x.permute(0, 2, 3, 1).flatten(1, 2).contiguous() for x in features.chunk(2)]
    grid = features.shape[2:]
    data: dict[str, Any] = {"hw0_c": grid, "hw1_c": grid, "stride_c": 8}
    model.coarse_matching(*model.loftr_coarse(*tokens), data)
    return data


def calls(name: str, size: Size) -> dict[str, Step]:
    """What is measured of a model, by part."""
    image0, image1 = pair(size)
    if name == "kornia":
        model = peer()
        return {
            "coarse": lambda: their_coarse(model, image0, image1),
            "whole": lambda: model({"image0": image0, "image1": image1}),
        }
    mine = ours()
    return {
        "coarse": lambda: mine(image0, image1, fine=False),
        "whole": lambda: mine(image0, image1),
    }


def check_equal(size: Size = (64, 96)) -> None:
    """Raise unless both give the same confidences."""
    mine, theirs = ours(), peer()
    image0, image1 = pair(size)
    want = their_coarse(theirs, image0, image1)["conf_matrix"]
    x0, x1 = mine.attend(*mine.features_of_pair(image0, image1))
    torch.testing.assert_close(mine.log_confidence(x0, x1).exp(), want, rtol=0, atol=1e-5)


def cpu_seconds(run: Step) -> float:
    """CPU seconds of one call."""
    start = time.process_time()
    run()
    return time.process_time() - start


def spread(values: list[float], digits: int) -> str:
    """Median and interquartile range."""
    if len(values) < 2:
        return f"{values[0]:.{digits}f}"
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def interleaved(steps: list[Step], repeats: int) -> list[list[float]]:
    """Seconds of each step in each round; who goes first alternates."""
    for run in steps:
        run()
    rounds = []
    gc.disable()
    for number in range(repeats):
        order = list(range(len(steps)))[:: -1 if number % 2 else 1]
        times = {i: cpu_seconds(steps[i]) for i in order}
        rounds.append([times[i] for i in range(len(steps))])
    gc.enable()
    return rounds


@torch.no_grad()
def speed(args: argparse.Namespace) -> None:
    """A Markdown table of both, or of ours alone."""
    torch.set_num_threads(args.threads)
    F.gelu(torch.randn(1000), approximate="tanh")  # until then elu can be several times slower
    names = ["isoattn", "kornia"] if peer_installed() else ["isoattn"]
    if peer_installed():
        check_equal()
    print("|size|part|isoattn, s|kornia, s|ratio|")
    print("|---|---|---|---|---|")
    for size in args.sizes:
        runs = [calls(name, size) for name in names]
        for part in PARTS:
            rounds = interleaved([run[part] for run in runs], args.repeats)
            columns = [spread([r[i] for r in rounds], 2) for i in range(len(names))]
            ratio = spread([r[0] / r[1] for r in rounds], 3) if len(names) == 2 else "-"
            cells = [_shown(size), part, *columns, *["-"] * (2 - len(columns)), ratio]
            print("|" + "|".join(cells) + "|", flush=True)


def memory(args: argparse.Namespace) -> None:
    """A Markdown table, a child process for each model and size."""
    names = ["isoattn", "kornia"] if peer_installed() else ["isoattn"]
    print("|size|part|" + "|".join(f"{name}, MB" for name in names) + "|")
    print("|---|---|" + "---|" * len(names))
    for size in args.sizes:
        for part in PARTS:
            cells = [_child(args, "call", name, size, part) for name in names]
            print(f"|{_shown(size)}|{part}|" + "|".join(c[0] for c in cells) + "|", flush=True)


def train(args: argparse.Namespace) -> None:
    """A Markdown table, a child process for each attention and size."""
    print("|size|attention|MB above the start|CPU s|gradients|")
    print("|---|---|---|---|---|")
    for size in args.sizes:
        for name in args.arms or ARMS:
            print(
                f"|{_shown(size)}|{name}|" + "|".join(_child(args, "step", name, size, "-")) + "|"
            )


def training_step(name: str, size: Size) -> Callable[[], str]:
    """Forward and backward of the coarse transformer on two pairs, of which one is padded."""
    torch.manual_seed(0)
    layers = alternating(8)
    model = PairTransformer([ARMS[name]] * 8, 256, 8, layers)
    grid = (size[0] // 8, size[1] // 8)
    tokens = torch.randn(2, 2, grid[0] * grid[1], 256)
    mask = torch.ones(2, *grid, dtype=torch.bool)
    mask[1, 3 * grid[0] // 4 :] = False

    def run() -> str:
        out0, out1 = model(*tokens, mask.flatten(1), mask.flatten(1))
        (out0.square().mean() + out1.square().mean()).backward()
        finite = all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        return "finite" if finite else "NaN"

    return run


def child(args: argparse.Namespace) -> None:
    """Peak memory and time of one call or step, as JSON."""
    torch.set_num_threads(args.threads)
    name, size = args.arms[0], args.sizes[0]
    if args.kind == "step":
        small, run = training_step(name, (16, 16)), training_step(name, size)
    else:
        torch.set_grad_enabled(False)
        small, run = calls(name, (32, 32))[args.part], calls(name, size)[args.part]
    small()  # what is loaded on first use is not the call's
    with suppress(OSError):  # Linux: start the count of the peak anew
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = _peak()
    start = time.process_time()
    said = run()
    seconds = time.process_time() - start
    found = {"bytes": _peak() - before, "seconds": seconds}
    print(json.dumps({**found, "said": said if isinstance(said, str) else ""}))


def _child(args: argparse.Namespace, kind: str, name: str, size: Size, part: str) -> list[str]:
    command = [sys.executable, __file__, "child", "--arms", name, "--sizes", _shown(size)]
    command += ["--kind", kind, "--part", part, "--threads", str(args.threads)]
    out = subprocess.run(command, capture_output=True, text=True, check=False)
    if out.returncode:
        sys.stderr.write(out.stderr[-2000:])
        return [f"failed ({out.returncode})", "-", "-"]
    found = json.loads(out.stdout)
    return [f"{found['bytes'] / 1e6:,.0f}", f"{found['seconds']:.1f}", found["said"]]


def _peak() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _size(text: str) -> Size:
    height, width = text.split("x")
    return int(height), int(width)


def _shown(size: Size) -> str:
    return f"{size[0]}x{size[1]}"


def main() -> None:
    """Run what is named."""
    commands = {"speed": speed, "memory": memory, "train": train, "child": child}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=commands)
    parser.add_argument("--sizes", type=_size, nargs="+", default=[(240, 320)])
    parser.add_argument("--arms", nargs="*", default=[])
    parser.add_argument("--kind", choices=["call", "step"], default="call")
    parser.add_argument("--part", default="coarse")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    commands[args.command](args)


if __name__ == "__main__":
    main()
