"""Loading: local files, released names, other attentions, and refusals that change nothing."""

from functools import partial

import pytest
import torch
from safetensors.torch import save_file

from isoattn.core import CosineSoftmax, Linear, Nystrom, Softmax
from isoattn.core.training.checkpoint import CheckpointError
from isoattn.wsi.models import (
    TransMIL,
    WeightsError,
    from_published,
    load_weights,
    read_weights,
)


def build(attention=Softmax, *, seed=0, classes=2, **options):
    torch.manual_seed(seed)
    return TransMIL(attention, 6, classes, dim=16, heads=2, **options)


def same(a, b, names):
    return all(torch.equal(a.state_dict()[n], b.state_dict()[n]) for n in names)


@pytest.mark.parametrize("kind", ["safetensors", "pth", "ckpt"])
def test_files(tmp_path, kind):
    model, other = build(), build(seed=1)
    path = tmp_path / f"weights.{kind}"
    if kind == "safetensors":
        save_file(model.state_dict(), path)
    elif kind == "pth":
        torch.save(model.state_dict(), path)
    else:
        state = {f"network.{n}": x for n, x in model.state_dict().items()}
        torch.save({"state_dict": state, "epoch": 3}, path)
    report = load_weights(other, path)
    assert report.source == path.name and len(report.loaded) == len(model.state_dict())
    assert same(model, other, report.loaded)
    assert str(report) == f"loaded 25 of 25 tensors from weights.{kind}"


def test_released_names_in_a_checkpoint(tmp_path):
    names = {
        "model.layer2.attn.to_out.0.weight": "layers.1.out.weight",
        "layer1.norm.bias": "layers.0.norm.bias",
        "norm.bias": "norm.bias",
        "_fc1.0.weight": "input.weight",
        "pos_layer.proj2.bias": "ppeg.conv3.bias",
        "layer1.attn.res_conv.weight": "layers.0.value_conv.weight",
    }
    x = torch.zeros(1)
    assert from_published(dict.fromkeys(names, x)).keys() == set(names.values())


def test_another_attention_is_an_open_choice():
    source = build(CosineSoftmax)
    target = build(Linear, seed=1)
    with pytest.raises(
        WeightsError, match="unexpected: layers.0.core.temperature.*allow_attention"
    ):
        load_weights(target, source.state_dict())
    before = {n: x.clone() for n, x in target.state_dict().items()}
    assert all(torch.equal(before[n], x) for n, x in target.state_dict().items())
    report = load_weights(target, source.state_dict(), allow_attention_change=True)
    assert report.unused == ("layers.0.core.temperature", "layers.1.core.temperature")
    assert not report.fresh and same(source, target, report.loaded)
    back = load_weights(source, target.state_dict(), allow_attention_change=True)
    assert back.fresh == report.unused
    assert "fresh   layers.0.core.temperature, layers.1.core.temperature" in str(back)


def test_a_fresh_head_for_other_classes():
    source, target = build(classes=2), build(classes=5, seed=1)
    head = target.head.weight.clone()
    with pytest.raises(WeightsError, match="Only the head differs: set fresh_head=True"):
        load_weights(target, source.state_dict())
    report = load_weights(target, source.state_dict(), fresh_head=True)
    assert report.fresh == report.unused == ("head.weight", "head.bias")
    assert torch.equal(target.head.weight, head) and same(source, target, report.loaded)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"depth": 3}, "missing: layers.2.norm.weight"),
        ({"value_conv": False}, "unexpected: layers.0.value_conv.weight"),
        ({"norm": "layer"}, "missing: input_norm.weight"),
    ],
)
def test_other_options_are_refused(options, words):
    with pytest.raises(WeightsError, match=words) as error:
        load_weights(build(**options), build().state_dict())
    assert "Build the network with the options of the weights" in str(error.value)


def test_another_size_is_named():
    weights = build().state_dict() | {"input.weight": torch.zeros(16, 7)}
    with pytest.raises(WeightsError, match=r"other shape: input.weight \(16, 7\) for \(16, 6\)"):
        load_weights(build(), weights)


def test_the_released_attention_has_no_names_of_its_own():
    released = build(partial(Nystrom, landmarks=8, compat="nystrom-attention"))
    assert set(released.state_dict()) == set(build().state_dict())


class Payload:
    def __reduce__(self):
        return (exec, ("raise SystemExit('executed')",))


def test_files_that_are_no_weights(tmp_path):
    bad = tmp_path / "bad.pth"
    torch.save({"x": Payload()}, bad)
    with pytest.raises(CheckpointError, match="not plain data"):
        read_weights(bad)
    torch.save({"epoch": 3}, bad)
    with pytest.raises(WeightsError, match=r"bad.pth holds no tensors"):
        read_weights(bad)
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_weights(tmp_path / "absent.pth")
    torn = tmp_path / "torn.safetensors"
    torn.write_bytes(b"\x10")
    with pytest.raises(WeightsError, match="torn.safetensors cannot be read as safetensors"):
        read_weights(torn)
