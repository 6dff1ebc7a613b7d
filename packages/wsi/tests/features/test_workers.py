"""Processes that die, and a cluster that is not installed."""

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

from isoattn.wsi.features import EncoderOptions, ExtractOptions, build_encoder, extract_slides
from isoattn.wsi.features.workers import Task, in_processes
from isoattn.wsi.slides import TilingOptions

OPTIONS = ExtractOptions(
    tiling=TilingOptions(size=256), encoder=EncoderOptions("hed_statistics"), overlay=False
)


class Deadly:
    """Ends the process that unpickles it, as a decoder does that crashes on a file."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (1,)


@pytest.mark.slow
def test_a_slide_that_kills_its_process_is_the_only_one_lost(made: Path, tmp_path: Path) -> None:
    names = ("good.tif", "deadly.tif", "good.svs", "steps.tif")
    tasks = [
        Task(made / name, Deadly() if name == "deadly.tif" else tmp_path / str(i))  # type: ignore[arg-type]
        for i, name in enumerate(names)
    ]
    facts = build_encoder(OPTIONS.encoder).facts()
    outcomes = {Path(o.source).name: o for o in in_processes(tasks, OPTIONS, facts, 2)}
    # One that was finished but not handed over when its pool broke is skipped the second time.
    assert {
        name: outcome.status.replace("skipped", "done") for name, outcome in outcomes.items()
    } == {
        "good.tif": "done",
        "deadly.tif": "failed",
        "good.svs": "done",
        "steps.tif": "done",
    }
    assert all(Path(o.path or "").is_file() for o in outcomes.values() if o.status != "failed")
    assert "died twice" in (outcomes["deadly.tif"].error or "")


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
def test_ray_is_an_extra(made: Path, tmp_path: Path) -> None:
    with pytest.raises(ImportError, match=r"pip install 'isoattn-wsi\[ray\]'"):
        extract_slides(made / "good.tif", tmp_path, OPTIONS, engine="ray")
