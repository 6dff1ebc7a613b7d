"""The slide app in a study, from its YAML to the report."""

import json
from pathlib import Path

import pytest
import torch
import yaml

from isoattn.ablate.domain import shipped_studies
from isoattn.ablate.study import load_study
from isoattn.apps.base.study import build, resolve
from isoattn.apps.main import main
from isoattn.apps.wsi.app import WsiCLI
from isoattn.apps.wsi.study import WsiStudy, median_tiles
from isoattn.wsi.metrics import macro_auc

SMALL = {
    "data.init_args.source.init_args.difficulty.bags": 24,
    "data.init_args.source.init_args.difficulty.tiles": 20,
    "data.init_args.source.init_args.difficulty.features": 8,
    "model.network.init_args.dim": 16,
    "model.network.init_args.heads": 2,
    "trainer.max_epochs": 1,
}
STUDY = {
    "name": "needles",
    "app": "wsi",
    "title": "Needles",
    "question": "Does it run?",
    "configs": ["needle"],
    "overrides": SMALL,
    "arms": {
        "Softmax": "Softmax",
        "Nystrom": {
            "class_path": "Nystrom",
            "init_args": {"landmarks": 8, "compat": "nystrom-attention"},
        },
    },
    "baseline": "Softmax",
    "references": {"ABMIL": {"model.network": "isoattn.wsi.models.ABMIL"}},
    "swaps": ["Softmax", "Nystrom"],
    "with_seed": ["data.init_args.source.init_args.seed"],
    "metric": {"name": "auc"},
    "search": {"values": [0.01], "seeds": []},
    "confirm_seeds": [0, 1],
    "claim": False,
}


@pytest.fixture(scope="module")
def config():
    argv = [f"--{key}={json.dumps(value)}" for key, value in SMALL.items()]
    return resolve(WsiCLI, ["fit", "--config=needle", *argv])


def test_a_study_of_arms_reference_and_swaps(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("study.yaml").write_text(yaml.safe_dump(STUDY))
    assert main(["ablate", "run", "study.yaml", "--jobs=1", "--tracker=none"]) == 0
    folder = Path("runs/ablate/needles-full")
    cells = [json.loads(p.read_text()) for p in folder.glob("cells/*/cell.json")]
    assert {c["status"] for c in cells} == {"done"} and len(cells) == 6
    for seed in (0, 1):  # each seed its own bags, shared by all that are compared on it
        assert len({tuple(c["batch_hashes"]) for c in cells if c["seed"] == seed}) == 1
    assert len({tuple(c["batch_hashes"]) for c in cells}) == 2
    nystrom = next(c for c in cells if c["arm"] == "Nystrom")
    assert nystrom["replaced_by"] == "Mean" and "test/auc@Softmax" in nystrom["metrics"]
    report = next(folder.glob("report.md")).read_text()
    assert "ABMIL" in report and "logistic regression" in report


def test_flops_are_of_the_median_bag(config):
    study, built = WsiStudy(), build(WsiCLI, config)
    assert median_tiles(built.datamodule) == 20
    total, attention = study.flops(built)
    assert 0 < attention < total
    assert study.attention_shape(config) == (2, 8, 26)  # class token, 20 tiles, 5 of them again


def test_scores_are_those_of_the_app(config):
    built = build(WsiCLI, config)
    model, data = built.model.eval(), built.datamodule
    scores = WsiStudy().evaluate(model, data, "val")
    task = data.task
    with torch.no_grad():
        logits = torch.cat(
            [
                model.network(bag.features[None], bag.cells()[None])
                for bag in map(task.reader.read, task.split.val.tolist())
            ]
        )
    assert scores.metrics["auc"] == pytest.approx(macro_auc(logits, task.labels[task.split.val]))
    assert scores.index.tolist() == task.split.val.tolist()
    assert torch.equal(scores.predicted, logits.argmax(1))


@pytest.mark.parametrize("preset", ["smoke", "mini", "full"])
@pytest.mark.parametrize("name", ["transmil_attention", "tumour_fraction", "nystrom_landmarks"])
def test_the_shipped_studies_are_whole(name, preset):
    study = load_study(shipped_studies()[name], preset)
    assert study.baseline == "Softmax" and study.metric.name in WsiStudy.metrics
    assert study.claim == (preset != "smoke")
    head = shipped_studies()[name].read_text().splitlines()[:2]
    assert head[0] == f"# isoattn ablate run {name}" and head[1].startswith("# Expect: ")
    assert "MEASURE" not in head[1]


@pytest.mark.parametrize("seed", [0, 1])
def test_the_task_of_the_studies_is_neither_trivial_nor_impossible(seed):
    """Who knows how bags are made finds the label; means over their tiles do not."""
    given = f"--data.init_args.source.init_args.seed={seed}"
    config = resolve(WsiCLI, ["fit", "--config=needle_study", given])
    study = WsiStudy()
    task = build(WsiCLI, config).datamodule.task
    members = task.split.test
    odds = torch.tensor([task.reader.oracle(i) for i in members.tolist()])
    ceiling = macro_auc(torch.stack([-odds, odds], 1), task.labels[members])
    mean = study.baselines(config)["mean of the tiles, logistic regression"]
    assert ceiling > 0.97 and mean < 0.75


def test_the_cost_of_bags_needs_no_data():
    study = load_study(shipped_studies()["transmil_attention"], "mini")
    key = study.cost.key
    for size in (study.cost.values[0], study.cost.values[-1]):
        config = resolve(WsiCLI, ["fit", "--config=cost_bags", f"--{key}={size}"])
        heads, width, tokens = WsiStudy().attention_shape(config)
        assert (heads, width) == (8, 64) and size < tokens < 1.3 * size
