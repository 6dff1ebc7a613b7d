"""A finished tiny study that many tests read, and the planted attentions."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from isoattn.ablate.engine import Engine, RunSettings
from isoattn.ablate.records import StudyResults
from isoattn.ablate.report import write_report
from isoattn.ablate.study import Study, load_study

from .fake_runs import fake_engine
from .tiny import BESIDE, PLANTED, tiny, two_cells, write_study


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
    return _trained(tmp_path_factory.mktemp("undisturbed"), tiny())


def _trained(root: Path, raw: dict[str, Any]) -> Finished:
    file = write_study(root, raw)
    engine = Engine(load_study(file), root / "out", RunSettings(jobs=1, tracker="none"))
    return _finished(file, engine, engine.run())


def _finished(file: Path, engine: Engine, results: StudyResults) -> Finished:
    text = (engine.folder / "differences.txt").read_text(encoding="utf-8")
    write_report(engine.study, results, engine.folder, differences=text)
    return Finished(file, engine.study, engine.folder, results)


@pytest.fixture(scope="session")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A study with a reference and swaps, never disturbed; its numbers are made up."""
    root = tmp_path_factory.mktemp("beside")
    file = write_study(root, two_cells(**BESIDE))
    with fake_engine(two_cells(**BESIDE), root / "out") as engine:
        results = engine.run()
    return _finished(file, engine, results)


@pytest.fixture(scope="session")
def beside_trained(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The same study, trained."""
    return _trained(tmp_path_factory.mktemp("beside_trained"), two_cells(**BESIDE))


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Name of an imported module with attentions that are broken on purpose."""
    folder = tmp_path_factory.mktemp("planted")
    (folder / "planted_attentions.py").write_text(PLANTED, encoding="utf-8")
    sys.path.insert(0, str(folder))
    importlib.import_module("planted_attentions")
    yield "planted_attentions"
    sys.path.remove(str(folder))
