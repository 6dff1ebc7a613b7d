"""Options that say which tiles of a slide are read, shared by ``tile`` and ``encode``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from isoattn.apps.base.errors import UserError
from isoattn.apps.core.arguments import at_least_one


def add_slide_options(parser: argparse.ArgumentParser) -> None:
    """Slides, resolution, tiles, tissue."""
    add = parser.add_argument
    add("slides", type=Path, nargs="+", help="folders of slides, or slides")
    add("--out", type=Path, required=True, help="folder to write to")
    add("--mpp", type=float, default=0.5, help="micrometres per pixel of a tile (default 0.5)")
    add("--tile", type=at_least_one, default=256, help="pixels of a tile's side (default 256)")
    add("--stride", type=at_least_one, help="pixels from tile to tile (default: --tile)")
    add("--min_tissue", type=float, default=0.5, help="least share of tissue (default 0.5)")
    add("--mpp_override", type=float, metavar="MPP", help="of level 0, of every slide; recorded")
    add("--mpp_table", type=Path, metavar="CSV", help="the same by slide: columns slide, mpp")
    add("--saturation_floor", type=float, metavar="S", help="least saturation of tissue, 0 to 1")
    add(
        "--pen_saturation", type=float, metavar="S", help="from which markers' hues are pen; 1: off"
    )
    add("--jobs", type=at_least_one, default=1, help="processes (default 1)")


def tiling_of(options: argparse.Namespace) -> Any:
    """The tiling.

    Raises:
        UserError: values out of range.
    """
    from isoattn.wsi.slides import TilingOptions

    try:
        return TilingOptions(
            mpp=options.mpp, size=options.tile, stride=options.stride, min_tissue=options.min_tissue
        )
    except ValueError as error:
        raise UserError(str(error)) from error


def tissue_of(options: argparse.Namespace) -> Any:
    """What counts as tissue.

    Raises:
        UserError: values out of range.
    """
    from isoattn.wsi.slides import TissueOptions

    given = {"floor": options.saturation_floor, "pen_saturation": options.pen_saturation}
    try:
        return TissueOptions(**{k: v for k, v in given.items() if v is not None})
    except ValueError as error:
        raise UserError(str(error)) from error


def overrides_of(options: argparse.Namespace) -> dict[str, float]:
    """Pixel sizes by slide, from ``--mpp_table``.

    Raises:
        UserError: a table that cannot be read.
    """
    from isoattn.wsi.features import read_mpp_table

    if options.mpp_table is None:
        return {}
    try:
        return read_mpp_table(options.mpp_table)
    except (OSError, ValueError) as error:
        raise UserError(f"--mpp_table: {error}") from error


def with_option_names(message: str) -> str:
    """A message of the library with the names that its options have on the command line."""
    return message.replace("mpp_override", "--mpp_override").replace("----", "--")
