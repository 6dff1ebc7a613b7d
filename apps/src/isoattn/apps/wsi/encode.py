"""``isoattn wsi encode``: features of the tiles of many slides, going on where it stopped."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from isoattn.apps.base.errors import UserError
from isoattn.apps.core.arguments import Parser, at_least_one
from isoattn.apps.core.progress import progress
from isoattn.apps.wsi.slide_options import (
    add_slide_options,
    overrides_of,
    tiling_of,
    tissue_of,
    with_option_names,
)

SHOWN = 6
"""Failed slides that are listed."""
EVERY = 10.0
"""Seconds from line to line of progress."""

_DESCRIPTION = """\
Features of the tiles of every slide: features/ID.h5 (TRIDENT's layout, with the configuration and
its hash), patches/ID_patches.h5, overlays/ID.png. Run it again to go on: a finished file of the
same configuration is skipped, one of another is made anew. A damaged tile is left out and counted.

  isoattn wsi encode SLIDES --out features --encoder uni --device cuda
  isoattn wsi encode SLIDES --out features --encoder resnet50_layer3 --checkpoint weights.pth
  isoattn wsi encode SLIDES --out features --encoder vit_small_patch14_dinov2.lvd142m --jobs 4
  isoattn wsi encode SLIDES --out features --encoder hed_statistics --tile 64 --jobs 2
  isoattn wsi encode SLIDES --out features --encoder gigapath --ray     on a Ray cluster

encoders: {presets};
          any name of timm; hf-hub:OWNER/REPOSITORY; without weights: {offline}
"""


def run_encode(argv: list[str]) -> int:
    """Run ``isoattn wsi encode``; returns the exit status: 1 where a slide failed."""
    from isoattn.wsi.features.build import OFFLINE
    from isoattn.wsi.features.presets import PRESETS

    text = _DESCRIPTION.format(presets=", ".join(PRESETS), offline=", ".join(OFFLINE))
    parser = Parser("isoattn wsi encode", text)
    add_slide_options(parser)
    add = parser.add_argument
    add("--encoder", required=True, help="see above")
    add("--checkpoint", metavar="FILE", help="weights, where the hub cannot be reached")
    add("--input_size", type=at_least_one, help="pixels that a tile is resized to")
    add("--precision", choices=("float32", "bfloat16", "float16"), default="float32")
    add("--batch_size", type=at_least_one, default=64, help="tiles at once (default 64)")
    add("--readers", type=int, default=0, help="processes that read, for each job (default 0)")
    add("--device", default="cpu", help="cpu (default), cuda, cuda:1; cuda: jobs take turns")
    add("--ray", action="store_true", help="share slides out over a Ray cluster")
    add("--max_damaged", type=float, default=0.05, help="share of tiles, beyond it a slide fails")
    add("--clam", action="store_true", help="also CLAM's h5_files/ and pt_files/")
    add("--no_overlay", action="store_true", help="no pictures of tissue and tiles")
    options = parser.parse_args(argv)
    report = encode(
        options.slides,
        options.out,
        _extract_options(options),
        jobs=options.jobs,
        ray=options.ray,
        overrides=overrides_of(options),
    )
    if options.clam:
        _write_clam(options.out, report)
    return 1 if report.of("failed") else 0


def encode(
    slides: list[Path],
    out: Path,
    options: Any,
    *,
    jobs: int = 1,
    ray: bool = False,
    overrides: dict[str, float] | None = None,
) -> Any:
    """Extract, and say what it came to; returns the report.

    Raises:
        UserError: no slides, no such encoder or device, no Ray.
    """
    from isoattn.wsi.features import extract_slides
    from isoattn.wsi.slides import UnreadableSlide, find_slides

    lines = Lines()
    try:
        with progress(len(find_slides(slides))) as advance:

            def finished(outcome: Any, done: int, of: int) -> None:
                advance(outcome.slide)
                lines(outcome.tiles, done, of)

            report = extract_slides(
                slides,
                out,
                options,
                jobs=jobs,
                engine="ray" if ray else "processes",
                mpp_overrides=overrides,
                progress=finished,
            )
    except (ValueError, UnreadableSlide, ImportError) as error:
        raise UserError(with_option_names(str(error))) from error
    said = [with_option_names(line) for line in str(report).splitlines()]
    more = [f"  and {len(said) - 1 - SHOWN} more"] if len(said) - 1 > SHOWN else []
    sys.stdout.write("\n".join([*said[: 1 + SHOWN], *more]) + "\n")
    sys.stdout.write(f"written {out}: features/, patches/, overlays/\n")
    return report


class Lines:
    """Where there is no terminal for a bar: a line now and then, with the throughput."""

    def __init__(self) -> None:
        self.start = self.said = time.perf_counter()
        self.tiles = 0

    def __call__(self, tiles: int, done: int, of: int) -> None:
        """Another slide is finished."""
        self.tiles += tiles
        now = time.perf_counter()
        if now - self.said < EVERY or sys.stderr.isatty():
            return
        self.said = now
        rate = self.tiles / (now - self.start)
        sys.stderr.write(f"{done}/{of} slides, {self.tiles:,} tiles, {rate:.0f} tiles/s\n")
        sys.stderr.flush()


def _extract_options(options: Any) -> Any:
    from isoattn.wsi.features import EncoderOptions, ExtractOptions

    try:
        return ExtractOptions(
            tiling=tiling_of(options),
            tissue=tissue_of(options),
            encoder=EncoderOptions(
                options.encoder,
                checkpoint=options.checkpoint,
                input_size=options.input_size,
                precision=options.precision,
            ),
            mpp_override=options.mpp_override,
            batch_size=options.batch_size,
            max_damaged=options.max_damaged,
            readers=options.readers,
            device=options.device,
            overlay=not options.no_overlay,
        )
    except ValueError as error:
        raise UserError(str(error)) from error


def _write_clam(out: Path, report: Any) -> None:
    """The same features once more as CLAM has them."""
    from isoattn.wsi.features import read_features, write_clam

    for outcome in (*report.of("done"), *report.of("skipped")):
        write_clam(out, read_features(outcome.path))
    sys.stdout.write(f"written {out}: h5_files/, pt_files/\n")
