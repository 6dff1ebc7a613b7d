"""``isoattn ablate cost``: what it takes from the command line, prints and writes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from isoattn.ablate.cost import CostRun
from isoattn.ablate.cost_records import FOLDER, CostTable, read_costs, write_csv
from isoattn.ablate.domain import study_app
from isoattn.ablate.folder import locked
from isoattn.ablate.progress import Speaker
from isoattn.ablate.study import CostSection, Study, StudyError
from isoattn.ablate.terminal import say
from isoattn.apps.base.files import write_atomic
from isoattn.apps.core.progress import progress
from isoattn.core.training.checkpoint import remove_partial_files

EXAMPLE = """\
  cost:
    key: data.init_args.image_size    # the option that grows
    label: pixels                     # what it counts
    values: [28, 56, 112, 224]"""

EPILOG = f"""\
The study file says what grows; only key and values are needed:

{EXAMPLE}
    configs: [xcit_mnist]             # base configs; default: the study's, with its overrides
    overrides: {{data.init_args.batch_size: 8}}
    arms: [Softmax, Linear]           # default: all
    limit_seconds: 30                 # an arm with a slower step is left out at larger sizes

A step is forward, backward and optimiser of the whole model. Arms take turns, peak memory is that
of a process of its own. A size that is done is kept: kill the command and start it again, or ask
for more sizes. An arm that fails (out of memory) is left out at larger sizes, the others go on.
Writes cost/cost.{{md,png,csv,json}} into the study folder; isoattn ablate report includes it.
To measure anew delete cost/cost.json.

  isoattn ablate cost mine.yaml
  isoattn ablate cost mine.yaml --sizes 1000 2000 --out runs/ablate/mine-full
"""


def add_cost(verbs: Any, common: argparse.ArgumentParser, verb: Callable[[Any], int]) -> None:
    """Add the verb ``cost``."""
    parser = verbs.add_parser(
        "cost",
        parents=[common],
        help="time and memory of the arms over a growing size",
        description="Time and memory of a study's arms over a growing size, and where they cross.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--sizes", nargs="+", type=int, metavar="N", help="instead of the values of the study file"
    )
    parser.set_defaults(verb=verb)


def run_cost(study: Study, folder: Path, sizes: list[int] | None) -> int:
    """Measure what is missing, write the files, print the table; returns the exit status.

    Args:
        study: the study.
        folder: of the study; made if missing.
        sizes: instead of those of the study's cost section.

    Raises:
        StudyError: no section, a size below 1, configs that cannot be resolved, no arm that runs.
    """
    section = _section(study, folder)
    sizes = sorted(set(sizes or section.values))
    if sizes[0] < 1:
        raise StudyError(f"--sizes must be above 0, got {sizes[0]}")
    place = folder / FOLDER
    with locked(place):  # two at a time would slow each other down
        remove_partial_files(place)
        run = CostRun(study, section, study_app(study.app), folder, Speaker().say)
        with _steps(len(sizes)) as advance:
            table = run.run(sizes, advance)
        write_files(table, folder)
    print_costs(table, folder)
    return 0


def write_files(table: CostTable, folder: Path) -> None:
    """Write ``cost.csv``, ``cost.png`` and ``cost.md`` beside ``cost.json``."""
    # Late: matplotlib is slow to import.
    from isoattn.ablate.report.blocks import Chart
    from isoattn.ablate.report.cost_chart import png
    from isoattn.ablate.report.cost_over_size import ALT, caption, cost_over_size
    from isoattn.ablate.report.markdown import escape, to_markdown

    place = folder / FOLDER
    write_csv(table, folder)
    write_atomic(place / "cost.png", png(table))
    blocks = [block for block in cost_over_size(table) if not isinstance(block, Chart)]
    figure = f"\n![{escape(ALT)}](cost.png)\n\n*{escape(caption(table))}*\n"
    write_atomic(place / "cost.md", to_markdown(table.title, blocks) + figure)


def print_costs(table: CostTable, folder: Path) -> None:
    """Step times at every size, a sentence an arm, what was not measured, the files."""
    from isoattn.ablate.report.cost_over_size import number
    from isoattn.ablate.report.cost_wording import arm_sentence, crossing_cell, not_measured

    console = Console(width=None if sys.stdout.isatty() else 120)
    shown = Table(
        title=Text(f"{table.title}: ms a training step over {table.label}"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for column in ("arm", *(f"{size:,}" for size in table.sizes), "MiB", "step"):
        text = column in ("arm", "step")
        shown.add_column(Text(column), justify="left" if text else "right", no_wrap=True)
    for arm in table.shown:
        costs = {row.size: row.cost for row in table.of(arm)}
        times = [number(c.step_ms) if (c := costs.get(size)) else "–" for size in table.sizes]
        last = costs.get(table.sizes[-1])
        against = "baseline" if arm == table.baseline else crossing_cell(table, arm, "step_ms")
        cells = [arm, *times, "–" if last is None else number(last.peak_mib), against]
        shown.add_row(*map(Text, cells))
    console.print(shown)
    for arm in table.shown:
        if arm != table.baseline:
            say(arm_sentence(table, arm))
    for line in not_measured(table):
        say(f"not measured: {line}")
    say(f"\nMiB: peak memory of training steps at {table.sizes[-1]:,} {table.label}.")
    say(f"written {folder / FOLDER}: cost.md, cost.png, cost.csv, cost.json")


def _section(study: Study, folder: Path) -> CostSection:
    """The study's cost section; of a study folder that was measured before, the one of then.

    Raises:
        StudyError: there is none; shows what to write.
    """
    if study.cost is not None:
        return study.cost
    before = read_costs(folder)
    if before is None:
        raise StudyError(
            f"The study {study.name} does not say what its cost is measured over. Give its file a "
            f"section like\n\n{EXAMPLE}\n\nand name that file: isoattn ablate cost --help"
        )
    section = before.section
    lists = {name: tuple(section[name]) for name in ("values", "configs", "arms")}
    return CostSection(**{**section, **lists})


@contextmanager
def _steps(total: int) -> Iterator[Callable[[str], None]]:
    """A bar at a terminal, a line a size elsewhere."""
    if sys.stderr.isatty():
        with progress(total) as advance:
            yield advance
        return
    speaker, done = Speaker(), 0

    def line(text: str) -> None:
        nonlocal done
        done += 1
        speaker.say(f"cost {done}/{total}  {text}")

    yield line
