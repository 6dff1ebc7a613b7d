"""``isoattn ablate plan|diff|run|report``."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.table import Table

from isoattn.ablate.domain import shipped_studies, study_app
from isoattn.ablate.engine import Engine, RunSettings, load_results
from isoattn.ablate.plan import Plan, difference_text
from isoattn.ablate.records import StudyResults
from isoattn.ablate.study import Study, StudyError, level_name, load_study, study_from_dict
from isoattn.apps.base.errors import UserError, near
from isoattn.apps.base.files import read_json

_DESCRIPTION = (
    "Compare attentions, all else equal: a registered study, paired, each arm at its own rate."
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"ablate: {message}. isoattn ablate --help lists the options.")


def run_ablate(argv: list[str]) -> int:
    """Run one verb of ``isoattn ablate``; returns the exit status."""
    options = _parser().parse_args(argv or ["--help"])
    try:
        status: int = options.verb(options)
    except StudyError as error:
        raise UserError(str(error)) from error
    return status


def _parser() -> argparse.ArgumentParser:
    parser = _Parser("isoattn ablate", description=_DESCRIPTION)
    studies = ", ".join(shipped_studies())
    verbs = parser.add_subparsers(required=True, metavar="plan|diff|run|report")
    common = _Parser(add_help=False)
    common.add_argument("study", help=f"a study file, or one that ships: {studies}")
    common.add_argument("--preset", help="which preset of the file (smoke, mini, full, ...)")
    common.add_argument("--out", type=Path, help="study folder; default runs/ablate/STUDY-PRESET")

    plan = verbs.add_parser("plan", parents=[common], help="print cells, differences and cost")
    plan.set_defaults(verb=_plan)
    diff = verbs.add_parser("diff", parents=[common], help="the difference between two arms")
    diff.add_argument(
        "--arms",
        nargs=2,
        default=[],
        metavar="ARM",
        help="two arms; default: every arm against the baseline",
    )
    diff.set_defaults(verb=_diff)
    run = verbs.add_parser("run", parents=[common], help="run what is missing, then report")
    run.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="cells at a time")
    run.add_argument("--threads", type=int, default=1, help="threads of each cell (default 1)")
    run.add_argument(
        "--tracker",
        default="auto",
        choices=("auto", "wandb", "wandb-offline", "csv", "tensorboard", "none"),
        help="for every cell; auto: W&B where a key is found",
    )
    run.add_argument("--project", default="isoattn", help="W&B project")
    run.add_argument("--amend", action="store_true", help="go on with a changed study file")
    run.set_defaults(verb=_run)
    report = verbs.add_parser("report", parents=[common], help="write the report of what is there")
    report.set_defaults(verb=_report)
    return parser


def _load(options: Any) -> tuple[Study, Path]:
    name = options.study
    path = Path(name)
    if path.is_dir():  # a study folder stands for the study registered in it
        registered = read_json(path / "registered.json")
        if registered is None:
            raise UserError(f"{path} is no study folder: it has no registered.json.")
        latest = registered["amendments"][-1] if registered["amendments"] else registered
        return study_from_dict(latest["study"], where=str(path)), path
    if not path.is_file():
        known = shipped_studies()
        if name.removesuffix(".yaml") not in known:
            raise UserError(f"There is no study {name!r}. {near(name, known)}")
        path = known[name.removesuffix(".yaml")]
    study = load_study(path, options.preset)
    return study, options.out or Path("runs") / "ablate" / f"{study.name}-{study.preset}"


def _plan(options: Any) -> int:
    study, folder = _load(options)
    console = Console()
    plan = Plan(study, study_app(study.app))
    differences = plan.differences()
    console.print(f"[bold]{study.title}[/bold]\n{study.question}\n", highlight=False)
    search, confirm = plan.count()
    table = Table(
        title=f"{study.name}, preset {study.preset}, hash {study.hash}", title_justify="left"
    )
    for column in ("arm", *study.factors, "search", "confirm", "parameters"):
        table.add_column(column)
    rates = len(study.search.values) if search else 0
    parameters = {(d.arm, d.level): d.parameters[1] for d in differences}
    base = {d.level: d.parameters[0] for d in differences}
    for levels in study.level_sets:
        for arm in study.arms:
            count = parameters.get((arm, level_name(levels)), base[level_name(levels)])
            table.add_row(
                arm + (" (baseline)" if arm == study.baseline else ""),
                *levels.values(),
                f"{rates} rates x {len(study.search.seeds)} seeds" if rates else "-",
                f"{len(study.confirm_seeds)} seeds",
                f"{count:,}",
            )
    console.print(table)
    console.print(difference_text(study, differences), highlight=False)
    console.print(f"\n{search} search cells, {confirm} confirmation cells -> {folder}")
    seconds = _known_seconds(folder, study, plan)
    if seconds:
        hours = (search + confirm) * seconds / 3600
        console.print(f"about {seconds:.0f} s a cell so far: {hours:.1f} core hours in all")
    plan.check(differences)
    return 0


def _known_seconds(folder: Path, study: Study, plan: Plan) -> float:
    cells = load_results(study, folder, plan).cells if folder.is_dir() else []
    return sum(c.seconds for c in cells) / len(cells) if cells else 0.0


def _diff(options: Any) -> int:
    study, _ = _load(options)
    plan = Plan(study, study_app(study.app))
    for arm in options.arms:
        if arm not in study.arms:
            raise UserError(f"The study has no arm {arm!r}. {near(arm, study.arms)}")
    if options.arms:
        first, second = options.arms
        differences = [plan.compare(first, second, levels) for levels in study.level_sets]
    else:
        differences = plan.differences()
    text = difference_text(study, differences)
    if options.arms:
        text = text.replace(f"{study.baseline} ->", f"{options.arms[0]} ->")
    Console().print(text, highlight=False)
    plan.check(differences)
    return 0


def _run(options: Any) -> int:
    study, folder = _load(options)
    if options.jobs < 1 or options.threads < 1:
        raise UserError("--jobs and --threads must be at least 1.")
    settings = RunSettings(
        options.jobs, options.threads, options.tracker, options.project, options.amend
    )
    engine = Engine(study, folder, settings)
    results = engine.run()
    return _write(study, results, folder)


def _report(options: Any) -> int:
    study, folder = _load(options)
    if not (folder / "registered.json").is_file():
        raise UserError(f"{folder} holds no study yet: isoattn ablate run {options.study}")
    return _write(study, load_results(study, folder), folder)


def _write(study: Study, results: StudyResults, folder: Path) -> int:
    from isoattn.ablate.report import write_report

    differences = folder / "differences.txt"
    text = differences.read_text(encoding="utf-8") if differences.is_file() else ""
    paths = write_report(study, results, folder, differences=text)
    _print(study, results, paths)
    return 0


def _print(study: Study, results: StudyResults, paths: Any) -> None:
    from isoattn.ablate.summary import final_table, summarise

    summary = summarise(study, results)
    console = Console()
    rows = final_table(summary)
    if rows:
        # Narrow terminals: what is nearly always the same for all rows is left to the report.
        hidden = {"SD", "pairs"} | (set() if study.factors else {"levels"})
        if console.width < 110:
            hidden |= {"p Holm", "95 % interval"}
        table = Table(title=study.title, title_justify="left")
        for column in rows[0]:
            if column not in hidden:
                table.add_column(column)
        for row in rows:
            table.add_row(*(value for column, value in row.items() if column not in hidden))
        console.print(table)
    console.print(f"\n{summary['verdict']}", highlight=False)
    console.print(
        f"\nreport: {paths.html}\n        {paths.markdown}", highlight=False, soft_wrap=True
    )
    sys.stdout.flush()
