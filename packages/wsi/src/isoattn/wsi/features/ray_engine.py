"""Slides shared out over a Ray cluster; an optional extra, ``pip install isoattn-wsi[ray]``.

All machines see the same folders. An actor a device, or a core, extracts slide after slide.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from isoattn.wsi.features.build import build_encoder
from isoattn.wsi.features.config import ExtractOptions
from isoattn.wsi.features.extract import SlideOutcome
from isoattn.wsi.features.workers import Task, Worker, failed


def on_ray(tasks: Sequence[Task], options: ExtractOptions) -> Iterator[SlideOutcome]:
    """Outcomes as they come.

    Raises:
        ImportError: Ray is not installed.
        ValueError: the cluster has no GPU for ``device="cuda"``.
    """
    try:
        import ray
    except ImportError as error:
        raise ImportError(
            "engine='ray' needs Ray: pip install 'isoattn-wsi[ray]', or use engine='processes'"
        ) from error
    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=False)
    gpus = 1 if options.device.startswith("cuda") else 0
    resources = ray.cluster_resources()
    count = int(resources.get("GPU" if gpus else "CPU", 0))
    if count == 0:
        raise ValueError(f"The Ray cluster has no {'GPU' if gpus else 'CPU'}; it has {resources}")
    make = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=1, max_task_retries=1)(_Actor)
    actors = [make.remote(options) for _ in range(min(count, len(tasks)))]
    yield from _share_out(ray, actors, list(tasks))


class _Actor:
    """A worker in a process of Ray's; restarted once when it dies."""

    def __init__(self, options: ExtractOptions) -> None:
        self.worker = Worker(options, build_encoder(options.encoder))

    def extract(self, task: Task) -> SlideOutcome:
        return self.worker(task)


def _share_out(ray: Any, actors: list[Any], waiting: list[Task]) -> Iterator[SlideOutcome]:
    """Each actor gets its next slide when it is done with one."""
    free = list(actors)
    begun: dict[Any, tuple[Task, Any]] = {}
    while waiting or begun:
        while waiting and free:
            task, actor = waiting.pop(0), free.pop()
            begun[actor.extract.remote(task)] = task, actor
        ready, _ = ray.wait(list(begun))
        for reference in ready:
            task, actor = begun.pop(reference)
            try:
                yield ray.get(reference)
                free.append(actor)
            except ray.exceptions.RayActorError as error:
                yield failed(task, f"its process died: {type(error).__name__}")
        if waiting and not free and not begun:
            for task in waiting:
                yield failed(task, "all processes of the cluster died")
            return
