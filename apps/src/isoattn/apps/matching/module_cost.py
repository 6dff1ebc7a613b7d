"""What the modules of a matcher take over resolution: time and peak memory, by attention.

Times are processor seconds of one pair in evaluation mode, in interleaved rounds. The backbone and
the comparison of cells do not depend on the attention and are measured once a round.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

import torch

from isoattn.apps.base.crossover import Crossover, crossover
from isoattn.apps.base.peak import forget_peak, resident_peak
from isoattn.apps.core.timing import warm_up
from isoattn.core import attention_factory
from isoattn.core.factories import Spec
from isoattn.matching.models import ImageFeatures, Matcher, attention_calls, make_matcher

ImageSize = tuple[int, int]
NOISE = 0.05
"""Times that differ by less than this share count as equal."""


@dataclass(frozen=True)
class ModuleCost:
    """One attention at one size; seconds are medians, of both images of a pair.

    Args:
        attention: its label.
        size: (H, W) of both images.
        tokens: cells of one image.
        backbone: to the map at 1/8, and to that at 1/2 where the matcher has a fine part.
        transformer: of the coarse layers.
        cells: dual softmax and mutual nearest neighbours.
        fine: refinement of all mutual nearest neighbours; 0 without a fine part.
        peak_bytes: what matching a pair adds to the resident memory of a fresh process; ``None``:
            not measured.
        attention_flops: of the coarse attention alone, closed form.
    """

    attention: str
    size: ImageSize
    tokens: int
    backbone: float
    transformer: float
    cells: float
    fine: float
    peak_bytes: int | None
    attention_flops: int

    @property
    def total(self) -> float:
        """Seconds of all modules."""
        return self.backbone + self.transformer + self.cells + self.fine


def build_matcher(variant: str, spec: Spec | None = None) -> Matcher:
    """A matcher of a named size with random weights, in evaluation mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        matcher = make_matcher(variant, attention_factory(spec or "Linear"))
    return matcher.eval()


def measure_size(
    variant: str,
    attentions: dict[str, Spec],
    size: ImageSize,
    *,
    repeats: int,
    memory: bool = True,
) -> list[ModuleCost]:
    """Time every attention at one size, in turn (A B A B ...), after one round that does not count.

    Args:
        variant: of :func:`isoattn.matching.make_matcher`.
        attentions: label -> what is measured.
        size: (H, W) of both images.
        repeats: rounds.
        memory: also the peak, in a process an attention.
    """
    warm_up()
    matchers = {label: build_matcher(variant, spec) for label, spec in attentions.items()}
    generator = torch.Generator().manual_seed(0)
    pair = [torch.rand(1, 1, *size, generator=generator) for _ in range(2)]
    seconds: dict[tuple[str, str], list[float]] = {}
    for round_ in range(repeats + 1):
        for label, times in one_round(matchers, pair).items():
            for part, value in times.items():
                if round_:
                    seconds.setdefault((label, part), []).append(value)
    found = []
    for label, matcher in matchers.items():
        calls = attention_calls(matcher, size, size)
        middle = {
            part: statistics.median(seconds[label if part == "transformer" else "", part])
            for part in ("backbone", "transformer", "cells", "fine")
        }
        found.append(
            ModuleCost(
                label,
                size,
                calls[0][2].queries,
                **middle,
                peak_bytes=peak(variant, attentions[label], size) if memory else None,
                attention_flops=sum(core.cost(shape).forward_flops for _, core, shape in calls),
            )
        )
    return found


@torch.no_grad()
def one_round(
    matchers: dict[str, Matcher], pair: Sequence[torch.Tensor]
) -> dict[str, dict[str, float]]:
    """Seconds of the parts that all share under ``""``, and of each transformer by its label."""
    first = next(iter(matchers.values()))
    shared: dict[str, float] = {"fine": 0.0}
    features, shared["backbone"] = _clocked(lambda: first.features_of_pair(*pair))
    times: dict[str, dict[str, float]] = {"": shared}
    attended: tuple[ImageFeatures, ImageFeatures] = features
    for label, matcher in matchers.items():
        attended, took = _clocked(lambda matcher=matcher: matcher.attend(*features))
        times[label] = {"transformer": took}
    cells, shared["cells"] = _clocked(lambda: first.coarse_matches(*attended, threshold=0.0))
    if first.has_fine:
        _, shared["fine"] = _clocked(lambda: first.refine(*attended, cells))
    return times


def _clocked(call: Callable[..., Any]) -> tuple[Any, float]:
    start = time.process_time()
    result = call()
    return result, time.process_time() - start


def peak(variant: str, spec: Spec, size: ImageSize) -> int | None:
    """Bytes that matching a pair adds in a fresh process; None where that process was lost."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            return pool.submit(_peak, variant, spec, size).result()
        except BrokenProcessPool:  # most likely for want of memory
            return None


@torch.no_grad()
def _peak(variant: str, spec: Spec, size: ImageSize) -> int:
    torch.set_num_threads(1)
    matcher = build_matcher(variant, spec)
    matcher(torch.rand(1, 1, 32, 32), torch.rand(1, 1, 32, 32), threshold=0.0)  # first uses
    pair = torch.rand(1, 1, *size), torch.rand(1, 1, *size)
    forget_peak()
    before = resident_peak()
    matcher(*pair, threshold=0.0)
    return max(0, resident_peak() - before)


def crossings(costs: Sequence[ModuleCost], label: str, baseline: str) -> dict[str, Crossover]:
    """From how many tokens on an attention is cheaper than the baseline, by transformer and whole.

    Args:
        costs: of both, at the same sizes.
        label: the attention.
        baseline: the other one.
    """
    own = {cost.tokens: cost for cost in costs if cost.attention == label}
    other = {cost.tokens: cost for cost in costs if cost.attention == baseline}
    tokens = sorted(own.keys() & other.keys())
    parts: dict[str, Callable[[ModuleCost], float]] = {
        "transformer": lambda cost: cost.transformer,
        "whole": lambda cost: cost.total,
    }
    return {
        part: crossover(tokens, [of(own[n]) / of(other[n]) for n in tokens], level=NOISE)
        for part, of in parts.items()
    }
