"""The one-page report of a study: Markdown, self-contained HTML, every cell as CSV, JSON (P11)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from isoattn.ablate.records import StudyResults
from isoattn.ablate.study import Study


@dataclass(frozen=True)
class ReportPaths:
    """The files of a report."""

    markdown: Path
    html: Path
    csv: Path
    json: Path


def write_report(
    study: Study, results: StudyResults, folder: Path, *, differences: str = ""
) -> ReportPaths:
    """Write the report of a study into ``folder``; also for unfinished and failed studies.

    Args:
        study: the resolved study.
        results: all cells that exist, costs, baselines, environment, deviations.
        folder: made if missing; files of an earlier report are replaced one by one.
        differences: the proof that arms differ in the attention only, as text; may be empty.
    """
    # Late: matplotlib is slow to import, and workers import this package for its other parts.
    from isoattn.ablate.report.write import write

    return write(study, results, folder, differences)
