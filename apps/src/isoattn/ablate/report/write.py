"""Puts a report together and writes its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from isoattn.ablate.cost_records import CostTable, read_costs
from isoattn.ablate.records import StudyResults
from isoattn.ablate.report import ReportPaths, appendix, beside, sections, strata, style
from isoattn.ablate.report.blocks import Block, Chart
from isoattn.ablate.report.cost_over_size import cost_over_size
from isoattn.ablate.report.files import cells_csv, write_atomic
from isoattn.ablate.report.markdown import to_markdown
from isoattn.ablate.report.page import to_html
from isoattn.ablate.study import Study
from isoattn.ablate.summary import scale_of, summarise


def write(study: Study, results: StudyResults, folder: Path, differences: str) -> ReportPaths:
    """See :func:`isoattn.ablate.report.write_report`."""
    summary = summarise(study, results)
    blocks = compose(summary, differences, read_costs(folder))
    for block in blocks:
        if isinstance(block, Chart):
            write_atomic(folder / "figures" / f"{block.name}.svg", style.on_paper(block.svg))
    data = json.dumps(summary, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    return ReportPaths(
        markdown=write_atomic(folder / "report.md", to_markdown(study.title, blocks)),
        html=write_atomic(folder / "report.html", to_html(study.title, blocks)),
        csv=write_atomic(
            folder / "cells.csv", cells_csv(study, [*results.cells, *results.references])
        ),
        json=write_atomic(folder / "summary.json", data),
    )


def compose(
    summary: dict[str, Any], differences: str = "", costs: CostTable | None = None
) -> list[Block]:
    """The report as blocks, in reading order; ``costs``: over size, where they were measured."""
    scale = scale_of(summary)
    return [
        *sections.front(summary, scale),
        *sections.results(summary, scale),
        *beside.references(summary, scale),
        *sections.attention_used(summary, scale),
        *beside.swaps(summary, scale),
        *strata.strata(summary, scale),
        *sections.learning_rates(summary, scale),
        *sections.learning_curves(summary, scale),
        *sections.factors(summary, scale),
        *appendix.controls(summary, scale),
        *appendix.items(summary, scale),
        *appendix.cost(summary, scale),
        *(cost_over_size(costs) if costs and costs.rows else []),
        *appendix.troubles(summary),
        *appendix.origin(summary, differences),
    ]
