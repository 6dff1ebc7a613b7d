"""``isoattn attentions`` and docs/attention.md: complete, true and up to date."""

import re
from pathlib import Path

import pytest

from isoattn.apps.core.arguments import choose
from isoattn.apps.core.attention_table import markdown
from isoattn.apps.core.founding import CORRECTIONS, INTRODUCTION, SURVEY
from isoattn.apps.core.inventory import _released, entries
from isoattn.core import attentions
from isoattn.core.factories import concrete
from isoattn.core.mixers import Mixer

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "attention.md"


def own(classes):
    return {n for n, c in classes.items() if c.__module__.startswith("isoattn.core.")}


def test_the_page_is_the_one_that_is_generated():
    assert PAGE.read_text(encoding="utf-8") == markdown(entries()), (
        "docs/attention.md is out of date: isoattn attentions --markdown > docs/attention.md"
    )


def test_every_class_but_the_controls_and_multi_head_names_its_paper():
    without = {e.name for e in entries() if not re.search(r"\b(19|20)\d\d\b", e.source)}
    assert without <= {"Mean", "Identity", "Zero", "Softmax", "MultiHead"}


def test_every_class_is_in_it_with_source_file_and_test():
    found = {e.name: e for e in entries()}
    assert set(found) == own(attentions()) | own(concrete(Mixer))
    page = PAGE.read_text(encoding="utf-8")
    for name, entry in found.items():
        assert f"### {name}\n" in page
        assert entry.summary
        assert (ROOT / entry.module).is_file()
        assert entry.test and (ROOT / entry.test).is_file(), f"{name} has no test file"
        assert re.search(rf"\b{name}\b", (ROOT / entry.test).read_text(encoding="utf-8")), name


def test_every_link_leads_somewhere():
    page = PAGE.read_text(encoding="utf-8")
    anchors = {h.lower().replace(" ", "-") for h in re.findall(r"^#+ (.+)$", page, re.MULTILINE)}
    for target in re.findall(r"(?<!\\)\[[^\[\]]*\]\(([^)]+)\)", page):
        if target.startswith("#"):
            assert target[1:] in anchors, target
        else:
            assert (PAGE.parent / target).resolve().is_file(), target


def test_every_mechanism_of_the_founding_pages_has_a_class_or_says_that_it_has_none():
    page = PAGE.read_text(encoding="utf-8")
    assert len(INTRODUCTION) + len(SURVEY) == page.count("\n| ") - page.count("\n| [") - 4
    for number in range(1, len(CORRECTIONS) + 1):
        assert f"\n{number}. " in page
    for mechanism in (*INTRODUCTION, *SURVEY):
        for name in mechanism.names:
            if "(" in name:  # options that it has
                choose(name).factory(2, 8)
    notes = " ".join(m.note for m in (*INTRODUCTION, *SURVEY))
    for number in re.findall(r"correction (\d+)", notes):
        assert 1 <= int(number) <= len(CORRECTIONS)


def test_released_code_is_read_from_the_docstring():
    assert _released("A.\n\nReleased code: adds 1e-6\n    to all.\n\nArgs:\n    x: y") == (
        "Adds 1e-6 to all."
    )
    doc = "A.\n\nArgs:\n    a: one. The paper has none; X releases 2.\n    b: three."
    assert _released(doc) == "The paper has none; X releases 2."
    assert _released("A.") == ""


def test_the_command(isoattn):
    listed = isoattn("attentions")
    assert listed.code == 0 and "CrossCovariance" in listed.out and "O(N^2)" in listed.out
    one = isoattn("attentions", "CrossCovariance")
    assert "El-Nouby et al. 2021" in one.out and "Not defined: causal" in one.out
    wrong = isoattn("attentions", "Linea")
    assert wrong.code == 2 and "Did you mean Linear" in wrong.err


@pytest.mark.parametrize("entry", entries(), ids=lambda e: e.name)
def test_costs_are_those_of_the_class(entry):
    if entry.costs is None:
        assert entry.name == "MultiHead"  # it depends on the attention
        return
    assert entry.costs.text in ("0", "O(N)", "O(N^2)") or "^" in entry.costs.text
    constant = entry.capability.state == "constant"
    assert (entry.costs.state[0] == entry.costs.state[-1]) or not constant
