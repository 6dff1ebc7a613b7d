"""``isoattn matching match A.jpg B.jpg``: matches drawn, their geometry printed, an h5 written."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from isoattn.apps.base.errors import UserError
from isoattn.apps.core.arguments import Parser, at_least_one, choose, new_folder

if TYPE_CHECKING:
    from isoattn.apps.matching.two_views import Intrinsics

_DESCRIPTION = """\
Match two images: draws the matches, prints the homography between the images (or, with the
intrinsics of the cameras, the essential matrix and the pose) and writes the matches as h5 in the
layout of hloc.

  isoattn matching match A.jpg B.jpg --ckpt_path RUN/checkpoints/best.ckpt
  isoattn matching match A.jpg B.jpg --ckpt_path outdoor_ds.ckpt --pe released
  isoattn matching match A.jpg B.jpg --ckpt_path RUN/checkpoints/best.ckpt --attention Softmax
  isoattn matching match A.jpg B.jpg --ckpt_path indoor_ds_new.ckpt --pe fixed \\
      --intrinsics 525,525,320,240

Keypoints, matrices and intrinsics are in pixels (x, y) of the image files, centres at integers.
Many pairs at once: isoattn matching predict pairs.txt
"""
_NO_MODEL = """\
match needs a trained matcher: --ckpt_path FILE. Train one in three minutes: isoattn matching fit
Published LoFTR weights do as well: --ckpt_path outdoor_ds.ckpt --pe released"""


def run_match(argv: list[str]) -> int:
    """Run ``isoattn matching match``; returns the exit status."""
    options = _parser().parse_args(argv)
    if options.ckpt_path is None:
        raise UserError(_NO_MODEL)
    intrinsics = _intrinsics(options.intrinsics)
    attention = None if options.attention is None else choose(options.attention)
    # What follows imports torch's and OpenCV's parts, and names are checked before.
    from isoattn.apps.matching.trained import trained_matcher
    from isoattn.apps.matching.two_views import match_images, write_views

    missing = [str(file) for file in (options.image0, options.image1) if not file.is_file()]
    if missing:
        raise UserError(f"There is no image {' and no '.join(missing)}.")
    matcher = trained_matcher(
        options.ckpt_path, pe=options.pe, attention=attention.factory if attention else None
    )
    views = match_images(
        matcher,
        (options.image0, options.image1),
        longer=options.longer,
        threshold=options.threshold,
        top=options.top,
        ransac_px=options.ransac_px,
        intrinsics=intrinsics,
        seed=options.seed,
    )
    stem = f"{options.image0.stem}-{options.image1.stem}"
    folder = new_folder(options.out, "matching/match", stem)
    written = write_views(folder, stem, views)
    sys.stdout.write("\n".join([*views.lines(), f"written {folder}: {', '.join(written)}"]) + "\n")
    return 0


def _parser() -> Parser:
    parser = Parser("isoattn matching match", _DESCRIPTION)
    parser.usage = "isoattn matching match IMAGE0 IMAGE1 --ckpt_path FILE [options]"
    parser.add_argument("image0", type=Path, metavar="IMAGE0")
    parser.add_argument("image1", type=Path, metavar="IMAGE1")
    parser.add_argument(
        "--ckpt_path", type=Path, help="a checkpoint of a run, or published weights"
    )
    parser.add_argument(
        "--pe",
        choices=("fixed", "released"),
        help="position encoding of published weights, which do not say it: fixed for "
        "indoor_ds_new, released for outdoor_ds, indoor_ds, outdoor_ot and indoor_ot",
    )
    parser.add_argument("--attention", help="another one in every layer, such as Softmax")
    parser.add_argument(
        "--longer",
        type=at_least_one,
        help="pixels of the longer side at which images are matched; default 640, and 320 for a "
        "matcher without a fine part",
    )
    parser.add_argument(
        "--threshold",
        type=_share,
        help="confidence that a match must exceed; default the matcher's",
    )
    parser.add_argument("--top", type=at_least_one, help="the most confident matches, this many")
    parser.add_argument(
        "--ransac_px",
        type=_positive,
        help="pixels, at the size of matching, by which an inlier may be off; default 3 for a "
        "homography and 0.5 for a pose, and 6 for either without a fine part",
    )
    parser.add_argument(
        "--intrinsics",
        action="append",
        metavar="FX,FY,CX,CY",
        help="of both cameras; given twice, of the first and of the second",
    )
    parser.add_argument("--seed", type=int, default=0, help="of RANSAC")
    parser.add_argument("--out", type=Path, help="folder; default runs/matching/match/A-B")
    return parser


def _share(text: str) -> float:
    value = _positive(text, zero=True)
    if value >= 1:
        raise argparse.ArgumentTypeError(f"must be in [0, 1), got {text!r}")
    return value


def _positive(text: str, *, zero: bool = False) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not (value > 0 or (zero and value == 0)) or value == float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text!r}")
    return value


def _intrinsics(given: list[str] | None) -> tuple[Intrinsics, Intrinsics] | None:
    if given is None:
        return None
    if len(given) > 2:
        raise UserError(f"--intrinsics is given once or twice, not {len(given)} times.")
    found = [_four(text) for text in given]
    return found[0], found[-1]


def _four(text: str) -> Intrinsics:
    try:
        fx, fy, cx, cy = (float(word) for word in text.split(","))
    except ValueError:
        raise UserError(
            f"--intrinsics {text}: give four numbers FX,FY,CX,CY in pixels of the image file."
        ) from None
    if not (fx > 0 and fy > 0):
        raise UserError(f"--intrinsics {text}: focal lengths are above 0.")
    return fx, fy, cx, cy
