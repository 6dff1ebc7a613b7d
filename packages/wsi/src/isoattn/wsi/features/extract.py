"""From a slide to its file of features: tissue, tiles, batches through the encoder."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from isoattn.wsi.features.config import ExtractOptions, configuration, configuration_hash
from isoattn.wsi.features.encoder import Encoder
from isoattn.wsi.features.formats import stored_hash, write_coords, write_features
from isoattn.wsi.features.tile_dataset import DAMAGED, OK, TileDataset, tile_loader
from isoattn.wsi.slides import (
    DamagedSlide,
    NoTissue,
    Slide,
    TileGrid,
    find_tissue,
    save_overlay,
    tile_slide,
)


@dataclass(frozen=True)
class SlideOutcome:
    """What became of a slide.

    Args:
        slide: its name.
        source: its file.
        status: ``done``; ``skipped``: the file was there with the same configuration; ``failed``.
        path: of the features, where there are any.
        tiles: with features.
        damaged: tiles that could not be read.
        seconds: it took.
        error: why it failed.
    """

    slide: str
    source: str
    status: Literal["done", "skipped", "failed"]
    path: str | None = None
    tiles: int = 0
    damaged: int = 0
    seconds: float = 0.0
    error: str | None = None


def features_path(folder: Path, name: str) -> Path:
    """Where a slide's features are: ``FOLDER/features/NAME.h5``."""
    return folder / "features" / f"{name}.h5"


def extract_slide(
    slide: Slide,
    folder: Path,
    encoder: Encoder,
    options: ExtractOptions,
    *,
    encoder_facts: dict[str, Any] | None = None,
) -> SlideOutcome:
    """Extract one slide, unless its file is there with the same configuration.

    Args:
        slide: to extract.
        folder: gets ``features/NAME.h5``, ``patches/NAME_patches.h5`` and ``overlays/NAME.png``.
        encoder: on its device.
        options: of the extraction.
        encoder_facts: of the encoder, where they are known: they take a hash of all weights.

    Raises:
        SlideError: unreadable, no mpp, no tissue, or more damaged than allowed.
    """
    start = time.perf_counter()
    path = features_path(folder, slide.name)
    config = configuration(slide, options, encoder_facts or encoder.facts())
    config_hash = configuration_hash(config)
    if stored_hash(path) == config_hash:
        return SlideOutcome(slide.name, str(slide.path), "skipped", str(path))
    tissue = find_tissue(slide, options.tissue)
    picture = folder / "overlays" / f"{slide.name}.png"
    try:
        grid = tile_slide(slide, tissue, options.tiling)
    except NoTissue:
        if options.overlay:
            save_overlay(picture, tissue)
        raise
    write_coords(folder / "patches" / f"{slide.name}_patches.h5", slide, grid)
    status = np.zeros(len(grid), dtype=np.uint8)
    coverage = np.zeros(len(grid), dtype=np.float32)
    try:
        tiles = write_features(
            path,
            slide,
            grid,
            _batches(slide, grid, encoder, options, status, coverage),
            status_N=status,
            coverage_N=coverage,
            encoder=encoder.name,
            dim=encoder.dim,
            configuration=config,
            config_hash=config_hash,
        )
    finally:
        # A slide that fails is the one whose picture is needed.
        damaged = np.flatnonzero(status == DAMAGED)
        if options.overlay:
            save_overlay(picture, tissue, grid, damaged=damaged.tolist())
        slide.close()
    seconds = time.perf_counter() - start
    return SlideOutcome(
        slide.name, str(slide.path), "done", str(path), tiles, len(damaged), seconds
    )


def _batches(
    slide: Slide,
    grid: TileGrid,
    encoder: Encoder,
    options: ExtractOptions,
    status: NDArray[np.uint8],
    coverage: NDArray[np.float32],
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Positions and features of the tiles that can be read; fills status and coverage."""
    device = next(encoder.buffers()).device
    for batch in tile_loader(TileDataset(slide, grid), options.batch_size, options.readers):
        index = batch.position.numpy()
        status[index] = batch.status.numpy()
        coverage[index] = batch.coverage.numpy()
        _check_damage(slide, grid, status, options.max_damaged)
        good = batch.status == OK
        if good.any():
            pixels = batch.pixels_HW3[good].to(device, non_blocking=True)
            yield index[good.numpy()], encoder(pixels).cpu().numpy()


def _check_damage(
    slide: Slide, grid: TileGrid, status: NDArray[np.uint8], max_damaged: float
) -> None:
    damaged = np.flatnonzero(status == DAMAGED)
    if len(damaged) > max_damaged * len(grid):
        places = ", ".join(f"({x}, {y})" for x, y in grid.coords_N2[damaged[:3]])
        raise DamagedSlide(
            f"At least {len(damaged)} of {len(grid)} tiles of {slide.path} cannot be decoded, the "
            f"first at {places}; max_damaged allows {max_damaged:.1%}. Copy the slide again, or "
            "raise max_damaged."
        )


def pick_device(device: str, number: int) -> torch.device:
    """The device of worker ``number``; ``cuda`` without an index means all of them in turn.

    Raises:
        ValueError: no such device here.
    """
    chosen = torch.device(device)
    if chosen.type == "cuda":
        count = torch.cuda.device_count()
        if count == 0 or (chosen.index or 0) >= count:
            raise ValueError(
                f"The device {device} is not there: {count} CUDA devices found; use cpu"
            )
        if chosen.index is None:
            chosen = torch.device("cuda", number % count)
    return chosen
