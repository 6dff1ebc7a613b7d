"""``isoattn wsi heatmap``: where a trained model looks on each slide, held against masks."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from isoattn.apps.base.errors import UserError
from isoattn.apps.base.run_folder import run_of_checkpoint
from isoattn.apps.core.arguments import Parser, at_least_one, new_folder
from isoattn.apps.core.progress import progress

_DESCRIPTION = """\
Where a trained model looks on each slide: ID.png (the slide, and the slide under its scores),
ID.geojson for QuPath, ID.csv (x, y, score of every tile), and heatmaps.csv with all slides: scores,
what the class token gives to no tile, the residual of Nystrom's inverse. Where there are masks, how
well the scores find them: AUC over tiles, IoU over area.

  isoattn wsi heatmap --ckpt_path RUN/checkpoints/best.ckpt --slides SLIDES
  isoattn wsi heatmap --ckpt_path RUN/checkpoints/best.ckpt --slides SLIDES --masks MASKS
  isoattn wsi heatmap --ckpt_path RUN/checkpoints/best.ckpt --only S003 S010 --part all
  isoattn wsi heatmap --ckpt_path RUN/checkpoints/best.ckpt --score gradient

A cohort of isoattn wsi synthesize knows its slides and masks itself. The threshold of the IoU is
taken on the positive slides of the validation part, unless --threshold gives it; "best IoU" knows
the truth and is an upper bound. Further options go to the app (--data.source.root FOLDER; for other
slides: --data.predict_source, as isoattn wsi predict has it).
"""


def run_heatmap(argv: list[str]) -> int:
    """Run ``isoattn wsi heatmap``; returns the exit status."""
    options, rest = _parser().parse_known_args(argv)
    from isoattn.apps.wsi.trained import trained  # the app is slow to import

    model, data = trained(options.ckpt_path, rest)
    from isoattn.apps.wsi.heatmap_report import HeatMaps, say_heat_maps

    run = run_of_checkpoint(options.ckpt_path)
    folder = options.out or (run.path / "heatmaps" if run is not None else None)
    folder = new_folder(folder, "heatmaps", options.ckpt_path.stem)
    maps = HeatMaps(model, data, folder, options)
    chosen = maps.chosen()
    if not chosen:
        raise UserError(f"The {options.part} part has no bags: give another --part.")
    maps.choose_threshold()
    with progress(len(chosen)) as advance:
        rows = [maps.write(index, advance) for index in chosen]
    say_heat_maps(maps, rows)
    return 0


def _parser() -> Parser:
    parser = Parser("isoattn wsi heatmap", _DESCRIPTION)
    add: Any = parser.add_argument
    add("--ckpt_path", type=Path, required=True, help="of a run")
    add("--slides", type=Path, nargs="+", default=[], help="folders of slides, or slides")
    add("--masks", type=Path, help="folder of ID.png, masks of whole slides at any resolution")
    add(
        "--mask_values", type=int, nargs="+", default=[], metavar="VALUE",
        help="pixels of a mask that are to be found; default: all but 0",
    )  # fmt: skip
    add("--part", choices=("train", "val", "test", "all"), default="test", help="default test")
    add("--only", nargs="+", default=[], metavar="ID", help="these slides, of whatever part")
    add("--most", type=at_least_one, help="so many slides at most")
    add("--score", choices=("attention", "gradient"), default="attention", help="see below")
    add("--target", metavar="CLASS", help="class of the gradient; default: the last one")
    add(
        "--scale", choices=("auto", "signed", "unsigned", "rank"), default="auto", help="of colours"
    )
    add("--threshold", type=float, help="for the IoU; default: taken on validation slides")
    add("--out", type=Path, help="folder; default heatmaps in the run's")
    parser.epilog = (
        "scores: attention is what the class token gives a tile in the last layer, a mean over\n"
        "heads times the number of tiles (1 = even; signed for Nystrom); a tile that is repeated\n"
        "to fill the square has the mean of its two places. gradient is what speaks for\n"
        "--target: the gradient of its log-odds times the tile's deviation from the mean tile."
    )
    return parser


def target_of(options: argparse.Namespace, classes: list[str]) -> int:
    """Number of the class that the gradient is of.

    Raises:
        UserError: there is no such class.
    """
    if options.target is None:
        return len(classes) - 1
    if options.target not in classes:
        raise UserError(f"--target {options.target}: the model knows {', '.join(classes)}.")
    return classes.index(options.target)
