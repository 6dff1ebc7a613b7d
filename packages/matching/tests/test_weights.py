"""Loading: published layout, kornia's, ours; all or nothing; the position encoding must be said."""

import pytest
import torch
from safetensors.torch import save_file

from isoattn.core import CosineSoftmax, Linear, Softmax
from isoattn.core.training.checkpoint import CheckpointError
from isoattn.matching.models import Matcher
from isoattn.matching.weights import WeightsError, load_weights


def make(attention=Linear, seed=0, **options):
    sizes = {"widths": (8, 12, 16), "heads": 2, "layers": 2, "pe": "released"}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Matcher(attention, **{**sizes, **options})


def published(model):
    return {"state_dict": {f"matcher.{n}": x for n, x in model.state_dict().items()}}


def same(one, other):
    theirs = other.state_dict()
    return all(torch.equal(x, theirs[n]) for n, x in one.state_dict().items())


def test_a_published_file(tmp_path):
    source, path = make(seed=1), tmp_path / "outdoor_ds.ckpt"
    torch.save(published(source), path)
    for attention in (Linear, Softmax):
        model = make(attention)
        report = load_weights(model, path, pe="released")
        assert same(model, source)
        assert not report.fresh and not report.unused
        assert str(report).startswith(f"loaded {len(model.state_dict())} tensors from outdoor_ds")
        assert report.sha256 in str(report)


def test_plain_names_and_safetensors(tmp_path):
    source, path = make(seed=1), tmp_path / "weights.safetensors"
    save_file(source.state_dict(), path)
    for given in (path, source.state_dict()):
        model = make()
        load_weights(model, given, pe="released")
        assert same(model, source)


def test_the_position_encoding_must_be_said():
    source = make(seed=1)
    with pytest.raises(WeightsError, match=r"does not say which .* Give pe='fixed' .indoor_ds_new"):
        load_weights(make(), published(source))
    with pytest.raises(WeightsError, match=r"has pe='fixed': build it with pe='released'"):
        load_weights(make(pe="fixed"), published(source), pe="released")


def test_a_checkpoint_of_ours_says_it(tmp_path):
    source = make(seed=1)
    state = {f"network.{n}": x for n, x in source.state_dict().items()}
    for init_args, pe in (({"pe": "released"}, "released"), ({}, "fixed")):
        network = {"class_path": "isoattn.matching.Matcher", "init_args": init_args}
        content = {"state_dict": state, "hyper_parameters": {"network": network}}
        model = make(pe=pe)
        load_weights(model, content)
        assert same(model, source)
    with pytest.raises(WeightsError, match="was trained with pe='fixed', but pe='released' is giv"):
        load_weights(make(), content, pe="released")


def test_a_matcher_without_fine_part_leaves_it_over():
    source = make(seed=1)
    model = make(fine=False)
    report = load_weights(model, published(source), pe="released")
    assert same(model, source)
    assert "fine_preprocess.down_proj.weight" in report.unused
    with pytest.raises(WeightsError, match=r"missing: backbone.layer2_outconv.*fine, match"):
        load_weights(source, model.state_dict(), pe="released")


def test_counters_of_batches_and_tables_of_positions_may_be_there_or_not():
    source = make(seed=1)
    state = {n: x for n, x in source.state_dict().items() if not n.endswith("tracked")}
    state["pos_encoding.pe"] = torch.zeros(1, 16, 4, 4)
    model = make()
    report = load_weights(model, state, pe="released")
    assert not report.unused
    assert torch.equal(model.backbone.conv1.weight, source.backbone.conv1.weight)


def test_optimal_transport_needs_its_bin_score():
    with pytest.raises(
        WeightsError, match=r"missing: coarse_matching.bin_score\. .*match='sinkhor"
    ):
        load_weights(make(match="sinkhorn"), published(make()), pe="released")
    source, model = make(match="sinkhorn", seed=1), make(match="sinkhorn")
    with torch.no_grad():
        source.coarse_matching.bin_score.fill_(2.5)
    load_weights(model, published(source), pe="released")
    assert model.coarse_matching.bin_score == 2.5


def test_nothing_is_changed_unless_all_fits():
    model = make()
    before = {n: x.clone() for n, x in model.state_dict().items()}
    other = make(widths=(8, 12, 20), seed=1)
    with pytest.raises(WeightsError, match=r"other shape: backbone.layer3.*Build the matcher with"):
        load_weights(model, published(other), pe="released")
    assert all(torch.equal(x, before[n]) for n, x in model.state_dict().items())


def test_entries_of_an_attention():
    source, model = make(CosineSoftmax, seed=1), make(Linear)
    with pytest.raises(WeightsError, match=r"unexpected: .*core.temperature.*allow_attention_chan"):
        load_weights(model, published(source), pe="released")
    report = load_weights(model, published(source), pe="released", allow_attention_change=True)
    assert all("core.temperature" in name for name in report.unused) and report.unused
    assert same(model, source)
    report = load_weights(source, published(model), pe="released", allow_attention_change=True)
    assert all("core.temperature" in name for name in report.fresh) and report.fresh


def test_what_is_no_file_of_weights(tmp_path):
    class Harmful:
        def __reduce__(self):
            return (print, ("executed",))

    path = tmp_path / "harmful.ckpt"
    torch.save({"state_dict": {"matcher.x": Harmful()}}, path)
    with pytest.raises(CheckpointError, match="refused"):
        load_weights(make(), path, pe="released")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_weights(make(), tmp_path / "absent.ckpt", pe="released")
    (tmp_path / "bad.safetensors").write_bytes(b"x" * 20)
    with pytest.raises(WeightsError, match="bad.safetensors cannot be read as safetensors"):
        load_weights(make(), tmp_path / "bad.safetensors", pe="released")
    with pytest.raises(WeightsError, match="holds 'epoch', a int, where tensors are expected"):
        load_weights(make(), {"epoch": 3}, pe="released")
    with pytest.raises(WeightsError, match="state dict holds no tensors"):
        load_weights(make(), {}, pe="released")
