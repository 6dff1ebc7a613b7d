"""What ``isoattn ablate`` prints: the plan, the final table, where the report is."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from isoattn.ablate.differences import Difference, difference_text, reference_text
from isoattn.ablate.plan import Plan
from isoattn.ablate.records import StudyResults
from isoattn.ablate.selection import ArmLevel
from isoattn.ablate.study import Study, level_name


def say(text: str = "") -> None:
    """A line on standard output; never wrapped, nothing in it is markup."""
    Console().print(text, markup=False, highlight=False, soft_wrap=True)


def print_plan(
    plan: Plan, differences: list[Difference], beside: list[Difference], folder: Path
) -> None:
    """The arms and references with their cells, and what they change."""
    study = plan.study
    Console().print(Text(study.title, style="bold"))
    Console().print(Text(study.question + "\n"))
    search, confirm = plan.count()
    table = Table(
        title=Text(f"{study.name}, preset {study.preset}, hash {study.hash}"), title_justify="left"
    )
    for column in ("arm", *study.factors, "search", "confirm", "parameters"):
        table.add_column(Text(column))
    rates = len(study.search.values) if search else 0
    parameters = {(d.arm, d.level): d.parameters[1] for d in (*differences, *beside)}
    base = {d.level: d.parameters[0] for d in differences}
    roles = {study.baseline: " (baseline)", **dict.fromkeys(study.references, " (reference)")}
    for arm, levels, _ in (*plan.cases, *plan.reference_cases):
        count = parameters.get((arm, level_name(levels)), base[level_name(levels)])
        cells = [
            arm + roles.get(arm, ""),
            *levels.values(),
            f"{rates} rates x {_seeds(study.search.seeds)}" if rates else "-",
            _seeds(study.confirm_seeds),
            f"{count:,}",
        ]
        table.add_row(*map(Text, cells))
    Console().print(table)
    say(difference_text(differences))
    if beside:
        say(reference_text(beside))
    say(f"\n{search} search cells, {confirm} confirmation cells -> {folder}")
    if beside:
        counts = [plan.count(name) for name in study.references]
        more = [sum(each) for each in zip(*counts, strict=True)]
        say(f"and of references {more[0]} search cells, {more[1]} confirmation cells")


def _seeds(seeds: Sequence[int]) -> str:
    return f"{len(seeds)} seed{'' if len(seeds) == 1 else 's'}"


def print_estimate(plan: Plan, seconds: Mapping[ArmLevel, float], source: str) -> None:
    """Core time of the whole study, from the seconds a run of each arm and reference takes."""
    search, confirm = plan.count()
    each = (search + confirm) / len(plan.cases)
    total = sum(seconds.values()) * each
    if total >= 3600:
        amount = f"{total / 3600:.1f} core hours"
    else:
        amount = f"{max(1, round(total / 60))} core minutes"
    quick, slow = min(seconds.values()), max(seconds.values())
    span = f"{quick:.0f} s" if round(quick) == round(slow) else f"{quick:.0f} to {slow:.0f} s"
    say(f"about {amount} in all ({span} a cell, {source}), grid extensions not counted")


def print_results(study: Study, results: StudyResults, paths: Any) -> None:
    """The final table, the sentence, the files."""
    from isoattn.ablate.summary import final_table, reference_table, summarise

    summary = summarise(study, results)
    # A pipe or a file has no width of its own; rich would assume 80 columns.
    console = Console(width=None if sys.stdout.isatty() else 120)
    rows = final_table(summary)
    if rows:
        # What is nearly always the same for all rows, or too much for a line, is in the report.
        hidden = {"SD", "pairs", "p Holm"} | (set() if study.factors else {"levels"})
        if console.width < 100:
            hidden |= {"95 % interval", "runs"}
        for row in rows:
            row["arm"] = row["arm"].removesuffix(" (baseline)")  # the verdict says it
        _print_table(console, study.title, rows, hidden)
        if beside := reference_table(summary):
            title = f"Beside, not judged: another network; difference to {study.baseline}"
            _print_table(console, title, beside, hidden)
    console.print(Text(f"\n{summary['verdict']}"))
    say(f"\nreport: {paths.html}\n        {paths.markdown}")


def _print_table(
    console: Console, title: str, rows: list[dict[str, str]], hidden: set[str]
) -> None:
    table = Table(
        title=Text(title),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for column in rows[0]:
        if column not in hidden:
            table.add_column(Text(column), no_wrap=True)
    for row in rows:
        table.add_row(*(Text(str(v)) for column, v in row.items() if column not in hidden))
    console.print(table)
