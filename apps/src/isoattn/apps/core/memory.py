"""Peak memory of one call, in a process of its own: what it takes above its inputs."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import torch

from isoattn.apps.base.peak import forget_peak, resident_peak
from isoattn.apps.core.arguments import import_modules
from isoattn.apps.core.methods import Method, Sizes
from isoattn.apps.core.timing import forward_only, train_step


class ChildDiedError(RuntimeError):
    """The child process ended before it could say anything."""


def peak_bytes(
    method: Method, sizes: Sizes, *, train: bool, threads: int, imports: Sequence[str] = ()
) -> int:
    """Peak memory above what was there before the call: outputs, intermediates, gradients.

    On the CPU the peak of the resident set, on CUDA that of torch's allocator.

    Raises:
        ChildDiedError: the child died, most likely for want of memory.
    """
    kinds = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in kinds else "spawn")
    if "forkserver" in kinds:
        context.set_forkserver_preload([__name__])  # torch is imported once for all children
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            return pool.submit(_peak, method, sizes, train, threads, tuple(imports)).result()
        except BrokenProcessPool as error:
            raise ChildDiedError("the process died, most likely for want of memory") from error


def _peak(method: Method, sizes: Sizes, train: bool, threads: int, imports: Sequence[str]) -> int:
    torch.set_num_threads(threads)
    import_modules(imports)
    step = train_step if train else forward_only
    small = sizes.at(min(64, sizes.tokens))
    step(method.build(small), small.x())  # what is loaded on first use is not the call's
    run, x = method.build(sizes), sizes.x()
    if sizes.device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(sizes.device)
        before = torch.cuda.memory_allocated(sizes.device)
        step(run, x)
        return int(torch.cuda.max_memory_allocated(sizes.device) - before)
    forget_peak()
    before = resident_peak()
    step(run, x)
    return max(0, resident_peak() - before)
