"""Slides shared out over spawned processes.

A process that dies (a decoder that crashes on a damaged file takes the interpreter with it) costs
nothing but its slide: those that were in work are tried once more, each alone, and the one that
kills its process again has failed.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from isoattn.wsi.features.build import build_encoder
from isoattn.wsi.features.config import ExtractOptions
from isoattn.wsi.features.encoder import Encoder
from isoattn.wsi.features.extract import SlideOutcome, extract_slide, pick_device
from isoattn.wsi.slides import Slide, SlideError, slide_name


@dataclass(frozen=True)
class Task:
    """One slide to extract.

    Args:
        path: of the slide.
        folder: for the features.
        mpp_override: of this slide.
    """

    path: Path
    folder: Path
    mpp_override: float | None = None


class Worker:
    """Extracts slide after slide with one encoder.

    Args:
        options: of the extraction.
        encoder: any; it is moved to the device.
        facts: of the encoder, where they are known.
        number: of the worker, which decides its device.
    """

    def __init__(
        self,
        options: ExtractOptions,
        encoder: Encoder,
        facts: dict[str, Any] | None = None,
        number: int = 0,
    ) -> None:
        self.options = options
        self.facts = facts or encoder.facts()
        self.encoder = encoder.to(pick_device(options.device, number))

    def __call__(self, task: Task) -> SlideOutcome:
        """The outcome of a slide; what is wrong with a slide is an outcome too."""
        slide = Slide(task.path, mpp_override=task.mpp_override)
        try:
            return extract_slide(
                slide, task.folder, self.encoder, self.options, encoder_facts=self.facts
            )
        except (SlideError, OSError) as error:
            return failed(task, f"{type(error).__name__}: {error}")
        finally:
            slide.close()


def failed(task: Task, reason: str) -> SlideOutcome:
    """The outcome of a slide that could not be done."""
    return SlideOutcome(slide_name(task.path), str(task.path), "failed", error=reason)


_worker: Worker | None = None


def _start(options: ExtractOptions, facts: dict[str, Any], threads: int, numbers: Any) -> None:
    """Build the encoder, once a process."""
    global _worker
    torch.set_num_threads(threads)
    _worker = Worker(options, build_encoder(options.encoder), facts, numbers.get())


def _extract(task: Task) -> SlideOutcome:
    assert _worker is not None
    return _worker(task)


def in_processes(
    tasks: Sequence[Task], options: ExtractOptions, facts: dict[str, Any], jobs: int
) -> Iterator[SlideOutcome]:
    """Outcomes as they come.

    Args:
        tasks: the slides.
        options: of the extraction.
        facts: of the encoder.
        jobs: processes.
    """
    waiting = list(tasks)
    while waiting:
        in_work: list[Task] = []
        yield from _until_broken(waiting, in_work, options, facts, jobs)
        for task in in_work:
            alone, again = [task], list[Task]()
            yield from _until_broken(alone, again, options, facts, 1)
            if again:
                yield failed(task, "its process died twice; the file is probably damaged")


def _until_broken(
    waiting: list[Task],
    in_work: list[Task],
    options: ExtractOptions,
    facts: dict[str, Any],
    jobs: int,
) -> Iterator[SlideOutcome]:
    """Take tasks off ``waiting`` until none is left, or a process dies; then ``in_work`` has those
    that were begun. No more are handed out than there are processes, so that these are few.
    """
    context = multiprocessing.get_context("spawn")
    numbers = context.SimpleQueue()
    for number in range(jobs):
        numbers.put(number)
    threads = max(1, torch.get_num_threads() // jobs)
    begun: dict[Future[SlideOutcome], Task] = {}
    with ProcessPoolExecutor(jobs, context, _start, (options, facts, threads, numbers)) as pool:
        try:
            while waiting or begun:
                while waiting and len(begun) < jobs:
                    task = waiting.pop(0)
                    begun[pool.submit(_extract, task)] = task
                ready, _ = wait(begun, return_when=FIRST_COMPLETED)
                for future in ready:
                    outcome = future.result()
                    del begun[future]
                    yield outcome
        except BrokenProcessPool:
            in_work.extend(begun.values())
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
