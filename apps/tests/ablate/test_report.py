from __future__ import annotations

import csv
import dataclasses
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isoattn.ablate.records import CellResult, StudyResults
from isoattn.ablate.report import ReportPaths, write_report
from isoattn.ablate.report.files import write_atomic
from isoattn.ablate.report.markdown import escape
from isoattn.ablate.report.style import arm_styles, spread
from isoattn.ablate.report.wording import capital
from isoattn.ablate.study import Study
from isoattn.ablate.summary import summarise

from .fake_results import change, diverged, failed, make_results, make_study


class Page(HTMLParser):
    """Checks that tags nest, and gathers ids, texts and what would be fetched."""

    EMPTY = frozenset({"meta", "br", "link", "img", "hr"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.fetched: list[str] = []
        self.texts: list[str] = []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.EMPTY:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(str(value))
            if name in ("src", "href", "xlink:href") and not str(value).startswith("#"):
                self.fetched.append(str(value))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.EMPTY:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).replace("\N{NO-BREAK SPACE}", " ").split())


def to_loss(cell: CellResult) -> CellResult:
    def turned(numbers: dict[str, float]) -> dict[str, float]:
        return {
            name.replace("accuracy", "loss"): 1 - x if "accuracy" in name else x
            for name, x in numbers.items()
        }

    return change(cell, metrics=turned(cell.metrics), curve=[turned(row) for row in cell.curve])


def smoke() -> tuple[Study, StudyResults]:
    search = {"values": [3e-3], "seeds": []}
    study = make_study(factors={}, search=search, confirm_seeds=[0], claim=False, preset="smoke")
    return study, make_results(study)


def spoiled(spoil: Callable[[CellResult], CellResult]) -> tuple[Study, StudyResults]:
    study = make_study(factors={})
    return study, make_results(study, spoil=spoil)


def partial(count: int, **changes: Any) -> tuple[Study, StudyResults]:
    study = make_study()
    whole = make_results(study)
    left = len(whole.cells) - count
    return study, dataclasses.replace(
        whole, cells=whole.cells[:count], unfinished=left, costs=[], **changes
    )


def mode_min() -> tuple[Study, StudyResults]:
    study = make_study(
        factors={}, metric={"name": "loss", "mode": "min", "margin": 0.02, "worst": 2.5}
    )
    plain = make_results(make_study(factors={}))
    cells = [to_loss(cell) for cell in plain.cells]
    return study, dataclasses.replace(plain, cells=cells, baselines={"all": {"1-NN": 0.05}})


def beside(spoil: Callable[[CellResult], CellResult]) -> tuple[Study, StudyResults]:
    """References, one of them at one level only, and swaps."""
    study = make_study(
        references={"GCN": {"model.network": "GCN"}, "<MLP>": {"model.network": "MLP"}},
        reference_levels={"GCN": {"lpi": "off"}},
        swaps=["Softmax", "Linear", "Zero"],
    )
    return study, make_results(study, spoil=spoil)


def with_references_to_come() -> tuple[Study, StudyResults]:
    study, results = beside(lambda c: c)
    return study, dataclasses.replace(
        results, references=[], unfinished=len(results.references), costs=[]
    )


CASES: dict[str, Callable[[], tuple[Study, StudyResults]]] = {
    "full": lambda: (make_study(), make_results(make_study())),
    "smoke": smoke,
    "nothing": lambda: partial(0, environment={}, baselines={}),
    "searching": lambda: partial(57),
    "confirming": lambda: partial(131),
    "no factors": lambda: spoiled(lambda c: c),
    "one arm diverged": lambda: spoiled(lambda c: diverged(c) if c.arm == "Linear" else c),
    "all diverged": lambda: spoiled(diverged),
    "all failed": lambda: spoiled(failed),
    "some failed": lambda: spoiled(lambda c: failed(c) if c.seed in (2, 100) else c),
    "mode min": mode_min,
    "beside": lambda: beside(lambda c: c),
    "references failed": lambda: beside(lambda c: failed(c) if c.arm == "GCN" else c),
    "references diverged": lambda: beside(lambda c: diverged(c) if c.arm == "GCN" else c),
    "references to come": with_references_to_come,
}


@pytest.fixture(params=list(CASES), scope="module")
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Study, StudyResults, ReportPaths]:
    study, results = CASES[request.param]()
    folder = tmp_path_factory.mktemp("report")
    return request.param, study, results, write_report(study, results, folder)


