"""``isoattn ablate`` as it is typed: help, errors, reports; nothing here trains."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from isoattn.ablate.engine import Engine, RunSettings
from isoattn.ablate.study import load_study
from isoattn.apps.vision.study import VisionStudy

from .conftest import Finished
from .tiny import OPTIONS, Outcome, outcome, rows, run_command, tiny, two_cells, write_study


def ablate(*argv: str | Path) -> Outcome:
    return run_command("ablate", *map(str, argv))


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, no_key: None) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("verb", [(), ("plan",), ("diff",), ("run",), ("report",)])
def test_help(verb: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        run_command("ablate", *verb, "--help")
    assert end.value.code == 0


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("pln", "xca_vs_softmax"), "invalid choice"),
        (("plan",), "the following arguments are required: study"),
        (("plan", "xca_vs_sofmax"), "no study 'xca_vs_sofmax'. Did you mean xca_vs_softmax?"),
        (("plan", "marked_rows", "--preset", "smok"), "no preset 'smok'. Did you mean smoke"),
        (("run", "marked_rows", "--jobs", "0"), "--jobs and --threads must be at least 1"),
        (("run", "marked_rows", "--threads", "-1"), "must be at least 1"),
        (("run", "marked_rows", "--jobs", "two"), "invalid int value"),
        (("run", "marked_rows", "--trakcer", "none"), "unrecognized arguments"),
        (("run", "marked_rows", "--tracker", "wanbd"), "invalid choice: 'wanbd'"),
        (
            ("diff", "marked_rows", "--preset", "mini", "--arms", "Softmx", "Zero"),
            "no arm 'Softmx'. Did you mean Softmax?",
        ),
        (("report", "marked_rows"), "holds no study yet: isoattn ablate run marked_rows"),
        (("report", "."), "is no study folder: it has no registered.json"),
        (("plan", "marked_rows", "--import", "no_such_module"), "--import no_such_module"),
        (("plan", "marked_rows", "--set", "data.batch_size"), "must be OPTION=VALUE"),
        (("plan", "marked_rows", "--set", "model.attention=Zero"), "sets the attention"),
        (("plan", "marked_rows", "--set", "data.bach_size=3"), "batch_size"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(argv: tuple[str, ...], message: str) -> None:
    result = ablate(*argv)
    assert result.code == 2
    assert result.short
    assert message in result.err


def test_a_study_file_that_is_none_is_a_short_error(elsewhere: Path) -> None:
    (elsewhere / "x.yaml").write_text("arms: [")
    result = ablate("plan", "x.yaml")
    assert result.code == 2
    assert result.short
    assert "Cannot read the study x.yaml" in result.err


def test_plan_shows_cells_differences_and_cost(elsewhere: Path) -> None:
    write_study(elsewhere, two_cells(confirm_seeds=[0, 1, 2]))
    result = ablate("plan", "tiny.yaml")
    assert result.code == 0, result.err
    assert "Softmax -> Zero (all)" in result.out
    assert "model.attention.class_path: Softmax -> Zero" in result.out
    assert "0 search cells, 6 confirmation cells -> runs/ablate/tiny-full" in result.out
    assert "core minutes in all" in result.out
    assert "from a few timed steps" in result.out
    assert not (elsewhere / "runs").exists()


def test_a_plan_whose_steps_cannot_be_timed_is_still_a_plan(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("IndexError: planted")

    monkeypatch.setattr(VisionStudy, "estimate", broken)
    write_study(elsewhere, two_cells())
    result = ablate("plan", "tiny.yaml")
    assert result.code == 0, result.err
    assert "0 search cells, 2 confirmation cells" in result.out
    assert "no estimate, a few steps could not be timed: IndexError: planted" in result.out


def test_plan_of_what_has_run_goes_by_the_times_it_took(finished: Finished) -> None:
    result = ablate("plan", finished.folder)
    assert result.code == 0, result.err
    assert "as in the cells that are there" in result.out


def test_diff_is_between_the_arms_named(finished: Finished) -> None:
    result = ablate("diff", finished.folder, "--arms", "Zero", "Softmax")
    assert result.code == 0, result.err
    assert result.out.splitlines()[0] == "Zero -> Softmax (all)"
    assert "class_path: Zero -> Softmax" in result.out


def test_report_of_a_folder_is_what_the_run_had_written(
    finished: Finished, elsewhere: Path
) -> None:
    copy = shutil.copytree(finished.folder, elsewhere / "copy")
    (copy / "report.html").unlink()
    result = ablate("report", "copy")
    assert result.code == 0, result.err
    assert "Softmax" in result.out
    assert "report: copy/report.html" in result.out
    assert outcome(copy) == outcome(finished.folder)
    assert rows(copy) == rows(finished.folder)
    assert (copy / "report.html").is_file()


def test_report_by_the_name_of_the_file_finds_the_folder(
    finished: Finished, elsewhere: Path
) -> None:
    shutil.copytree(finished.folder, elsewhere / "runs" / "ablate" / "tiny-full")
    shutil.copy(finished.file, elsewhere / "tiny.yaml")
    result = ablate("report", "tiny.yaml")
    assert result.code == 0, result.err
    assert "report: runs/ablate/tiny-full/report.html" in result.out


def test_report_of_a_file_that_was_changed_since_is_refused(
    finished: Finished, elsewhere: Path
) -> None:
    """A margin that is chosen after the result is not the registered one."""
    shutil.copytree(finished.folder, elsewhere / "out")
    study = yaml.safe_load(finished.file.read_text())
    write_study(elsewhere, {**study, "metric": {"margin": 0.3}})
    result = ablate("report", "tiny.yaml", "--out", "out")
    assert result.code == 2
    assert result.short
    assert "metric.margin: 0.01 -> 0.3" in result.err
    assert "isoattn ablate report out reports what was registered" in result.err


def test_a_folder_takes_no_preset_of_its_own(finished: Finished) -> None:
    result = ablate("report", finished.folder, "--preset", "smoke")
    assert result.code == 2
    assert "holds the preset full already" in result.err


def test_an_amended_study_goes_on_and_says_so(finished: Finished, elsewhere: Path) -> None:
    copy = shutil.copytree(finished.folder, elsewhere / "out")
    study = yaml.safe_load(finished.file.read_text())
    write_study(elsewhere, {**study, "question": "Another one?"})
    refused = ablate("run", "tiny.yaml", "--out", "out", "--tracker", "none")
    assert refused.code == 2
    assert refused.short
    assert "question: Does it run? -> Another one?" in refused.err
    changed = load_study(elsewhere / "tiny.yaml")
    Engine(changed, copy, RunSettings(tracker="none", amend=True)).register()
    result = ablate("report", "tiny.yaml", "--out", "out")
    assert result.code == 0, result.err
    assert "question: Does it run? -&gt; Another one?" in (copy / "report.html").read_text()
    assert "changed after registration" in (copy / "report.md").read_text()


def test_plan_diff_and_report_of_a_study_with_references(beside: Finished, elsewhere: Path) -> None:
    planned = ablate("plan", beside.folder)
    assert planned.code == 0, planned.err
    assert "ViT (reference)" in planned.out
    assert "4 search cells, 2 confirmation cells" in planned.out
    assert "and of references 2 search cells, 1 confirmation cells" in planned.out
    assert "as in the cells that are there" in planned.out
    changed = ablate("diff", beside.folder)
    assert changed.code == 0, changed.err
    assert "Softmax -> ViT (all): beside, not judged: another network" in changed.out
    copy = shutil.copytree(beside.folder, elsewhere / "copy")
    report = ablate("report", "copy")
    assert report.code == 0, report.err
    assert "Beside, not judged: another network; difference to Softmax" in report.out
    assert outcome(copy) == outcome(beside.folder)
    assert rows(copy) == rows(beside.folder)


LONG_NAME = "An-arm-with-a-name-that-is-long-enough-to-wrap"


def test_users_own_attention_takes_part(elsewhere: Path) -> None:
    (elsewhere / "my_attentions.py").write_text(
        "from isoattn.core import Softmax\n\n\nclass Mine(Softmax):\n"
        "    def __init__(self, heads, head_dim):\n        super().__init__(heads, head_dim)\n"
    )
    arms = {"Softmax": "Softmax", LONG_NAME: "my_attentions.Mine"}
    raw = two_cells(arms=arms, overrides={**OPTIONS, "trainer.max_epochs": 1})
    write_study(elsewhere, raw)
    refused = ablate("plan", "tiny.yaml")
    assert refused.code == 2
    assert "no attention named 'my_attentions.Mine'" in refused.err
    argv = ("run", "tiny.yaml", "--out", "out", "--tracker", "none", "--import", "my_attentions")
    result = ablate(*argv)
    assert result.code == 0, result.err
    said = [line for line in result.err.splitlines() if line.startswith("confirm ")]
    assert len(said) == 2  # one line a cell, however long
    assert all(line.endswith(" s)") and "test/accuracy" in line for line in said)
    assert "report: out/report.html" in result.out
    one, two = rows(elsewhere / "out")
    assert one["status"] == two["status"] == "done"
    assert one["test/accuracy"] == two["test/accuracy"]
    assert (elsewhere / "out" / "costs.json").is_file()


def test_an_option_for_all_cells_is_registered(tmp_path: Path) -> None:
    file = write_study(tmp_path, tiny())
    study = load_study(file, overrides={"data.batch_size": 8})
    assert study.overrides == {**OPTIONS, "data.batch_size": 8}
    result = ablate("plan", file, "--set", "data.batch_size=8", "--set", "trainer.max_epochs=1")
    assert result.code == 0, result.err
    Engine(study, tmp_path / "out", RunSettings()).register()
    refused = ablate("report", tmp_path / "out", "--set", "data.batch_size=4")
    assert refused.code == 2 and refused.short
    assert "--preset, --set and --out go with the name of a study" in refused.err
