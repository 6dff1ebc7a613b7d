"""Training step of XCiT: ours on CrossCovariance against timm's, with the same weights.

Both run forward and backward in train mode on the same image, in turn (A B A B ...), after a
check that they give the same logits and gradients. Times are CPU seconds of this process, which
other programs on the machine disturb less than the clock on the wall does.

    python benchmarks/vision_xcit_vs_timm.py --variant nano_12_p16 --sizes 224 448
"""

from __future__ import annotations

import argparse
import gc
import itertools
import statistics
import time
from collections.abc import Callable

import timm
import torch
from torch import Tensor, nn

from isoattn.vision import xcit

Step = Callable[[], None]


def twins(variant: str) -> tuple[nn.Module, nn.Module]:
    """Ours and timm's model with equal weights, in train mode."""
    torch.manual_seed(0)
    theirs = timm.create_model(f"xcit_{variant}_224")
    ours = xcit(variant)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    return ours.train(), theirs.train()


def check_equal(ours: nn.Module, theirs: nn.Module, image: Tensor) -> None:
    """Raise unless both give the same logits and the same gradient at the image.

    On two images at least: for a batch of one torch 2.14's BatchNorm gives timm's stem a wrong
    gradient on the CPU (a batch stride that it misreads).
    """
    image = torch.cat([image, image.flip(-1)])
    found = []
    for model in (ours, theirs):
        pixels = image.clone().requires_grad_()
        logits = model(pixels)
        logits.square().sum().backward()
        found.append((logits.detach(), pixels.grad))
        model.zero_grad(set_to_none=True)
    for mine, its in zip(*found, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-4 * its.abs().max().item())


def step(model: nn.Module, image: Tensor) -> Step:
    """Forward and backward of one batch."""

    def run() -> None:
        model(image).square().sum().backward()
        model.zero_grad(set_to_none=True)

    return run


def cpu_seconds(run: Step) -> float:
    """CPU seconds of one call."""
    start = time.process_time()
    run()
    return time.process_time() - start


def interleaved(first: Step, second: Step, repeats: int, warm_up: int) -> list[tuple[float, float]]:
    """Times of both, in turn; who goes first alternates."""
    for _ in range(warm_up):
        first(), second()
    pairs = []
    gc.disable()
    for index in range(repeats):
        if index % 2:
            b, a = cpu_seconds(second), cpu_seconds(first)
        else:
            a, b = cpu_seconds(first), cpu_seconds(second)
        pairs.append((a, b))
    gc.enable()
    return pairs


def spread(values: list[float], digits: int) -> str:
    """Median and interquartile range."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--variant", default="nano_12_p16")
    parser.add_argument("--sizes", type=int, nargs="+", default=[224, 448])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--warm-up", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    ours, theirs = twins(args.variant)
    print("|model|batch|pixels|tokens|isoattn, s|timm, s|ratio|")
    print("|---|---|---|---|---|---|---|")
    for batch, size in itertools.product(args.batches, args.sizes):
        image = torch.randn(batch, 3, size, size)
        check_equal(ours, theirs, image)
        pairs = interleaved(step(ours, image), step(theirs, image), args.repeats, args.warm_up)
        mine, its = [a for a, _ in pairs], [b for _, b in pairs]
        ratios = [a / b for a, b in pairs]
        cells = (args.variant, batch, size, ours.tokens(size))
        times = (spread(mine, 4), spread(its, 4), spread(ratios, 3))
        print("|" + "|".join(map(str, cells + times)) + "|", flush=True)


if __name__ == "__main__":
    main()
