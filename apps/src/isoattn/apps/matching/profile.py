"""``isoattn matching profile``: time and memory of a matcher's modules over resolution."""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from isoattn.apps.base.class_tables import write_csv
from isoattn.apps.base.files import write_json
from isoattn.apps.core.arguments import Parser, at_least_one, choose, new_folder

if TYPE_CHECKING:
    from isoattn.apps.matching.module_cost import ModuleCost

_DESCRIPTION = """\
Time and peak memory of the modules of a matcher over resolution, by attention: where the time goes,
and from how many cells on an attention is cheaper than the first one.

  isoattn matching profile --sizes 160 240x320 480x640
  isoattn matching profile --attentions Softmax Linear "Linear(feature_map=relu)" --variant small
  isoattn matching profile --sizes 128 --variant tiny-context --repeats 15

Processor time of one pair in evaluation mode, random weights, one thread unless --threads says
otherwise; rounds take turns. A training step of a whole config over resolution is measured by
isoattn ablate cost loftr_attention.
"""
_PARTS = ("backbone", "transformer", "cells", "fine", "total")


def run_profile(argv: list[str]) -> int:
    """Run ``isoattn matching profile``; returns the exit status."""
    options = _parser().parse_args(argv)
    chosen = {c.label: c.spec for c in map(choose, options.attentions)}
    import torch

    from isoattn.apps.matching.module_cost import measure_size

    torch.set_num_threads(options.threads)
    costs: list[ModuleCost] = []
    for size in options.sizes:
        costs += measure_size(
            options.variant, chosen, size, repeats=options.repeats, memory=not options.no_memory
        )
        sys.stderr.write(f"{size[0]} x {size[1]}: {costs[-1].tokens:,} cells an image\n")
    folder = new_folder(options.out, "matching/profile", options.variant)
    write_profile(folder, costs)
    sys.stdout.write("\n".join([*lines(costs), f"written {folder}: profile.csv, profile.json\n"]))
    return 0


def lines(costs: list[ModuleCost]) -> list[str]:
    """The table, then where each attention crosses the first."""
    from isoattn.apps.matching.module_cost import crossings

    labels = list(dict.fromkeys(cost.attention for cost in costs))
    width = max(9, *map(len, labels))
    head = f"{'size':>10} {'cells':>7}  {'attention':{width}}"
    found = [head + "".join(f"{part:>12}" for part in _PARTS) + f"{'peak MiB':>10}"]
    for cost in costs:
        values = (1e3 * getattr(cost, part) for part in _PARTS)
        peak = "-" if cost.peak_bytes is None else f"{cost.peak_bytes / 2**20:,.0f}"
        size = f"{cost.size[0]}x{cost.size[1]}"
        row = f"{size:>10} {cost.tokens:>7,}  {cost.attention:{width}}"
        found.append(row + "".join(f"{value:>12,.1f}" for value in values) + f"{peak:>10}")
    found.append(
        "milliseconds of processor time a pair; cells: dual softmax and nearest neighbours"
    )
    for label in labels[1:]:
        crossed = crossings(costs, label, labels[0])
        found += [
            f"{label} against {labels[0]}, {part}: {crossed[key].sentence('cells')}"
            for key, part in (("transformer", "transformer"), ("whole", "whole matcher"))
        ]
    return found


def write_profile(folder: Path, costs: list[ModuleCost]) -> None:
    """Write ``profile.csv`` (seconds, bytes) and the same as JSON."""
    rows = [{**asdict(cost), "total": cost.total} for cost in costs]
    write_json(folder / "profile.json", rows)
    header = list(rows[0])
    write_csv(
        folder / "profile.csv",
        header,
        [["x".join(map(str, r["size"])) if k == "size" else r[k] for k in header] for r in rows],
    )


def _parser() -> Parser:
    parser = Parser("isoattn matching profile", _DESCRIPTION)
    parser.add_argument(
        "--sizes",
        nargs="+",
        type=_size,
        default=[(128, 128), (160, 160), (240, 320), (480, 640)],
        metavar="H[xW]",
        help="of both images (default 128 160 240x320 480x640)",
    )
    parser.add_argument(
        "--attentions", nargs="+", default=["Softmax", "Linear"], help="default Softmax Linear"
    )
    parser.add_argument(
        "--variant",
        choices=("loftr", "small", "tiny", "tiny-context"),
        default="loftr",
        help="size of the matcher (default loftr, the published one)",
    )
    parser.add_argument("--repeats", type=at_least_one, default=5, help="rounds (default 5)")
    parser.add_argument("--threads", type=at_least_one, default=1, help="of torch (default 1)")
    parser.add_argument("--no_memory", action="store_true", help="leave the peak memory out")
    parser.add_argument("--out", type=Path, help="folder; default runs/matching/profile/VARIANT")
    return parser


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)(?:x(\d+))?", text)
    height, width = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if min(height, width) < 16:
        raise argparse.ArgumentTypeError(f"must be like 240 or 240x320, 16 or more; got {text!r}")
    return height, width
