"""``isoattn ablate cost`` as it is typed, its files, and its section of the report."""

from __future__ import annotations

import csv
import re
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from isoattn.ablate import cost_command
from isoattn.ablate.command import run_ablate
from isoattn.ablate.cost_records import read_costs
from isoattn.ablate.folder import register
from isoattn.ablate.plan import Plan
from isoattn.ablate.report import write_report

from .curves import SECTION, Curves, study_of, write_study
from .fake_results import make_results, make_study
from .tiny import Outcome, run_command


def ablate(*argv: str | Path) -> Outcome:
    return run_command("ablate", *map(str, argv))


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, no_key: None) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Curves:
    made = Curves(broken={("Zero", 4000)})
    monkeypatch.setattr(cost_command, "study_app", lambda name: made)
    return made


@pytest.fixture
def folder(app: Curves, elsewhere: Path) -> Path:
    """The folder of a study whose cost was measured."""
    write_study(elsewhere, cost={**SECTION, "limit_seconds": 0.3})
    result = ablate("cost", "curves.yaml")
    assert result.code == 0, result.err
    return elsewhere / "runs" / "ablate" / "curves-full"


def test_help_shows_what_to_write(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        run_ablate(["cost", "--help"])
    assert end.value.code == 0
    said = capsys.readouterr().out
    for words in ("--sizes", "limit_seconds: 30", "key: data.init_args.image_size", "cost.json"):
        assert words in said


def test_it_prints_a_line_a_size_a_table_and_a_sentence_an_arm(
    app: Curves, elsewhere: Path
) -> None:
    write_study(elsewhere, cost={**SECTION, "limit_seconds": 0.3})
    result = ablate("cost", "curves.yaml", "--out", "here")
    assert result.code == 0, result.err
    assert "cost 1/4  500 nodes" in result.err
    assert "4,000 nodes: OutOfMemoryError: Zero wants too much. Now each arm by" in result.err
    assert re.search(r"Softmax +25 +100 +400 +– +– +baseline", result.out)
    assert "Linear against Softmax: 0.5 times the training step at 2,000 nodes (cheaper from" in (
        result.out
    )
    assert "not measured: Softmax, 4,000 nodes: over the limit of 0.3 s: a step too" in result.out
    assert "not measured: Zero, 4,000 nodes: OutOfMemoryError: Zero wants too much" in result.out
    assert "written here/cost: cost.md, cost.png, cost.csv, cost.json" in result.out


def test_the_files_hold_every_number(folder: Path) -> None:
    place = folder / "cost"
    table = read_costs(folder)
    assert table is not None
    with (place / "cost.csv").open(encoding="utf-8", newline="") as file:
        rows = {(row["arm"], row["size"]): row for row in csv.DictReader(file)}
    assert len(rows) == 12 == len(table.rows)
    assert rows["Linear", "1000"]["step_ms"] == "100.0"
    assert rows["Linear", "1000"]["tokens"] == "1000"
    assert (rows["Softmax", "4000"]["status"], rows["Softmax", "4000"]["step_ms"]) == (
        "left out",
        "",
    )
    assert (place / "cost.png").read_bytes().startswith(b"\x89PNG")
    page = (place / "cost.md").read_text(encoding="utf-8")
    for words in (
        "# Curves",
        "## Cost over nodes",
        "data.nodes grows, configs: block\\_model",
        "![Step time and peak memory of the arms over size](cost.png)",
        "| Linear | cheaper from 1,000–2,000 (about 1,000) |",
        "| Softmax | 25 | 0.1 | 1 | 8.33 | 1 | 5 | 1 | 0.0005 | 10 + 15 | fused |",
        "| Softmax |" + " – |" * 9 + " over the limit of 0.3 s |",
        "by itself, not interleaved",
        "- Zero, 4,000 nodes: OutOfMemoryError: Zero wants too much",
    ):
        assert words in page, page
    assert [path.name for path in sorted(place.iterdir())] == [
        *(".lock", "cost.csv", "cost.json", "cost.md", "cost.png")
    ]


def test_sizes_on_the_command_line_are_measured_instead(app: Curves, elsewhere: Path) -> None:
    write_study(elsewhere)
    result = ablate("cost", "curves.yaml", "--sizes", "700", "300")
    assert result.code == 0, result.err
    assert [size for size, *_ in app.calls] == [300, 300, 700]


def test_a_second_time_nothing_is_measured(app: Curves, folder: Path) -> None:
    app.calls.clear()
    (folder / "cost" / "cost.md").unlink()
    assert ablate("cost", "curves.yaml").code == 0
    assert app.calls == []
    assert (folder / "cost" / "cost.md").is_file()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("curves.yaml", "--sizes", "0"), "--sizes must be above 0, got 0"),
        (("curves.yaml", "--sizes", "big"), "invalid int value: 'big'"),
        (("curves.yaml", "--preset", "smok"), "no preset 'smok'"),
        (("curves.yam",), "There is no study 'curves.yam'"),
    ],
)
def test_mistakes(app: Curves, elsewhere: Path, argv: tuple[str, ...], message: str) -> None:
    write_study(elsewhere)
    result = ablate("cost", *argv)
    assert result.code == 2
    assert result.short
    assert message in result.err


