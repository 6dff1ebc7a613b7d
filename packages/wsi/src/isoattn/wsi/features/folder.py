"""Many slides: skipped where done, shared out over processes, none lost when one of them dies."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from isoattn.wsi.features.build import build_encoder
from isoattn.wsi.features.config import ExtractOptions
from isoattn.wsi.features.extract import SlideOutcome, pick_device
from isoattn.wsi.features.files import remove_stale
from isoattn.wsi.features.workers import Task, Worker, in_processes
from isoattn.wsi.slides import find_slides, slide_name
from isoattn.wsi.slides.discover import SUFFIXES

Progress = Callable[[SlideOutcome, int, int], None]
"""Called after each slide with its outcome, the number of slides finished, and of all slides."""


@dataclass(frozen=True)
class ExtractReport:
    """What became of all slides.

    Args:
        outcomes: one a slide, in the order of the slides.
        seconds: wall time of everything, loading the encoder included.
    """

    outcomes: tuple[SlideOutcome, ...]
    seconds: float

    def of(self, status: Literal["done", "skipped", "failed"]) -> list[SlideOutcome]:
        """The outcomes of a kind."""
        return [outcome for outcome in self.outcomes if outcome.status == status]

    @property
    def tiles(self) -> int:
        """Tiles encoded now."""
        return sum(outcome.tiles for outcome in self.outcomes)

    @property
    def tiles_per_second(self) -> float:
        """Tiles read and encoded per second of wall time; 0 where nothing was."""
        return self.tiles / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        done, skipped, failed = (len(self.of(s)) for s in ("done", "skipped", "failed"))
        damaged = sum(outcome.damaged for outcome in self.outcomes)
        lines = [
            f"{done} slides done, {skipped} skipped, {failed} failed; {self.tiles} tiles in "
            f"{self.seconds:.1f} s, {self.tiles_per_second:.0f} tiles/s; {damaged} damaged tiles"
        ]
        lines += [f"  failed: {o.slide}: {o.error}" for o in self.of("failed")]
        return "\n".join(lines)


def extract_slides(
    source: str | Path | Sequence[str | Path],
    folder: str | Path,
    options: ExtractOptions = ExtractOptions(),  # noqa: B008 - frozen
    *,
    jobs: int = 1,
    engine: Literal["processes", "ray"] = "processes",
    mpp_overrides: Mapping[str, float] | None = None,
    progress: Progress | None = None,
) -> ExtractReport:
    """Extract the features of slides; run it again to go on where it stopped.

    A slide that cannot be done is an outcome with its reason, not the end. Finished files whose
    configuration is another are done again. Each slide's file appears when it is complete.

    Args:
        source: a folder of slides, a slide, or several of them.
        folder: for the features; see :func:`isoattn.wsi.features.extract.extract_slide`.
        options: of the extraction.
        jobs: processes (``spawn``: a script that calls this needs ``if __name__ == "__main__"``),
            each with an encoder of its own and one slide at a time; 1: this process.
        engine: ``ray``: a task a slide on the Ray cluster that is connected, or on this machine.
        mpp_overrides: micrometres per pixel by slide name; see :func:`read_mpp_table`.
        progress: called after each slide.

    Raises:
        EncoderError: the encoder cannot be built.
        ValueError: there is no such device.
        UnreadableSlide: there are no slides, or two have the same name.

    Example:
        >>> report = extract_slides("slides", "features", jobs=2)
        >>> print(report)
        48 slides done, 0 skipped, 0 failed; ...
    """
    if jobs < 1:
        raise ValueError(f"jobs is 1 or more, got {jobs}")
    start = time.perf_counter()
    if engine == "processes":
        pick_device(options.device, 0)  # said here, for in a worker it would look like a crash
    slides = find_slides(source)
    overrides = mpp_overrides or {}
    unknown = sorted(set(overrides) - {slide_name(path) for path in slides})
    if unknown:
        raise ValueError(
            f"mpp_overrides names {len(unknown)} slide(s) that are not there, such as "
            f"{unknown[0]!r}"
        )
    folder = Path(folder)
    for part in ("features", "patches"):
        remove_stale(folder / part)
    tasks = [
        Task(path, folder, overrides.get(slide_name(path), options.mpp_override)) for path in slides
    ]
    finished: dict[Path, SlideOutcome] = {}
    for outcome in _run(tasks, options, min(jobs, len(tasks)), engine):
        finished[Path(outcome.source)] = outcome
        if progress is not None:
            progress(outcome, len(finished), len(tasks))
    return ExtractReport(tuple(finished[path] for path in slides), time.perf_counter() - start)


def _run(
    tasks: Sequence[Task], options: ExtractOptions, jobs: int, engine: Literal["processes", "ray"]
) -> Iterator[SlideOutcome]:
    if engine == "ray":
        from isoattn.wsi.features.ray_engine import on_ray

        yield from on_ray(tasks, options)
    elif jobs == 1:
        worker = Worker(options, build_encoder(options.encoder))
        yield from map(worker, tasks)
    else:
        facts = build_encoder(options.encoder).facts()  # fails here, once, if it must
        yield from in_processes(tasks, options, facts, jobs)


def read_mpp_table(path: str | Path) -> dict[str, float]:
    """Pixel sizes from a CSV with the columns ``slide`` (name or file name) and ``mpp``.

    Raises:
        ValueError: other columns, or an mpp that is no number.
    """
    path = Path(path)
    with path.open(newline="", encoding="utf-8") as stream:
        reader = csv.DictReader(stream)
        if not {"slide", "mpp"} <= set(reader.fieldnames or []):
            raise ValueError(f"{path} needs the columns slide and mpp, got {reader.fieldnames}")
        table: dict[str, float] = {}
        for line, row in enumerate(reader, start=2):
            try:
                file = Path(row["slide"])
                known = file.suffix.lower() in SUFFIXES
                table[slide_name(file) if known else file.name] = float(row["mpp"])
            except ValueError as error:
                raise ValueError(
                    f"{path}, line {line}: mpp is a number such as 0.5, got {row['mpp']!r}"
                ) from error
    return table
