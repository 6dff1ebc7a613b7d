"""``isoattn bench``: what it measures, writes and refuses."""

import csv
import json
import math

import pytest
import torch

from isoattn.apps.base.crossover import Crossover, crossover
from isoattn.apps.core import bench, methods
from isoattn.apps.core.arguments import own_mixers
from isoattn.apps.core.bench_records import Bench, Row
from isoattn.apps.core.bench_report import disturbed
from isoattn.apps.core.methods import Method, Peer, Sizes
from isoattn.apps.core.timing import Peaks, Timed, spread
from isoattn.core import Linear, Shape, attention_spec, attentions
from isoattn.core.factories import concrete
from isoattn.core.mixers import Mixer

SMALL = ("--heads=2", "--head_dim=8", "--rounds=2", "--peers", "none")


def results(folder):
    return json.loads((folder / "results.json").read_text())


def test_everything_of_one_run(isoattn, tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "peak_bytes", lambda m, s, *, train, **_: s.tokens * (1 + train))
    out = tmp_path / "o"
    result = isoattn(
        "bench", *SMALL, "--attentions", "Linear", "Mean", "--tokens", 32, 16, "--out", out
    )
    assert result.code == 0, result.err
    found = results(out)
    rows = {(r["method"], r["tokens"]): r for r in found["rows"]}
    assert list(rows) == [(m, n) for n in (16, 32) for m in ("Softmax", "Linear", "Mean")]
    row = rows["Linear", 32]
    cost = Linear(2, 8).cost(Shape.square(1, 2, 32, 8))
    assert row["forward_flops"] == cost.forward_flops
    assert row["train_flops"] == cost.flops
    assert row["forward_min_bytes"] == cost.min_bytes
    assert 0 < row["forward"] < row["train"] and row["rounds"] == 2
    assert row["forward_cpu"] > 0 and row["train_bound"] > 0 and row["train_ratio"] > 0
    assert (row["forward_peak"], row["train_peak"]) == (32, 64)
    assert rows["Softmax", 16]["train_ratio"] == 1
    assert found["settings"]["threads"] == torch.get_num_threads()
    assert found["settings"]["dtype"] == "float32" and found["settings"]["tokens"] == [16, 32]
    assert found["machine"]["matrix_product_flops_per_second"] > 0
    with (out / "results.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(rows)
    assert (out / "bench.png").read_bytes().startswith(b"\x89PNG")
    page = (out / "report.md").read_text()
    assert "## 16 tokens" in page and "gelu(tanh)" in page and "| Linear |" in page
    assert "Linear" in result.out and f"written {out}" in result.out


def test_peak_memory_is_that_of_the_call_alone():
    sizes = Sizes(tokens=16384)
    output = 4 * 16384 * 4 * 64
    mean = Method("Mean", "attention", attention_spec("Mean"))
    peak = bench.peak_bytes(mean, sizes, train=False, threads=1)
    assert output <= peak < 3 * output


def test_whole_layers_causal_and_the_default_list(isoattn, tmp_path):
    out = tmp_path / "o"
    argv = ("--layers", "--dim=16", "--causal", "--tokens", 8, "--no_memory", "--rounds=1")
    result = isoattn("bench", *SMALL, *argv, "--out", out)
    assert result.code == 0, result.err
    rows = {r["method"]: r for r in results(out)["rows"]}
    causal = [
        n
        for n, c in attentions().items()
        if c.__module__.startswith("isoattn.core.") and c(2, 8).capability.causal
    ]
    absent = [text.partition(":")[0] for text in results(out)["absent"]]
    assert set(absent) <= {"Mamba2"}  # its heads of 64 do not fit into 2 x 16 channels
    mixers = [n for n in own_mixers() if n not in absent]
    mixers = [n for n in mixers if concrete(Mixer)[n](16).capability.causal]
    assert set(rows) == {*causal, *mixers, "Softmax", "Softmax(path='math')"}
    assert all(r["train"] for r in rows.values()), [r["note"] for r in rows.values()]
    assert all(r["train_peak"] is None for r in rows.values())
    projections = 8 * 8 * 16 * 16
    cost = Linear(2, 8).cost(Shape.square(1, 2, 8, 8), causal=True)
    assert rows["Linear"]["forward_flops"] == cost.forward_flops + projections
    for name in mixers:
        cost = concrete(Mixer)[name](16).cost(1, 8, causal=True)
        assert rows[name]["train_flops"] == cost.flops
        assert rows[name]["saved_bytes"] == cost.saved_bytes
    assert all(r["train_bound"] > 0 for r in rows.values())


def test_folders_are_numbered_and_options_are_named(isoattn, tmp_path):
    argv = ("bench", *SMALL, "--tokens", 4, "--no_memory", "--attentions")
    name = '{"class_path": "Linear", "init_args": {"feature_map": "relu"}}'
    assert isoattn(*argv, "Linear(feature_map=relu)").code == 0
    assert isoattn(*argv, name).code == 0
    folder = tmp_path / "runs" / "bench"
    assert [p.name for p in sorted(folder.iterdir())] == [
        "ops-h2-d8-float32",
        "ops-h2-d8-float32-2",
    ]
    for path in folder.iterdir():
        assert results(path)["rows"][1]["method"] == "Linear(feature_map='relu')"


MISTAKES = [
    (("--attentions", "Lineer"), ["Lineer", "Did you mean Linear"]),
    (("--attentions", "Linear(feature_mup=relu)"), ["feature_mup", "Did you mean 'feature_map'"]),
    (("--attentions", "Linear(relu)"), ["Linear(relu)", "Name(option=value)"]),
    (("--attentions", "{"), ["is no JSON"]),
    (("--attentions", "CrossCovariance", "--causal"), ["CrossCovariance", "no causal form"]),
    (("--tokns", "3"), ["--tokns", "Did you mean --tokens", "--help"]),
    (("--tokens", "0"), ["--tokens", "at least 1", "'0'"]),
    (("--peers", "kornja"), ["kornja", "Did you mean kornia"]),
    (("--attentions", "S4D"), ["S4D is a mixer", "--layers"]),
    (("--attentions", "Linear(eps=-1)"), ["Linear(eps=-1)", "eps must not be negative"]),
    (("--dim", "64"), ["--dim", "--layers"]),
    (("--dtype", "float23"), ["float23", "float32"]),
    (("--device", "cuda:99"), ["--device cuda:99"]),
    (("--clock", "cpu", "--device", "meta"), ["--clock cpu", "wall"]),
    (("--import", "no_such_module"), ["--import no_such_module"]),
]


@pytest.mark.parametrize(("argv", "said"), MISTAKES, ids=lambda v: "_".join(v)[:40])
def test_mistakes(isoattn, argv, said):
    result = isoattn("bench", *argv)
    assert result.code == 2
    assert result.short, result.err
    for words in said:
        assert words in result.err


def test_help(isoattn, capsys):
    for command in ("bench", "probe", "attentions"):
        with pytest.raises(SystemExit) as end:
            isoattn(command, "--help")
        assert end.value.code == 0
    assert isoattn("--help").out.count("isoattn bench") == 2
    assert "Did you mean bench" in isoattn("bnch").err


def test_a_crossover_is_interpolated_on_logarithmic_axes():
    found = crossover([100, 1000], [10, 0.1])
    assert found.tokens == pytest.approx(math.sqrt(100 * 1000))
    assert found.text == "316"
    assert crossover([100, 1000], [0.5, 0.1]) == Crossover(None, "< 100")
    assert crossover([100, 1000], [0.5, 1.0]) == Crossover(None, "> 1,000")
    assert crossover([], []) == Crossover(None, "-")
    # cheaper, dearer, cheaper: from where on it stays so
    assert crossover([1, 10, 100], [0.5, 2, 0.5]).tokens == pytest.approx(math.sqrt(1000))


def test_a_busy_machine_is_named_and_one_slow_call_costs_no_rounds():
    sizes = Sizes(64, heads=2, head_dim=8)
    rows = [Row("Softmax", "attention", "", 64, train_wall=w, train_cpu=1.0) for w in (1.0, 1.1, 9)]
    found = Bench(sizes, [64], {"clock": "wall"}, Peaks(1.0, 1.0), rows=rows)
    assert disturbed(found) == ""  # one of three
    rows[0].train_wall = 3.0
    assert "3.0 times its processor time" in disturbed(found)
    found.settings["clock"] = "cpu"
    assert disturbed(found) == ""
    assert spread([1.0, 2.0, 3.0]) is None and spread([1.0, 2.0, 3.0, 4.0]) == 2.5
    timed = Timed({("train", "wall"): [0.5, 0.25], ("train", "cpu"): [9.0]})
    assert timed.spent() == 0.75


def test_the_roofline_is_the_larger_of_the_two_bounds():
    peaks = Peaks(flops=1e9, bytes=1e6)
    assert peaks.bound(2 * 10**9, 1) == 2
    assert peaks.bound(1, 3 * 10**6) == 3


def test_what_is_too_slow_or_too_large_is_left_out_and_says_so(isoattn, tmp_path):
    argv = ("bench", *SMALL, "--attentions", "Linear", "Softmax(path='math')", "--no_memory")
    result = isoattn(*argv, "--tokens", 16, 512, "--max_memory=0.001", "--out", tmp_path)
    assert result.code == 0, result.err
    notes = {(r["method"], r["tokens"]): r["note"] for r in results(tmp_path)["rows"]}
    math_path = "Softmax(path='math')"
    assert notes[math_path, 16] == "" and notes["Linear", 512] == ""
    assert notes[math_path, 512] == "left out: would keep 0.0 GiB, --max_memory 0.001"
    assert notes[math_path, 512] in result.out
    result = isoattn(*argv, "--tokens", 16, 512, "--max_seconds=1e-6", "--out", tmp_path)
    notes = {(r["method"], r["tokens"]): r["note"] for r in results(tmp_path)["rows"]}
    assert "s expected, --max_seconds 1e-06" in notes["Softmax", 512]


def test_peers_that_are_not_installed_are_named(isoattn, tmp_path, monkeypatch):
    peer = Peer("no-such-package", "Thing", True, lambda sizes: lambda x: x)
    monkeypatch.setitem(methods.PEERS, "no-such-package", peer)
    argv = ("--heads=2", "--head_dim=8", "--tokens=4", "--no_memory", "--attentions", "Mean")
    result = isoattn("bench", *argv, "--peers", "no-such-package", "--out", tmp_path)
    assert result.code == 0, result.err
    assert results(tmp_path)["absent"] == ["no-such-package (Thing): not installed"]
    assert "no-such-package (Thing): not installed" in (tmp_path / "report.md").read_text()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # theirs
@pytest.mark.parametrize("dim", [None, 24], ids=["operator", "layer"])
@pytest.mark.parametrize("name", list(methods.PEERS))
def test_peers_that_are_installed_run(name, dim):
    peer = methods.PEERS[name]
    if peer.method(name) is None:
        pytest.skip(f"{peer.package} is not installed")
    sizes = Sizes(tokens=16, heads=2, head_dim=12, dim=dim)
    x = sizes.x().requires_grad_()
    out = peer.build(sizes)(x)
    out.sum().backward()
    assert out.shape[0] == 1 and out.numel() == 16 * 24
    assert x.grad.abs().sum() > 0


def test_layers_and_operators_are_the_attention_itself():
    sizes = Sizes(tokens=6, heads=2, head_dim=4)
    x = sizes.x()
    q, k, v = sizes.split(x)
    operator = Method("Linear", "attention", attention_spec("Linear")).build(sizes)
    assert torch.equal(operator(x), Linear(2, 4)(q, k, v))


def test_a_child_that_dies_is_noted(monkeypatch, isoattn, tmp_path):
    def dead(*args, **kwargs):
        raise bench.ChildDiedError("the process died, most likely for want of memory")

    monkeypatch.setattr(bench, "peak_bytes", dead)
    argv = (*SMALL, "--tokens=4", "--attentions", "Mean", "--out", tmp_path)
    assert isoattn("bench", *argv).code == 0
    assert "the process died" in results(tmp_path)["rows"][0]["note"]
