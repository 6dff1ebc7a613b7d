"""``isoattn ablate plan|diff|run|report|cost``."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any, NoReturn

import yaml

from isoattn.ablate.cost_command import add_cost, run_cost
from isoattn.ablate.differences import difference_text, reference_text
from isoattn.ablate.domain import shipped_studies, study_app
from isoattn.ablate.engine import Engine, RunSettings
from isoattn.ablate.folder import REGISTERED, registered_study, study_changes
from isoattn.ablate.plan import Plan
from isoattn.ablate.records import StudyResults
from isoattn.ablate.results import load_results
from isoattn.ablate.selection import ArmLevel
from isoattn.ablate.study import Study, StudyError, level_name, load_study
from isoattn.ablate.terminal import print_estimate, print_plan, print_results, say
from isoattn.apps.base.errors import UserError, near

if TYPE_CHECKING:
    from isoattn.ablate.report import ReportPaths

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
        import_modules(options.imports)
        status: int = options.verb(options)
    except StudyError as error:
        raise UserError(str(error)) from error
    return status


def import_modules(names: list[str]) -> None:
    """Import modules of the user's, the current folder included.

    Raises:
        UserError: there is none of that name.
    """
    if names and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise UserError(f"--import {name}: {error}") from error


def _parser() -> argparse.ArgumentParser:
    parser = _Parser("isoattn ablate", description=_DESCRIPTION)
    studies = ", ".join(shipped_studies())
    verbs = parser.add_subparsers(required=True, metavar="plan|diff|run|report|cost")
    common = _Parser(add_help=False)
    common.add_argument("study", help=f"a study file, or one that ships: {studies}")
    common.add_argument("--preset", help="which preset of the file (smoke, mini, full, ...)")
    common.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="MODULE",
        help="import a module of yours first, so that arms can name its attentions",
    )
    common.add_argument(
        "--set",
        dest="overrides",
        type=_option,
        action="append",
        default=[],
        metavar="OPTION=VALUE",
        help="an option for all cells, such as data.source.root=FOLDER; registered with the study",
    )
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
    run.add_argument(
        "--reuse",
        type=Path,
        action="append",
        default=[],
        metavar="FOLDER",
        help="another study's folder: runs of an arm that are the same there are not trained again",
    )
    run.set_defaults(verb=_run)
    report = verbs.add_parser("report", parents=[common], help="write the report of what is there")
    report.set_defaults(verb=_report)
    add_cost(verbs, common, _cost)
    return parser


def _option(text: str) -> tuple[str, Any]:
    """``a.b=3`` as (``a.b``, 3)."""
    key, equals, value = text.partition("=")
    try:
        parsed = yaml.safe_load(value)
    except yaml.YAMLError:
        parsed = value
    if not key.strip() or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} must be OPTION=VALUE")
    return key.removeprefix("--"), parsed


def _load(options: Any) -> tuple[Study, Path]:
    """The study and its folder; a study folder stands for the study registered in it."""
    path = Path(options.study)
    if not path.is_dir():
        study = _read(options)
        return study, options.out or Path("runs") / "ablate" / f"{study.name}-{study.preset}"
    registered = registered_study(path)
    if registered is None:
        raise UserError(f"{path} is no study folder: it has no {REGISTERED}.")
    if (
        options.overrides
        or options.preset not in (None, registered.preset)
        or options.out not in (None, path)
    ):
        raise UserError(
            f"{path} holds the preset {registered.preset} already; --preset, --set and --out go "
            "with the name of a study or a study file."
        )
    return registered, path


def _read(options: Any) -> Study:
    path = Path(options.study)
    if path.is_file():
        return load_study(path, options.preset, dict(options.overrides))
    known, name = shipped_studies(), options.study.removesuffix(".yaml")
    if name not in known:
        raise UserError(f"There is no study {options.study!r}. {near(name, known)}")
    return load_study(known[name], options.preset, dict(options.overrides))


def _plan(options: Any) -> int:
    study, folder = _load(options)
    plan = Plan(study, study_app(study.app))
    differences = plan.differences()
    print_plan(plan, differences, plan.reference_differences(), folder)
    plan.check(differences)
    known = _known_seconds(plan, folder)
    if known:
        print_estimate(plan, known, "as in the cells that are there")
    else:
        cases = [*plan.cases, *plan.reference_cases]
        try:
            times = plan.app.estimate([config for _, _, config in cases])
        except RuntimeError as error:
            say(f"no estimate, a few steps could not be timed: {error}")
            return 0
        found = {(c[0], level_name(c[1])): t for c, t in zip(cases, times, strict=True)}
        print_estimate(plan, found, "from a few timed steps")
    return 0


def _known_seconds(plan: Plan, folder: Path) -> dict[ArmLevel, float]:
    """Mean seconds of the finished cells of each arm and reference, where every one has some."""
    if not folder.is_dir():
        return {}
    results = load_results(plan.study, folder, plan)
    seconds: dict[ArmLevel, list[float]] = {}
    for cell in (*results.cells, *results.references):
        if cell.status == "done" and cell.seconds:
            seconds.setdefault((cell.arm, level_name(cell.levels)), []).append(cell.seconds)
    cases = len(plan.cases) + len(plan.reference_cases)
    return {k: mean(s) for k, s in seconds.items()} if len(seconds) == cases else {}


def _diff(options: Any) -> int:
    study, _ = _load(options)
    for arm in options.arms:
        if arm not in study.arms:
            raise UserError(f"The study has no arm {arm!r}. {near(arm, study.arms)}")
    plan = Plan(study, study_app(study.app))
    if options.arms:
        first, second = options.arms
        differences = [plan.compare(first, second, levels) for levels in study.level_sets]
    else:
        differences = plan.differences()
    say(difference_text(differences))
    if study.references and not options.arms:
        say(reference_text(plan.reference_differences()))
    plan.check(differences)
    return 0


def _run(options: Any) -> int:
    study, folder = _load(options)
    if options.jobs < 1 or options.threads < 1:
        raise UserError("--jobs and --threads must be at least 1.")
    settings = RunSettings(
        options.jobs,
        options.threads,
        options.tracker,
        options.project,
        options.amend,
        tuple(options.reuse),
    )
    engine = Engine(study, folder, settings)
    with _resumable():
        results = engine.run()
    paths = _write(study, results, folder)
    if engine.tracker.startswith("wandb"):
        from isoattn.ablate.publish import publish

        publish(engine, paths)
    print_results(study, results, paths)
    return 0


@contextlib.contextmanager
def _resumable() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        again = shlex.join(["isoattn", *sys.argv[1:]])
        raise UserError(f"stopped; what is done is kept. Go on with: {again}", 130) from None


def _cost(options: Any) -> int:
    study, folder = _load(options)
    _refuse_changed(options, study, folder)
    with _resumable():
        return run_cost(study, folder, options.sizes)


def _report(options: Any) -> int:
    study, folder = _load(options)
    registered = registered_study(folder)
    if registered is None:
        raise UserError(f"{folder} holds no study yet: isoattn ablate run {options.study}")
    _refuse_changed(options, study, folder)
    results = load_results(registered, folder)
    print_results(registered, results, _write(registered, results, folder))
    return 0


def _refuse_changed(options: Any, study: Study, folder: Path) -> None:
    """A folder takes one study only; its costs and its report are of that one."""
    changes = study_changes(folder, study)
    if changes:
        raise UserError(
            f"{options.study} is not the study that is registered in {folder}:\n  "
            + "\n  ".join(changes[:6])
            + f"\nisoattn ablate report {folder} reports what was registered; "
            "isoattn ablate run ... --amend goes on with the changed one."
        )


def _write(study: Study, results: StudyResults, folder: Path) -> ReportPaths:
    from isoattn.ablate.report import write_report

    differences = folder / "differences.txt"
    text = differences.read_text(encoding="utf-8") if differences.is_file() else ""
    return write_report(study, results, folder, differences=text)
