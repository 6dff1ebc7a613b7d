"""``isoattn wsi tile``: which tiles of each slide would be read, before anything is encoded."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isoattn.apps.base.errors import UserError
from isoattn.apps.core.arguments import Parser
from isoattn.apps.core.progress import progress
from isoattn.apps.wsi.slide_options import (
    add_slide_options,
    overrides_of,
    tiling_of,
    tissue_of,
    with_option_names,
)

SHOWN = 8
"""Slides that are listed one by one, failed ones first."""

_DESCRIPTION = """\
Tissue and tiles of each slide: patches/ID_patches.h5 with the coordinates (TRIDENT's layout) and
overlays/ID.png to look at. isoattn wsi encode does the same and the features; look here first.

  isoattn wsi tile SLIDES --out tiles
  isoattn wsi tile SLIDES --out tiles --mpp 1.0 --tile 224 --min_tissue 0.3 --jobs 8
  isoattn wsi tile scan.tif --out tiles --mpp_override 0.25     a slide that does not say its mpp

Tiles have an exact size in micrometres: the next finer level is read and resampled.
"""


@dataclass(frozen=True)
class Listed:
    """What became of a slide.

    Args:
        slide: its name.
        tiles: listed; 0 where it failed.
        error: why.
    """

    slide: str
    tiles: int = 0
    error: str = ""


def run_tile(argv: list[str]) -> int:
    """Run ``isoattn wsi tile``; returns the exit status: 1 where a slide failed."""
    parser = Parser("isoattn wsi tile", _DESCRIPTION)
    add_slide_options(parser)
    options = parser.parse_args(argv)
    from isoattn.wsi.slides import UnreadableSlide, find_slides, slide_name

    try:
        slides = find_slides(options.slides)
    except UnreadableSlide as error:
        raise UserError(str(error)) from error
    tables = overrides_of(options)
    tiling, tissue = tiling_of(options), tissue_of(options)
    tasks = [
        (path, options.out, tables.get(slide_name(path), options.mpp_override), tiling, tissue)
        for path in slides
    ]
    start = time.perf_counter()
    found = []
    with progress(len(tasks)) as advance:
        for listed in _listed(tasks, min(options.jobs, len(tasks))):
            found.append(listed)
            advance(listed.slide)
    _say(found, time.perf_counter() - start)
    sys.stdout.write(f"written {options.out}: patches/, overlays/\n")
    return 1 if any(listed.error for listed in found) else 0


def list_tiles(task: tuple[Path, Path, float | None, Any, Any]) -> Listed:
    """List the tiles of one slide and draw them; what is wrong with the slide is an outcome."""
    from isoattn.wsi.features.formats import write_coords
    from isoattn.wsi.slides import Slide, SlideError, find_tissue, save_overlay, tile_slide

    path, folder, override, tiling, options = task
    tissue = grid = None
    with Slide(path, mpp_override=override) as slide:
        try:
            tissue = find_tissue(slide, options)
            grid = tile_slide(slide, tissue, tiling)
            write_coords(folder / "patches" / f"{slide.name}_patches.h5", slide, grid)
        except (SlideError, OSError) as error:
            return Listed(slide.name, error=str(error))
        finally:
            if tissue is not None:  # a slide that fails is the one whose picture is needed
                save_overlay(folder / "overlays" / f"{slide.name}.png", tissue, grid)
        return Listed(slide.name, len(grid))


def _listed(tasks: Sequence[Any], jobs: int) -> Iterator[Listed]:
    if jobs == 1:
        yield from map(list_tiles, tasks)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(list_tiles, tasks)


def _say(found: Sequence[Listed], seconds: float) -> None:
    failed = [listed for listed in found if listed.error]
    good = [listed for listed in found if not listed.error]
    tiles = sum(listed.tiles for listed in good)
    sys.stdout.write(
        f"{len(good)} slides tiled, {len(failed)} failed; {tiles:,} tiles in {seconds:.1f} s\n"
    )
    for listed in failed[:SHOWN]:
        sys.stderr.write(f"  failed: {listed.slide}: {with_option_names(listed.error)}\n")
    for listed in good[: SHOWN - len(failed[:SHOWN])]:
        sys.stdout.write(f"  {listed.slide}: {listed.tiles:,} tiles\n")
    left = len(found) - min(len(found), SHOWN)
    if left:
        sys.stdout.write(f"  and {left} more\n")
