"""Time in interleaved rounds, and what the machine can do at best."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from isoattn.apps.core.methods import Run, Sizes


@dataclass
class Timed:
    """Seconds of each round by part and clock, in the order of the rounds."""

    seconds: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def of(self, part: str, clock: str) -> list[float]:
        """Of ``"forward"`` or ``"train"``, by ``"wall"`` or ``"cpu"``."""
        return self.seconds.setdefault((part, clock), [])

    def spent(self) -> float:
        """Wall seconds of all rounds so far."""
        return sum(sum(values) for (_, clock), values in self.seconds.items() if clock == "wall")


def warm_up() -> None:
    """Run gelu(tanh) once: until then float32 elu and expm1 of torch can be several times slower.

    The vectorised exponential of some builds is chosen when that operator first runs.
    """
    F.gelu(torch.randn(1000), approximate="tanh")


def synchronise(device: str) -> None:
    """Wait for the device, where it works on its own."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def clocked(call: Callable[[], object], device: str) -> tuple[float, float]:
    """Wall and processor seconds of a call."""
    synchronise(device)
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    synchronise(device)
    return time.perf_counter() - wall, time.process_time() - cpu


def train_step(run: Run, x: Tensor) -> None:
    """A forward and a backward pass; the gradient at x is thrown away."""
    x = x.detach().requires_grad_()
    out = run(x)
    torch.autograd.backward(out, torch.ones_like(out))


def forward_only(run: Run, x: Tensor) -> None:
    """A forward pass without gradients."""
    with torch.no_grad():
        run(x)


def one_round(run: Run, x: Tensor, device: str, into: Timed) -> None:
    """Time a forward pass, then a forward and backward pass."""
    steps = {"forward": forward_only, "train": train_step}
    for part, step in steps.items():
        wall, cpu = clocked(partial(step, run, x), device)
        into.of(part, "wall").append(wall)
        into.of(part, "cpu").append(cpu)


@dataclass(frozen=True)
class Peaks:
    """What the machine reaches in the dtype of the benchmark.

    Args:
        flops: a second, of a square matrix product.
        bytes: a second, read and written, of a copy that no cache holds.
    """

    flops: float
    bytes: float

    def bound(self, flops: int, data: int) -> float:
        """Seconds below which no call with these FLOPs and bytes can stay (roofline)."""
        return max(flops / self.flops, data / self.bytes)


def machine_peaks(sizes: Sizes, *, side: int = 1024, numbers: int = 2**25) -> Peaks:
    """Measure both, each as the fastest of seven."""
    device, dtype = sizes.device, sizes.torch_dtype
    if device.startswith("cuda"):
        side, numbers = 4 * side, 8 * numbers
    a = torch.randn(side, side, device=device).to(dtype)
    b, c = a.clone(), torch.empty_like(a)
    source = torch.ones(numbers, device=device, dtype=dtype)
    target = torch.zeros_like(source)

    def fastest(call: Callable[[], object]) -> float:
        call()
        return min(clocked(call, device)[0] for _ in range(7))

    gemm = fastest(lambda: torch.mm(a, b, out=c))
    copy = fastest(lambda: target.copy_(source))
    return Peaks(2 * side**3 / gemm, 2 * numbers * dtype.itemsize / copy)


def spread(values: list[float]) -> float | None:
    """Interquartile range; None for fewer than four, which show none."""
    if len(values) < 4:
        return None
    low, _, high = statistics.quantiles(values, n=4)
    return high - low
