"""Puts a report together and writes its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from isoattn.ablate.records import StudyResults
from isoattn.ablate.report import ReportPaths, appendix, sections, style
from isoattn.ablate.report.blocks import Block, Chart
from isoattn.ablate.report.files import cells_csv, write_atomic
from isoattn.ablate.report.markdown import to_markdown
from isoattn.ablate.report.page import to_html
from isoattn.ablate.study import Study
from isoattn.ablate.summary import scale_of, summarise


def write(study: Study, results: StudyResults, folder: Path, differences: str) -> ReportPaths:
    """See :func:`isoattn.ablate.report.write_report`."""
    summary = summarise(study, results)
    blocks = compose(summary, differences)
    for block in blocks:
        if isinstance(block, Chart):
            write_atomic(folder / "figures" / f"{block.name}.svg", style.on_paper(block.svg))
    data = json.dumps(summary, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    return ReportPaths(
        markdown=write_atomic(folder / "report.md", to_markdown(study.title, blocks)),
        html=write_atomic(folder / "report.html", to_html(study.title, blocks)),
        csv=write_atomic(folder / "cells.csv", cells_csv(study, results.cells)),
        json=write_atomic(folder / "summary.json", data),
    )


def compose(summary: dict[str, Any], differences: str = "") -> list[Block]:
    """The report as blocks, in reading order."""
    scale = scale_of(summary)
    return [
        *sections.front(summary, scale),
        *sections.results(summary, scale),
        *sections.attention_used(summary, scale),
        *sections.learning_rates(summary, scale),
        *sections.learning_curves(summary, scale),
        *sections.factors(summary, scale),
        *appendix.controls(summary, scale),
        *appendix.items(summary, scale),
        *appendix.cost(summary, scale),
        *appendix.troubles(summary),
        *appendix.origin(summary, differences),
    ]