def test_a_study_without_a_section_is_told_what_to_write(app: Curves, elsewhere: Path) -> None:
    write_study(elsewhere, cost=None)
    result = ablate("cost", "curves.yaml")
    assert result.code == 2
    assert result.short
    assert "curves does not say what its cost is measured over" in result.err
    assert "  cost:\n    key: data.init_args.image_size" in result.err
    assert not (elsewhere / "runs").exists()


def registered(folder: Path, **changes: Any) -> Path:
    """A study folder with nothing in it but the study."""
    study = study_of(cost=None, **changes)
    app: Any = Curves()
    register(study, Plan(study, app), folder, amend=False)
    return folder


def test_the_folder_of_another_study_is_refused(app: Curves, elsewhere: Path) -> None:
    (elsewhere / "out").mkdir()
    registered(elsewhere / "out", question="Another one?")
    write_study(elsewhere)
    result = ablate("cost", "curves.yaml", "--out", "out")
    assert result.code == 2
    assert "curves.yaml is not the study that is registered in out" in result.err


def test_a_stopped_run_says_how_to_go_on(app: Curves, elsewhere: Path) -> None:
    def stop(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    app.costs = stop  # type: ignore[method-assign]
    write_study(elsewhere)
    result = ablate("cost", "curves.yaml")
    assert result.code == 130
    assert "stopped; what is done is kept. Go on with: isoattn" in result.err


# --- in the report ------------------------------------------------------------------------------


def test_the_report_has_the_section_when_the_cost_was_measured(
    folder: Path, tmp_path: Path
) -> None:
    study = make_study(factors={})
    results = make_results(study)
    without = write_report(study, results, tmp_path / "report")
    assert "Cost over" not in without.html.read_text(encoding="utf-8")
    shutil.copytree(folder / "cost", tmp_path / "report" / "cost")
    paths = write_report(study, results, tmp_path / "report")
    html = paths.html.read_text(encoding="utf-8")
    assert "<h2>Cost over nodes</h2>" in html
    assert "Linear against Softmax: 0.5 times the training step at 2,000 nodes" in html
    assert 'id="cost_over_size-' in html
    markdown = paths.markdown.read_text(encoding="utf-8")
    assert "](figures/cost_over_size.svg)" in markdown
    picture = ET.parse(paths.markdown.parent / "figures" / "cost_over_size.svg").getroot()
    texts = " ".join("".join(picture.itertext()).split())
    for words in ("milliseconds a training step", "peak memory, MiB", "the study, 2,708", "4,000"):
        assert words in texts


def test_a_folder_is_measured_again_by_the_section_of_then(
    folder: Path, app: Curves, elsewhere: Path
) -> None:
    """What is registered holds no section; the measurement holds its own."""
    arms = {"Softmax": "isoattn.core.Softmax", "Again": "isoattn.core.Softmax"}
    other = elsewhere / "other"
    other.mkdir()
    registered(other, name="tiny", arms=arms)
    refused = ablate("cost", other)
    assert refused.code == 2
    assert "tiny does not say what its cost is measured over" in refused.err
    shutil.copytree(folder / "cost", other / "cost")
    result = ablate("cost", other, "--sizes", "800")
    assert result.code == 0, result.err
    assert "measurements dropped: the study has changed since they were made" in result.err
    table = read_costs(other)
    assert table is not None
    assert [row.arm for row in table.at(800)] == ["Softmax", "Again"]
    assert not table.of("Linear")  # no arm of this study; Softmax is the same run as there
    assert table.section == {**SECTION, "overrides": {}, "arms": [], "limit_seconds": 0.3}
    assert "Again against Softmax: 1 times the training step at 800 nodes" in result.out
