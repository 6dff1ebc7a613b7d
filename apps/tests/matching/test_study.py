"""The matching app in a study, from its YAML to the report."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml

from isoattn.ablate.domain import shipped_studies, study_app
from isoattn.ablate.plan import Plan
from isoattn.ablate.study import load_study
from isoattn.apps.base.study import build, resolve
from isoattn.apps.main import main
from isoattn.apps.matching.app import MatchingCLI
from isoattn.apps.matching.study import MatchingStudy
from isoattn.core import Zero, replaced_attention

SMALL = {
    "data.init_args.source.init_args.size": 48,
    "data.init_args.source.init_args.train_pairs": 8,
    "data.init_args.source.init_args.val_pairs": 4,
    "data.init_args.source.init_args.test_pairs": 6,
    "data.init_args.batch_size": 4,
    "model.network.init_args.widths": [4, 8, 16],
    "model.network.init_args.heads": 2,
    "trainer.max_epochs": 1,
}
STUDY = {
    "name": "cells",
    "app": "matching",
    "title": "Cells",
    "question": "Does it run?",
    "configs": ["tiny_context"],
    "overrides": SMALL,
    "arms": {"Softmax": "Softmax", "Linear": "Linear", "Zero": "Zero"},
    "baseline": "Softmax",
    "factors": {
        "swapped": {
            "self": {"model.attention_cross": "isoattn.core.Softmax"},
            "cross": {"model.attention_self": "isoattn.core.Softmax"},
        }
    },
    "swaps": ["Softmax", "Linear"],
    "fine_tune": {"rate": 0.5, "overrides": {"trainer.max_epochs": 2}},
    "metric": {"name": "average_precision_1cell"},
    "search": {"values": [0.01], "seeds": []},
    "confirm_seeds": [0],
    "claim": False,
}


def built(*options):
    argv = [f"--{key}={json.dumps(value)}" for key, value in SMALL.items()]
    return build(
        MatchingCLI, resolve(MatchingCLI, ["fit", "--config=tiny_context", *argv, *options])
    )


def test_a_study_swaps_one_place_at_a_time(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("study.yaml").write_text(yaml.safe_dump(STUDY))
    assert main(["ablate", "run", "study.yaml", "--jobs=1", "--tracker=none"]) == 0
    folder = Path("runs/ablate/cells-full")
    cells = [json.loads(p.read_text()) for p in folder.glob("cells/*/cell.json")]
    assert {c["status"] for c in cells} == {"done"} and len(cells) == 6
    assert len({tuple(c["batch_hashes"]) for c in cells}) == 1
    assert len({c["init_hash"] for c in cells}) == 1
    linear = {c["levels"]["swapped"]: c for c in cells if c["arm"] == "Linear"}
    for level, cell in linear.items():
        metrics = cell["metrics"]
        assert cell["replaced_by"] == "Mean"
        assert "test/average_precision_1cell@Softmax" in metrics, level
        assert cell["strata"].keys() >= {"rotation", "texture"}
        assert sum(group["items"] for group in cell["strata"]["texture"].values()) == 6
        for arm in ("Linear", "Softmax"):  # trained on with its own, and with the other
            assert "test/average_precision_1cell@" + arm + "+tuned" in metrics
        config = folder / "cells" / cell["cell"] / "tuned" / "Softmax" / "cell.yaml"
        tuned = yaml.safe_load(config.read_text())
        assert tuned["model"]["attention"]["class_path"].endswith("Softmax")
        assert tuned["trainer"]["max_epochs"] == 2
    # One matcher at both levels; with Mean in its self or in its cross layers it is not.
    first, second = (c["metrics"] for c in cells if c["arm"] == "Softmax")
    name = "test/average_precision_1cell"
    assert first[name] == second[name]
    assert first[f"{name}_replaced"] != second[f"{name}_replaced"]
    assert first[f"{name}@Linear"] != second[f"{name}@Linear"]
    report = next(folder.glob("report.md")).read_text()
    assert "swapped=cross" in report and "1 of the cells are the very run" in report
    assert "## By stratum" in report and "trained on with Linear" in report
    # It was trained once. Trained on its own it comes to the same.
    trained, shared = sorted(
        (c for c in cells if c["arm"] == "Softmax"), key=lambda c: c["same_run"]
    )
    assert (trained["same_run"], shared["same_run"]) == ("", trained["cell"])
    assert not any(c["same_run"] for c in cells if c["arm"] != "Softmax")
    (folder / "cells" / trained["cell"] / "checkpoints" / "best.ckpt").unlink()
    shutil.rmtree(folder / "cells" / shared["cell"])
    assert main(["ablate", "run", "study.yaml", "--jobs=1", "--tracker=none"]) == 0
    again = json.loads((folder / "cells" / shared["cell"] / "cell.json").read_text())
    assert again["same_run"] == ""
    for key in ("metrics", "curve", "batch_hashes", "init_hash", "strata", "swapped"):
        assert again[key] == shared[key], key
    # A study that has runs in common with it takes them over when it is told where they are.
    self_alone = {**SMALL, **STUDY["factors"]["swapped"]["self"]}
    other = {**STUDY, "name": "later", "overrides": self_alone, "factors": {}}
    Path("later.yaml").write_text(yaml.safe_dump(other))
    run = ["ablate", "run", "later.yaml", "--jobs=1", "--tracker=none", "--reuse"]
    assert main([*run, "nowhere"]) == 2 and not Path("runs/ablate/later-full").exists()
    assert main([*run, str(folder)]) == 0
    later = [
        json.loads(p.read_text()) for p in Path("runs/ablate/later-full").glob("cells/*/cell.json")
    ]
    assert len(later) == 3
    for cell in later:
        of_before, _, name = cell["same_run"].partition("/")
        twin = json.loads((folder / "cells" / name / "cell.json").read_text())
        assert of_before == "cells-full" and twin["arm"] == cell["arm"]
        assert twin["batch_hashes"] == cell["batch_hashes"] and twin["curve"] == cell["curve"]
    report = Path("runs/ablate/later-full/report.md").read_text()
    assert (
        "3 of the cells are the very run of a cell of the same arm in the study cells-full"
        in report
    )
    registered = json.loads((folder / "registered.json").read_text())
    registered["environment"]["packages"]["torch"] = "1.0"
    (folder / "registered.json").write_text(json.dumps(registered))
    capsys.readouterr()
    assert main([*run, str(folder)]) == 2
    assert "trained with other software" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options, layers",
    [
        ((), None),
        (("--model.attention_cross=Softmax",), [0, 2]),
        (("--model.attention_self=Softmax",), [1, 3]),
    ],
)
def test_the_layers_of_an_arm(options, layers):
    app, own = MatchingStudy(), built(*options)
    assert app.swapped_layers(own.model) == layers
    calls = app.attention_calls(own)
    assert len(calls) == 2 * len(layers or [0, 1, 2, 3])
    assert all(shape.keys == 36 for _, shape in calls)


def test_flops_are_the_closed_form_and_the_rest():
    study, own = MatchingStudy(), built()
    total, attention = study.flops(own)
    assert 0 < attention < total
    with replaced_attention(own.model.network, Zero):
        assert study.flops(own) == (total - attention, 0)


def test_scores_are_those_of_the_app():
    own = built()
    own.datamodule.setup("validate")
    scores = MatchingStudy().evaluate(own.model.eval(), own.datamodule, "val").metrics
    with torch.no_grad():
        for batch in own.datamodule.val_dataloader():
            own.model.validation_step(batch, 0)
    of_app = own.model.scores["val"].compute()
    assert all(of_app[name] == value for name, value in scores.items())
    assert set(MatchingStudy.metrics) <= scores.keys()


def test_a_step_needs_no_trainer():
    study, own = (
        MatchingStudy(),
        built("--model.network.backbone=resnet_fpn", "--model.network.fine=true"),
    )
    own.datamodule.setup("fit")
    batch = next(iter(own.datamodule.train_dataloader()))
    loss = study.step_loss(own.model, batch)
    loss.backward()
    assert own.model.network.loftr_fine.layers[0].q_proj.weight.grad is not None


LEVELS = {
    "loftr_attention": {
        "smoke": ["self", "cross"],
        "mini": [None],
        "parts": ["self", "cross"],
        "full": ["both", "self", "cross"],
    },
    "loftr_stem": dict.fromkeys(("smoke", "mini", "full"), ["15px", "100px"]),
}


@pytest.mark.parametrize(
    ("name", "preset"), [(name, preset) for name, presets in LEVELS.items() for preset in presets]
)
def test_the_shipped_studies_are_whole(name, preset):
    file = shipped_studies()[name]
    first, second, *_ = file.read_text().splitlines()
    assert first.startswith(f"# isoattn ablate run {name}") and "MEASURE" not in second
    study = load_study(file, preset)
    assert study.claim == (preset != "smoke") and study.baseline == "Softmax"
    assert len(study.confirm_seeds) == (1 if preset == "smoke" else 6)
    plan = Plan(study, study_app("matching"))
    levels = [levels.get("swapped") or levels.get("stem") for levels in study.level_sets]
    assert levels == LEVELS[name][preset] and len(plan.cases) == len(study.arms) * len(levels)
