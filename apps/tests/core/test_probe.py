"""``isoattn probe``: synthetic tokens and the layers of a trained model."""

import csv
import json

import pytest
import torch

from isoattn.apps.core.probe import synthetic

SMALL = ("--heads=2", "--head_dim=8", "--queries=16")


def readings(folder):
    return json.loads((folder / "readings.json").read_text())


def test_synthetic_tokens(isoattn, tmp_path):
    argv = ("Linear(feature_map=relu)", "Softmax", "CrossCovariance", "--tokens", 32, 16)
    result = isoattn("probe", *argv, *SMALL, "--std", 0.5, 1, "--out", tmp_path)
    assert result.code == 0, result.err
    found = readings(tmp_path)["readings"]
    assert len(found) == 3 * 2 * 2 * 2
    assert {(r["data"], r["std"], r["reading"]["keys"]) for r in found} == {
        (d, s, n) for d in ("iid", "smooth") for s in (0.5, 1.0) for n in (16, 32)
    }
    softmax = [r["reading"] for r in found if r["label"] == "Softmax"]
    assert all(abs(r["skill"]["value"] - 1) < 1e-5 for r in softmax)
    assert all(r["rows"] == 16 for r in softmax)
    channels = [r["reading"] for r in found if r["label"] == "CrossCovariance"]
    assert all(r["kl"]["value"] is None for r in channels)
    with (tmp_path / "readings.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(found) and float(rows[0]["skill"]) < 1
    assert {r["kl"] for r in rows if r["label"] == "CrossCovariance"} == {""}
    assert (tmp_path / "probe.png").read_bytes().startswith(b"\x89PNG")
    assert "Linear(feature_map='relu')" in result.out
    assert "CrossCovariance: - is undefined: it mixes channels" in result.out


def test_all_that_have_the_form(isoattn, tmp_path):
    argv = ("all", "--causal", "--tokens", 16, "--data", "iid", *SMALL, "--out", tmp_path)
    result = isoattn("probe", *argv)
    assert result.code == 0, result.err
    labels = {r["label"] for r in readings(tmp_path)["readings"]}
    assert {"Softmax", "Mean", "Linear"} <= labels and "CrossCovariance" not in labels


def test_smooth_tokens_have_mean_0_and_variance_1():
    q, k, v = synthetic("smooth", 0.5, (1, 2, 400, 3), 0)
    assert v.mean(2).abs().max() < 1e-12
    torch.testing.assert_close(v.var(2), torch.ones_like(v.var(2)))
    assert torch.equal(q, k) and torch.equal(q, 0.5 * v)
    assert v.diff(dim=2).abs().mean() < 0.2  # iid tokens: 1.13


def test_a_trained_model(isoattn, xca_run, tmp_path):
    best = xca_run / "checkpoints" / "best.ckpt"
    before = {p: p.read_bytes() for p in xca_run.rglob("*") if p.is_file()}
    result = isoattn("probe", "--ckpt_path", best, "--queries=16", "--out", tmp_path / "p")
    assert result.code == 0, result.err
    found = readings(tmp_path / "p")
    assert [r["label"] for r in found["readings"]] == [
        "network.blocks.0.attn.core",
        "network.blocks.1.attn.core",
    ]
    assert all(r["reading"]["skill"]["value"] is not None for r in found["readings"])
    assert found["settings"]["checkpoint"] == str(best)
    assert (tmp_path / "p" / "probe.png").is_file()
    with (tmp_path / "p" / "readings.csv").open() as file:
        row = next(csv.DictReader(file))
    assert row["batch"] == "0" and int(row["shape_batch"]) > 1
    assert before == {p: p.read_bytes() for p in xca_run.rglob("*") if p.is_file()}


MISTAKES = [
    ((), ["Say what to probe"]),
    (("Lineer",), ["Did you mean Linear"]),
    (("Linear", "--quries=3"), ["--quries", "Did you mean --queries"]),
    (("Linear", "--queries=1"), ["queries must be at least 2, got 1"]),
    (("Linear", "--ckpt_path=x.ckpt"), ["not both"]),
    (("--ckpt_path=gone.ckpt",), ["--ckpt_path", "gone.ckpt", "No such file"]),
    (("CrossCovariance", "--causal"), ["no causal form", "Leave out --causal"]),
    (("Linear", "--data", "idd"), ["idd", "iid"]),
]


@pytest.mark.parametrize(("argv", "said"), MISTAKES, ids=lambda v: "_".join(v)[:40])
def test_mistakes(isoattn, argv, said):
    result = isoattn("probe", *argv)
    assert result.code == 2
    assert result.short, result.err
    for words in said:
        assert words in result.err


def test_an_option_that_the_app_of_a_checkpoint_lacks(isoattn, xca_run):
    best = xca_run / "checkpoints" / "best.ckpt"
    result = isoattn("probe", "--ckpt_path", best, "--model.attention=Softmax")
    assert result.code == 2 and "another experiment" in result.err
    result = isoattn("probe", "--ckpt_path", best, "--data.rot=x")
    assert result.code == 2 and "data.rot" in result.err
