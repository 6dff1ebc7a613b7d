"""The measuring commands in this process, in an empty folder."""

import runpy
from pathlib import Path

import pytest

run_command = runpy.run_path(str(Path(__file__).parents[1] / "conftest.py"))["run_command"]


@pytest.fixture
def isoattn(monkeypatch, tmp_path):
    """``isoattn(*arguments)`` -> exit status, output, errors."""
    monkeypatch.chdir(tmp_path)
    return lambda *argv: run_command(*map(str, argv))
