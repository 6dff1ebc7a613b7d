"""The graph app in a study, from its YAML to the report."""

import csv
import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml

from isoattn.ablate.domain import shipped_studies
from isoattn.ablate.study import load_study
from isoattn.apps.base.study import build, resolve
from isoattn.apps.graph.app import GraphCLI
from isoattn.apps.graph.study import GraphStudy
from isoattn.apps.main import main
from isoattn.core import Zero, replaced_attention

SMALL = {
    "data.init_args.source.init_args.nodes": 60,
    "model.network.init_args.hidden": 8,
    "model.network.init_args.heads": 2,
    "trainer.max_epochs": 2,
    "trainer.check_val_every_n_epoch": 1,
}
STUDY = {
    "name": "blocks",
    "app": "graph",
    "title": "Blocks",
    "question": "Does it run?",
    "configs": ["block_model"],
    "overrides": SMALL,
    "arms": {
        "Softmax": {"class_path": "GumbelSoftmax", "init_args": {"draws": 0}},
        "GumbelFavor": {"class_path": "GumbelFavor", "init_args": {"draws": 2}},
        "Zero": "Zero",
    },
    "baseline": "Softmax",
    "references": {"GCN": {"model.network": "isoattn.graph.models.GCN"}},
    "swaps": ["Softmax", "GumbelFavor"],
    "with_seed": ["data.init_args.source.init_args.split.index"],
    "search": {"values": [0.01], "seeds": []},
    "confirm_seeds": [0, 1],
    "claim": False,
}
REMEDY = "(delete the cell's folder to run it anew)"


@pytest.fixture(scope="module")
def config():
    argv = [f"--{key}={json.dumps(value)}" for key, value in SMALL.items()]
    return resolve(GraphCLI, ["fit", "--config=block_model", *argv])


def test_a_study_of_arms_reference_and_swaps(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    Path("study.yaml").write_text(yaml.safe_dump(STUDY))
    assert main(["ablate", "run", "study.yaml", "--jobs=1", "--tracker=none"]) == 0
    folder = Path("runs/ablate/blocks-full")
    cells = [json.loads(p.read_text()) for p in folder.glob("cells/*/cell.json")]
    assert {c["status"] for c in cells} == {"done"} and len(cells) == 8
    splits = {
        yaml.safe_load((folder / "cells" / c["cell"] / "cell.yaml").read_text())["data"][
            "init_args"
        ]["source"]["init_args"]["split"]["index"]
        for c in cells
    }
    assert splits == {0, 1}
    for seed in (0, 1):  # each split its own batches, shared by all that are compared on it
        assert len({tuple(c["batch_hashes"]) for c in cells if c["seed"] == seed}) == 1
    assert len({tuple(c["batch_hashes"]) for c in cells}) == 2
    favor = next(c for c in cells if c["arm"] == "GumbelFavor")
    assert favor["replaced_by"] == "Mean"
    report = next(folder.glob("report.md")).read_text()
    assert "GCN" in report and "label propagation" in report
    with (folder / "cells.csv").open(newline="") as stream:
        roles = {row["arm"]: row["role"] for row in csv.DictReader(stream)}
    assert roles == {**dict.fromkeys(STUDY["arms"], "arm"), "GCN": "reference"}
    late_swaps_are_scored_without_training(folder, capfd)


def late_swaps_are_scored_without_training(folder, capfd):
    """The study as if it had named GumbelFavor among its swaps after its cells had ended."""
    files = {p: json.loads(p.read_text()) for p in sorted(folder.glob("cells/*/cell.json"))}
    late = [p for p, cell in files.items() if "GumbelFavor" in cell["swapped"]]
    for file in late:
        cell = json.loads(file.read_text())
        del cell["swapped"]["GumbelFavor"]
        for name in [name for name in cell["metrics"] if name.endswith("@GumbelFavor")]:
            del cell["metrics"][name]
        file.write_text(json.dumps(cell))
    gone, broken, other, _ = late  # two of Softmax, two of Zero
    best = [file.parent / "checkpoints" / "best.ckpt" for file in late]
    shutil.copy(best[3], best[2])
    best[1].write_bytes(b"damaged")
    best[0].unlink()
    capfd.readouterr()
    assert main(["ablate", "run", "study.yaml", "--jobs=1", "--tracker=none"]) == 0
    said = capfd.readouterr().err
    assert "swaps named since: 1 of 4 finished cells scored anew" in said
    assert f"not scored, its best checkpoint is damaged {REMEDY}: {broken.parent.name}" in said
    assert f"not scored, its best checkpoint was not kept {REMEDY}: {gone.parent.name}" in said
    assert "its checkpoint or its data are not those of its record (test/accuracy" in said
    for file, before in files.items():
        after = json.loads(file.read_text())
        if file in (gone, broken, other):
            assert "GumbelFavor" not in after["swapped"]
        else:  # the very scores that it had when it ended
            assert after == before and ("GumbelFavor" in after["swapped"] or file not in late)
    report = next(folder.glob("report.md")).read_text()
    assert "a run whose best checkpoint was not kept cannot be scored with a swap" in report


def test_flops_are_the_closed_form_and_the_rest(config):
    study, built = GraphStudy(), build(GraphCLI, config)
    total, attention = study.flops(built)
    assert 0 < attention < total
    with replaced_attention(built.model.network, Zero):
        rest, none = study.flops(built)
    assert (rest, none) == (total - attention, 0)
    entries = int(built.datamodule.task.graph.num_edges) + 60  # with self loops
    dense = 2 * 60 * (64 * 8 + 2 * (3 * 8 * 16 + 16 * 8) + 8 * 4)
    assert rest == dense + 2 * entries * 2 * 16


def test_scores_are_those_of_the_app(config):
    built = build(GraphCLI, config)
    scores = GraphStudy().evaluate(built.model.eval(), built.datamodule, "val")
    task = built.datamodule.task
    with torch.no_grad():
        answer = built.model(task.graph).logits.argmax(1)
    right = (answer == task.y)[task.split.val]
    assert scores.metrics["accuracy"] == pytest.approx(float(right.double().mean()))
    assert scores.index.tolist() == sorted(task.split.val.tolist())


@pytest.mark.parametrize("preset", ["smoke", "mini", "full"])
def test_the_shipped_study_is_whole(preset):
    study = load_study(shipped_studies()["nodeformer_kernel"], preset)
    assert study.baseline == "Softmax" and "Zero" in study.arms
    assert study.claim == (preset != "smoke")