def test_every_kind_of_study_has_a_report(
    case: tuple[str, Study, StudyResults, ReportPaths],
) -> None:
    name, study, results, paths = case
    page = Page(paths.html.read_text(encoding="utf-8"))
    assert study.title in page.text
    summary = json.loads(paths.json.read_text(encoding="utf-8"))
    for sentence in summary["level_verdicts"].values():
        assert " ".join(sentence.split()) in page.text
    assert not re.search(r"\b(nan|inf|None)\b", page.text), name
    if results.unfinished:
        planned = len(results.cells) + results.unfinished
        assert f"Unfinished: {len(results.cells)} of {planned} cells" in page.text


def test_the_page_needs_nothing_else(case: tuple[str, Study, StudyResults, ReportPaths]) -> None:
    html = case[3].html.read_text(encoding="utf-8")
    page = Page(html)
    assert page.fetched == []
    assert "<script" not in html and "@import" not in html
    assert len(page.ids) == len(set(page.ids))
    used = set(re.findall(r"url\(#([^)]+)\)", html)) | set(re.findall(r'href="#([^"]+)"', html))
    assert used <= set(page.ids)


def test_markdown_and_page_say_the_same(case: tuple[str, Study, StudyResults, ReportPaths]) -> None:
    paths = case[3]
    markdown = paths.markdown.read_text(encoding="utf-8")
    page = Page(paths.html.read_text(encoding="utf-8"))
    heads = [line[3:] for line in markdown.splitlines() if line.startswith("## ")]
    assert all(head in page.text for head in heads)
    for table in re.findall(r"(?:^\|.*\n)+", markdown, flags=re.MULTILINE):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(widths) == 1, table


def test_figures_are_files_that_any_viewer_reads(
    case: tuple[str, Study, StudyResults, ReportPaths],
) -> None:
    paths = case[3]
    names = re.findall(r"\]\((figures/[^)]+)\)", paths.markdown.read_text(encoding="utf-8"))
    for name in names:
        root = ET.parse(paths.markdown.parent / name).getroot()
        assert root.tag.endswith("svg") and root.get("width", "").endswith("pt")
    on_disk = {path.name for path in (paths.markdown.parent / "figures").glob("*")}
    assert {Path(name).name for name in names} == on_disk


def test_every_cell_is_in_the_csv(case: tuple[str, Study, StudyResults, ReportPaths]) -> None:
    _, study, results, paths = case
    with paths.csv.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    cells = [*results.cells, *results.references]
    assert sorted(row["cell"] for row in rows) == sorted(cell.cell for cell in cells)
    by_id = {cell.cell: cell for cell in cells}
    for row in rows:
        cell = by_id[row["cell"]]
        assert (float(row["learning_rate"]), row["status"]) == (cell.learning_rate, cell.status)
        for metric, value in cell.metrics.items():
            assert float(row[metric]) == value
        assert all(row[factor] == cell.levels[factor] for factor in study.factors)
        assert row["role"] == ("reference" if cell.arm in study.references else "arm")


def test_the_same_results_give_the_same_bytes(tmp_path: Path) -> None:
    study, results = beside(lambda c: c)
    reversed_results = dataclasses.replace(
        results, cells=results.cells[::-1], references=results.references[::-1]
    )
    one = write_report(study, results, tmp_path / "a", differences="a\nb")
    two = write_report(study, reversed_results, tmp_path / "b", differences="a\nb")
    for name in ("markdown", "html", "csv", "json"):
        assert getattr(one, name).read_bytes() == getattr(two, name).read_bytes()


