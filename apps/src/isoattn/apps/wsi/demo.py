"""``isoattn wsi demo``: from slides that are made here to a heat map, command by command."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from isoattn.apps.base.errors import UserError
from isoattn.apps.core.arguments import Parser
from isoattn.apps.wsi.synthesize import add_cohort_options, cohort_options

_DESCRIPTION = """\
The whole chain on slides that are made here, as the commands that you would give yourself: make a
cohort, encode its tiles, train TransMIL, test it, draw where it looks and hold that against the
painted tumour. A few minutes on 2 cores; needs no file and no network. Run it again to go on.

  isoattn wsi demo OUT
  isoattn wsi demo OUT --attention softmax
  isoattn wsi demo OUT --tumour 0.005 0.01 --container svs
"""


def run_demo(argv: list[str]) -> int:
    """Run ``isoattn wsi demo``; returns the exit status of the first command that fails."""
    parser = Parser("isoattn wsi demo", _DESCRIPTION)
    parser.add_argument("folder", type=Path, help="for everything that is made")
    parser.add_argument("--attention", default="nystrom_masked", help="preset or class")
    parser.add_argument("--encoder", default="hed_statistics", help="default hed_statistics")
    parser.add_argument("--epochs", type=int, help="of training; default: of the config")
    add_cohort_options(parser, patients=PATIENTS, slides=2)
    parser.set_defaults(tumour=list(TUMOUR), jobs=2)
    options = parser.parse_args(argv)
    out: Path = options.folder
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file: give a folder.")
    _check_parts(options)
    cohort, features = out / "cohort", out / "features"
    run = out / "runs" / "wsi" / "demo"
    best = run / "checkpoints" / "best.ckpt"
    steps = [
        ["synthesize", cohort, *_cohort_argv(options), "--jobs", options.jobs],
        ["encode", cohort / "slides", "--out", features, "--encoder", options.encoder, "--tile",
         options.tile, "--mpp", options.mpp, "--jobs", options.jobs],
        ["fit", features, cohort / "labels.csv", "--config", "demo",
         f"--model.attention={options.attention}", f"--seed_everything={options.seed}",
         *([] if options.epochs is None else [f"--trainer.max_epochs={options.epochs}"]),
         "--tracker=none", f"--run.dir={run}"],
        ["test", "--ckpt_path", best, "--output", out / "test"],
        ["heatmap", "--ckpt_path", best, "--out", out / "heatmaps"],
    ]  # fmt: skip
    start = time.perf_counter()
    for step in steps:
        code = _run([str(part) for part in step], run)
        if code:
            return code
    sys.stdout.write(f"\nall of it in {time.perf_counter() - start:.0f} s\n{_outcome(out)}")
    return 0


PATIENTS = 60
TUMOUR = (0.02, 0.05)
MOST_PATIENTS = 1000
"""Up to which the least number is looked for."""


def _run(step: list[str], run: Path) -> int:
    from isoattn.apps.base.files import read_json
    from isoattn.apps.main import main

    if step[0] == "fit":
        last = run / "checkpoints" / "last.ckpt"
        if (read_json(run / "result.json") or {}).get("status") == "done":
            sys.stdout.write(f"\n{run} is trained already; remove it to train again\n")
            return 0
        if last.is_file():
            step = ["fit", "--ckpt_path", str(last)]
    sys.stdout.write(f"\n$ isoattn wsi {' '.join(step)}\n")
    sys.stdout.flush()
    start = time.perf_counter()
    code = main(["wsi", *step])
    sys.stdout.write(f"({time.perf_counter() - start:.0f} s)\n")
    return code


def _check_parts(options: argparse.Namespace) -> None:
    """Refuse a cohort without slides of both labels in each part, before anything is made.

    Raises:
        UserError: too few patients; says how many are enough.
    """
    asked = options.patients
    least = next((n for n in range(asked, MOST_PATIENTS) if _full_parts(options, n)), MOST_PATIENTS)
    if least == asked:
        return
    raise UserError(
        f"--patients {asked}: train, val and test would not all have slides of both labels. With "
        f"--sites {options.sites} the demo needs --patients {least} or more."
    )


def _full_parts(options: argparse.Namespace, patients: int) -> bool:
    from isoattn.wsi.synthetic.plan import plan_cohort

    asked = argparse.Namespace(**{**vars(options), "patients": patients})
    plans = plan_cohort(cohort_options(asked))
    return len({(plan.record.split, plan.record.label) for plan in plans}) == 6


def _cohort_argv(options: object) -> list[str]:
    """The options of the cohort, as ``synthesize`` takes them."""
    names = (
        "patients", "slides_per_patient", "variant", "mimics", "contrast", "shift", "sites", "size",
        "mpp", "tile", "container", "seed",
    )  # fmt: skip
    parser = Parser("", "")
    add_cohort_options(parser, patients=24, slides=2)
    found = []
    for name in names:
        value = getattr(options, name)
        if value != parser.get_default(name):
            found += [f"--{name}", str(value)]
    return [*found, "--tumour", *(str(share) for share in vars(options)["tumour"])]


def _outcome(out: Path) -> str:
    from isoattn.apps.base.files import read_json

    test, maps = (read_json(out / name / "result.json") for name in ("test", "heatmaps"))
    mean = maps["mean"]
    lines = [
        f"bags     test AUC {test['metrics']['test/auc']:.3f} over {test['items']} slides",
        f"tiles    AUC {mean['tile_auc']:.3f}, IoU {mean.get('iou', float('nan')):.2f} (best "
        f"{mean['best_iou']:.2f}) over {maps['slides_with_truth']} slides with tumour"
        if "tile_auc" in mean
        else "tiles    nothing to compare",
        f"look at  {_picture(out)}",
    ]
    return "\n".join(lines) + "\n"


def _picture(out: Path) -> Path:
    """The heat map of the slide with tumour that is nearest to the middle of the scores."""
    import csv

    with (out / "heatmaps" / "heatmaps.csv").open(newline="", encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if row["tile_auc"]]
    rows.sort(key=lambda row: float(row["tile_auc"]))
    name = rows[len(rows) // 2]["slide"] if rows else "*"
    return out / "heatmaps" / f"{name}.png"
