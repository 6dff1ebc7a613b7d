"""A finished tiny study that many tests read, and the planted attentions."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from isoattn.ablate.engine import Engine, RunSettings
from isoattn.ablate.records import StudyResults
from isoattn.ablate.report import write_report
from isoattn.ablate.study import Study, load_study

from .tiny import PLANTED, tiny, write_study


@dataclass
class Finished:
    """A study that was never disturbed. Not to be changed."""

    file: Path
    study: Study
    folder: Path
    results: StudyResults


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The tiny study, run in this process one cell at a time."""
    root = tmp_path_factory.mktemp("undisturbed")
    file = write_study(root, tiny())
    study = load_study(file)
    folder = root / "out"
    results = Engine(study, folder, RunSettings(jobs=1, tracker="none")).run()
    text = (folder / "differences.txt").read_text(encoding="utf-8")
    write_report(study, results, folder, differences=text)
    return Finished(file, study, folder, results)


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Name of an imported module with attentions that are broken on purpose."""
    folder = tmp_path_factory.mktemp("planted")
    (folder / "planted_attentions.py").write_text(PLANTED, encoding="utf-8")
    sys.path.insert(0, str(folder))
    importlib.import_module("planted_attentions")
    yield "planted_attentions"
    sys.path.remove(str(folder))
