"""``isoattn wsi synthesize``: a cohort of true pyramidal slides with masks and labels."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from isoattn.apps.base.errors import UserError
from isoattn.apps.core.arguments import Parser, at_least_one
from isoattn.apps.core.progress import progress

VARIANTS = {"needle": "presence", "relational": "proximity", "both": "co_occurrence"}
"""Variant -> task of the generator."""

_DESCRIPTION = """\
A cohort of true pyramidal slides, made from a stained picture that ships with scikit-image: masks
of tumour and of benign mimics, patients, sites with stain shift, a table of labels.

  isoattn wsi synthesize cohort                               48 slides of 1024 px at 0.5 mpp
  isoattn wsi synthesize cohort --patients 40 --tumour 0.005 0.02
  isoattn wsi synthesize cohort --container dicom --size 4096
  isoattn wsi synthesize cohort --variant relational          positive: tumour beside a mimic

Writes slides/, masks/ (a pixel is a cell of 16: 0 glass, 1 normal, 2 tumour, 3 mimic), labels.csv
and cohort.json. A cohort that is there with the same options is left as it is. Test slides show
tissue from a part of the picture that training never sees.

variants: needle      positive slides have tumour, negative ones as much mimic in its place
          relational  all have both kinds; in positive ones a tumour and a mimic lie side by side
          both        positive slides have both kinds, negative ones one of them, twice as much
"""


def run_synthesize(argv: list[str]) -> int:
    """Run ``isoattn wsi synthesize``; returns the exit status."""
    options = _parser().parse_args(argv)
    synthesize(options.folder, cohort_options(options), jobs=options.jobs)
    return 0


def synthesize(folder: Path, options: Any, *, jobs: int) -> list[Any]:
    """Make the cohort and say what it came to; returns the records of its slides.

    Raises:
        UserError: options that do not go together, or a folder with another cohort.
    """
    from isoattn.wsi.synthetic import LayoutError, make_cohort

    start = time.perf_counter()
    with progress(options.slides) as advance:
        try:
            records = make_cohort(
                folder, options, jobs=jobs, progress=lambda done, of: advance("slides")
            )
        except (ValueError, LayoutError, FileExistsError, NotADirectoryError) as error:
            raise UserError(str(error)) from error
    seconds = time.perf_counter() - start
    positive = [r for r in records if r.label == "positive"]
    low, high = (f(r.tumour_fraction for r in positive) for f in (min, max))
    parts = ", ".join(
        f"{sum(r.split == part for r in records)} {part}" for part in ("train", "val", "test")
    )
    sys.stdout.write(
        f"{len(records)} slides of {len({r.patient for r in records})} patients ({parts}), "
        f"{len(positive)} positive with {low:.2%} to {high:.2%} tumour; {seconds:.1f} s\n"
        f"written {folder}: slides/, masks/, labels.csv, cohort.json\n"
    )
    return records


def cohort_options(options: argparse.Namespace) -> Any:
    """The options of the generator.

    Raises:
        UserError: values out of range.
    """
    from isoattn.wsi.synthetic import CohortOptions

    try:
        return CohortOptions(
            slides=options.patients * options.slides_per_patient,
            task=VARIANTS[options.variant],  # type: ignore[arg-type]
            size=options.size,
            mpp=options.mpp,
            tumour=(options.tumour[0], options.tumour[-1]),
            mimics=options.mimics,
            contrast=options.contrast,
            shift=options.shift,
            sites=options.sites,
            slides_per_patient=options.slides_per_patient,
            tile=options.tile,
            container=options.container,
            seed=options.seed,
        )
    except ValueError as error:
        raise UserError(str(error)) from error


def add_cohort_options(parser: argparse.ArgumentParser, *, patients: int, slides: int) -> None:
    """Options of a cohort, shared with ``demo``."""
    add = parser.add_argument
    add("--patients", type=at_least_one, default=patients, help=f"default {patients}")
    add("--slides_per_patient", type=at_least_one, default=slides, help=f"default {slides}")
    add("--variant", choices=VARIANTS, default="needle", help="what makes a slide positive")
    add(
        "--tumour",
        type=float,
        nargs="+",
        default=[0.015, 0.04],
        metavar="SHARE",
        help="share of the tissue that is tumour in positive slides, or least and largest share",
    )
    add("--mimics", type=float, default=1.0, help="area of benign mimics, times the tumour's")
    add("--contrast", type=float, default=1.0, help="tumour against mimic, 1 plain to 0 none")
    add("--shift", type=float, default=0.15, help="deviation of the stain between sites")
    add("--sites", type=at_least_one, default=3, help="hospitals (default 3)")
    add("--size", type=at_least_one, default=1024, help="side in pixels (default 1024)")
    add("--mpp", type=float, default=0.5, help="micrometres per pixel (default 0.5)")
    add("--tile", type=at_least_one, default=64, help="side of the tiles that will be cut")
    add("--container", choices=("tiff", "svs", "dicom"), default="tiff")
    add("--seed", type=int, default=0)
    add("--jobs", type=at_least_one, default=1, help="processes (default 1)")


def _parser() -> Parser:
    parser = Parser("isoattn wsi synthesize", _DESCRIPTION)
    parser.add_argument("folder", type=Path, help="to write to")
    add_cohort_options(parser, patients=24, slides=2)
    return parser
