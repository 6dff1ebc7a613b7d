"""isoattn matching profile: time and memory of the modules over resolution."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from isoattn.apps.matching.module_cost import ModuleCost, crossings, measure_size
from isoattn.apps.matching.profile import lines
from isoattn.core import attention_spec

COST = ModuleCost("Softmax", (80, 80), 100, 1.0, 2.0, 0.5, 0.25, None, 10)


def test_the_attention_changes_the_transformer_alone():
    specs = {name: attention_spec(name) for name in ("Softmax", "Linear")}
    first, second = measure_size("tiny", specs, (64, 48), repeats=2, memory=False)
    assert (first.tokens, first.fine, first.peak_bytes) == (48, 0.0, None)
    assert first.backbone == second.backbone > 0 and first.cells == second.cells > 0
    assert first.transformer > 0 and first.attention_flops != second.attention_flops
    assert first.total == pytest.approx(first.backbone + first.transformer + first.cells)


def test_where_one_crosses_another():
    costs = []
    for tokens, softmax, linear in ((100, 1.0, 2.0), (400, 4.0, 4.0), (1600, 16.0, 8.0)):
        costs.append(replace(COST, tokens=tokens, transformer=softmax))
        costs.append(replace(COST, attention="Linear", tokens=tokens, transformer=linear))
    crossed = crossings(costs, "Linear", "Softmax")
    assert crossed["transformer"].tokens == pytest.approx(400)
    assert crossed["whole"].between is not None
    text = lines(costs)
    assert text[-2] == "Linear against Softmax, transformer: cheaper from 400 cells on"
    dear = [replace(cost, transformer=9.0 * cost.transformer) for cost in costs[1::2]]
    text = lines([*costs[::2], *dear])
    assert text[-1] == "Linear against Softmax, whole matcher: not cheaper up to 1,600 cells"


def test_the_command(isoattn):
    done = isoattn(
        "profile", "--sizes", "32", "48x64", "--variant=small", "--repeats=1", "--out=out"
    )
    assert done.code == 0, done.err
    rows = json.loads(Path("out/profile.json").read_text())
    assert [(r["attention"], r["tokens"]) for r in rows] == [
        ("Softmax", 16),
        ("Linear", 16),
        ("Softmax", 48),
        ("Linear", 48),
    ]
    assert all(r["fine"] > 0 and r["peak_bytes"] >= 0 for r in rows)
    with Path("out/profile.csv").open(newline="") as file:
        assert [r["size"] for r in csv.DictReader(file)] == ["32x32"] * 2 + ["48x64"] * 2
    assert "peak MiB" in done.out


@pytest.mark.parametrize(
    "argv, text",
    [
        (("--sizes", "8"), "240x320"),
        (("--variant=huge",), "loftr"),
        (("--attentions", "Sofmax"), "Softmax"),
        (("--size", "8"), "--sizes"),
    ],
)
def test_what_it_refuses(isoattn, argv, text):
    refused = isoattn("profile", *argv)
    assert refused.code == 2 and refused.short and text in refused.err