def test_a_report_replaces_an_earlier_one_and_leaves_no_scraps(tmp_path: Path) -> None:
    study, results = smoke()
    write_report(study, results, tmp_path)
    write_report(study, dataclasses.replace(results, unfinished=1), tmp_path)
    assert "Unfinished: 5 of 6 cells" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert [p for p in tmp_path.rglob("*") if p.name.endswith(".tmp")] == []


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    file = write_atomic(tmp_path / "x.txt", "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(file, "new \ud800")
    assert file.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_names_are_text_never_markup(tmp_path: Path) -> None:
    arms = {
        "Softmax": "isoattn.core.Softmax",
        '<b>$x_1^2$|`*&"': "isoattn.core.Linear",
    }
    title = "a <script>alert(1)</script> & *title*"
    study = make_study(arms=arms, factors={}, title=title)
    paths = write_report(study, make_results(study), tmp_path, differences="</pre><b>")
    html = paths.html.read_text(encoding="utf-8")
    assert "<script" not in html and "<b>" not in html
    assert title in Page(html).text
    assert '<b>$x_1^2$|`*&"' in Page(html).text
    markdown = paths.markdown.read_text(encoding="utf-8")
    assert "# a \\<script\\>alert(1)\\</script\\> & \\*title\\*" in markdown


def test_the_matters_of_the_protocol_are_on_the_page(tmp_path: Path) -> None:
    study = make_study()
    results = dataclasses.replace(
        make_results(study, folder=tmp_path / "predictions"),
        deviations=["metric.margin: 0.01 -> 0.02"],
        gate_failures=["Zero: mask: leaks"],
    )
    paths = write_report(study, results, tmp_path, differences="model.attention: A -> B")
    text = Page(paths.html.read_text(encoding="utf-8")).text
    for words in (
        "changed after registration",
        "metric.margin: 0.01 -> 0.02",
        "Zero: mask: leaks",
        "attention unused",
        "CrossCovariance is worse than Softmax by",
        "Each arm ran at its own learning rate",
        "Grid: 3e-4, 1e-3, 3e-3, 1e-2, 3e-2; the same for every arm",
        "no arm repeats Softmax",
        "1-NN on pixels: 93.4 %; no arm beats it",
        "inside the attention",
        "Softmax (fused)",
        "model.attention: A -> B",
        "isoattn ablate run rows.yaml --preset full",
        "McNemar",
        "Validation at equal wall-clock",
    ):
        assert words in text, words


def test_the_chosen_rate_and_diverged_runs_are_marked(tmp_path: Path) -> None:
    def spoil(cell: CellResult) -> CellResult:
        return diverged(cell) if (cell.arm, cell.learning_rate) == ("Linear", 3e-2) else cell

    study = make_study(factors={})
    write_report(study, make_results(study, spoil=spoil), tmp_path)
    svg = (tmp_path / "figures" / "learning_rates.svg").read_text(encoding="utf-8")
    assert "2 diverged" in svg
    table = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert re.search(r"\| Linear \| 1e-2 \|.*\| 2 \| inside \|", table)


def test_a_study_of_one_epoch_has_no_learning_curves(tmp_path: Path) -> None:
    study, results = smoke()
    for epochs in (1, 2):
        cells = [change(cell, curve=cell.curve[:epochs]) for cell in results.cells]
        paths = write_report(
            study, dataclasses.replace(results, cells=cells), tmp_path / f"{epochs}"
        )
        drawn = (tmp_path / f"{epochs}" / "figures" / "learning_curves.svg").exists()
        headed = "Learning curves" in paths.markdown.read_text(encoding="utf-8")
        assert (drawn, headed) == (epochs == 2, epochs == 2)


def test_more_than_two_percent_of_parameters_are_flagged(tmp_path: Path) -> None:
    study, results = spoiled(lambda c: change(c, parameters=170_000) if c.arm == "Linear" else c)
    text = write_report(study, results, tmp_path / "a").markdown.read_text(encoding="utf-8")
    assert "| Linear | 170,000 | 0 | +5.40 % | more than 2 % apart |" in text
    text = write_report(*smoke(), tmp_path / "b").markdown.read_text(encoding="utf-8")
    assert "more than 2 % apart" not in text


def test_an_arm_keeps_its_colour() -> None:
    study = make_study(factors={})
    summary = summarise(study, make_results(study))
    styles = arm_styles(summary)
    assert len({style.color for style in styles.values()}) == 5
    fewer = {**summary, "study": {**summary["study"], "arms": dict(list(study.arms.items())[:3])}}
    assert all(arm_styles(fewer)[arm] == styles[arm] for arm in list(study.arms)[:3])


def test_the_users_matplotlib_settings_are_neither_used_nor_changed(tmp_path: Path) -> None:
    study, results = smoke()
    with matplotlib.rc_context({"font.size": 31, "axes.facecolor": "red"}):
        one = write_report(study, results, tmp_path / "a").html.read_bytes()
        assert matplotlib.rcParams["font.size"] == 31
    assert one == write_report(study, results, tmp_path / "b").html.read_bytes()


@given(st.lists(st.floats(0, 1), max_size=8).map(sorted))
def test_labels_keep_their_order_and_distance(wanted: list[float]) -> None:
    spots = spread(wanted, 0.1)
    assert len(spots) == len(wanted)
    assert all(b - a >= 0.1 - 1e-9 for a, b in zip(spots, spots[1:], strict=False))
    apart = all(b - a >= 0.1 for a, b in zip(wanted, wanted[1:], strict=False))
    if apart:
        assert spots == pytest.approx(wanted)


@given(st.text(max_size=30))
def test_markdown_cells_stay_in_their_cell(text: str) -> None:
    assert "\n" not in escape(text)
    assert not re.search(r"(?<!\\)(\\\\)*\|", escape(text))


def test_an_arm_at_the_beginning_of_a_sentence_keeps_its_spelling() -> None:
    assert capital("m64-i1 against Softmax", ["Softmax", "m64-i1"]) == "m64-i1 against Softmax"
    assert capital("neither arm", ["Softmax"]) == "Neither arm"
