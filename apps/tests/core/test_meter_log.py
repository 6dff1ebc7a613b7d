"""The meter inside a training run."""

import csv
import json
from pathlib import Path

import pytest

from isoattn.apps.core import MeterLog

FIT = ("vision", "fit", "--config", "xcit_digits", "--tracker=none", "--trainer.max_epochs=2")
FEW = ("--trainer.limit_train_batches=2", "--model.attention=Linear")


def test_a_run_with_the_meter_is_the_run_without_it(isoattn):
    plain = isoattn(*FIT, *FEW, "--run.name=plain")
    assert plain.code == 0, plain.err
    callback = "--trainer.callbacks=isoattn.apps.core.MeterLog"
    metered = isoattn(*FIT, *FEW, "--run.name=metered", callback)
    assert metered.code == 0, metered.err
    runs = [Path("runs/vision") / name for name in ("plain", "metered")]
    results = [json.loads((r / "result.json").read_text()) for r in runs]
    assert results[0]["metrics"] == results[1]["metrics"]
    assert results[0]["batch_hashes"] == results[1]["batch_hashes"]
    rows = list(csv.DictReader((runs[1] / "metrics.csv").read_text().splitlines()))
    column = "meter/network.blocks.1.attn.core/skill"
    values = [float(r[column]) for r in rows if r[column]]
    assert len(values) == 2 and all(v < 1 for v in values)
    assert rows[0].keys() >= {"meter/network.blocks.0.attn.core/effective_rank"}


def test_what_it_refuses(isoattn):
    with pytest.raises(ValueError, match="queries must be at least 2, got 1"):
        MeterLog(queries=1)
    with pytest.raises(ValueError, match="quantities: 'skil' is none of output_error, mean_error"):
        MeterLog(quantities=["skil"])
    assert MeterLog(quantities=["skill_error", "output_error"]).quantities[0] == "skill_error"
