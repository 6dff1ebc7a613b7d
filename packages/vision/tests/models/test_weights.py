"""Loading weights: names, class counts, attention changes, and what the report says."""

import json

import pytest
import timm
import torch
from safetensors.torch import save_file

from isoattn.core import CosineSoftmax, CrossCovariance, Softmax
from isoattn.core.training.checkpoint import CheckpointError
from isoattn.vision.models import ViT, WeightsError, XCiT, load_weights, xcit

SMALL = {"embed_dim": 16, "depth": 2, "heads": 2}


def network(attention=CrossCovariance, classes: int = 10, seed: int = 0, **options) -> XCiT:
    torch.manual_seed(seed)
    return XCiT(attention, 1, classes, **{**SMALL, **options})


def same(a: dict, b: dict, keys) -> bool:
    return all(torch.equal(a[k], b[k]) for k in keys)


@pytest.fixture
def official_keys(golden_folder) -> dict:
    return json.loads((golden_folder / "keys_xcit_nano_12_p16.json").read_text())


def official_weights(keys: dict) -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    return {
        name: torch.randn(shape) if shape else torch.tensor(7)
        for name, shape in keys["keys"].items()
    }


def test_official_file(official_keys, tmp_path):
    """Names as published: under 'model', pos_embeder, fused class-attention qkv."""
    weights = official_weights(official_keys)
    torch.save({"model": weights, "epoch": 399}, tmp_path / "xcit.pth")
    model = xcit("nano_12_p16")
    report = load_weights(model, tmp_path / "xcit.pth")
    loaded = model.state_dict()
    assert report.missing == report.unexpected == report.fresh == []
    assert len(report.loaded) == len(loaded)
    assert len(report.reshaped) == 4
    fused = weights["cls_attn_blocks.1.attn.qkv.weight"]
    parts = [loaded[f"cls_attn_blocks.1.attn.{p}.weight"] for p in "qkv"]
    assert torch.equal(torch.cat(parts), fused)
    assert torch.equal(
        loaded["pos_embed.token_projection.bias"], weights["pos_embeder.token_projection.bias"]
    )


def test_our_keys_are_those_of_timm(official_keys):
    shapes = {k: list(v.shape) for k, v in xcit("nano_12_p16").state_dict().items()}
    assert shapes == official_keys["timm_keys"]


@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
def test_timm_file(tmp_path, suffix, randomise):
    theirs = randomise(timm.create_model("xcit_nano_12_p16_224", num_classes=7)).eval()
    path = tmp_path / f"weights.{suffix}"
    if suffix == "pth":
        torch.save(theirs.state_dict(), path)
    else:
        save_file(theirs.state_dict(), path)
    ours = xcit("nano_12_p16", num_classes=7).eval()
    report = load_weights(ours, path)
    assert report.missing == report.unexpected == report.reshaped == []
    assert len(report.sha256) == 64
    image = torch.randn(1, 3, 36, 52)
    with torch.no_grad():
        torch.testing.assert_close(ours(image), theirs(image), rtol=1e-5, atol=1e-5)


def test_our_lightning_checkpoint(tmp_path):
    source = network()
    content = {
        "state_dict": {f"network.{k}": v for k, v in source.state_dict().items()},
        "hyper_parameters": {"attention": {"class_path": "isoattn.core.CrossCovariance"}},
    }
    torch.save(content, tmp_path / "last.ckpt")
    target = network(seed=1)
    load_weights(target, tmp_path / "last.ckpt")
    assert same(target.state_dict(), source.state_dict(), source.state_dict())


def test_another_class_count_gives_a_fresh_head():
    """Case: https://github.com/huggingface/pytorch-image-models/issues/433, 540 and 2332."""
    source = xcit("nano_12_p16", num_classes=1000)
    torch.manual_seed(5)
    target = xcit("nano_12_p16", num_classes=5)
    head = {k: v.clone() for k, v in target.head.state_dict().items()}
    report = load_weights(target, source.state_dict())
    assert report.missing == ["head.weight", "head.bias"]
    assert report.unexpected == ["head.weight", "head.bias"]
    assert report.fresh == [
        "head.weight (1000, 128) -> (5, 128)",
        "head.bias (1000,) -> (5,)",
    ]
    assert same(target.head.state_dict(), head, head)
    rest = [k for k in target.state_dict() if not k.startswith("head.")]
    assert same(target.state_dict(), source.state_dict(), rest)
    assert "head.weight (1000, 128) -> (5, 128)" in str(report)


def test_a_file_without_head():
    weights = {k: v for k, v in network(seed=1).state_dict().items() if not k.startswith("head")}
    report = load_weights(network(), weights)
    assert report.fresh == ["head.weight absent -> (10, 16)", "head.bias absent -> (10,)"]


def test_a_fresh_head_on_request():
    source, target = network(seed=1), network()
    head = target.head.weight.clone()
    report = load_weights(target, source.state_dict(), fresh_head=True)
    assert torch.equal(target.head.weight, head)
    assert report.missing == ["head.weight", "head.bias"]


def test_missing_batch_norm_counters_are_tolerated():
    weights = {k: v for k, v in network(seed=1).state_dict().items() if "num_batches" not in k}
    report = load_weights(network(), weights)
    assert report.missing
    assert all(name.endswith("num_batches_tracked") for name in report.missing)


def test_another_attention_is_refused_and_then_allowed():
    source, target = network(CrossCovariance), network(Softmax, seed=1)
    before = {k: v.clone() for k, v in target.state_dict().items()}
    with pytest.raises(
        WeightsError, match=r"unexpected: blocks.0.attn.temperature.*allow_attention_change=True"
    ):
        load_weights(target, source.state_dict())
    assert same(target.state_dict(), before, before)
    report = load_weights(target, source.state_dict(), allow_attention_change=True)
    assert report.unexpected == ["blocks.0.attn.temperature", "blocks.1.attn.temperature"]
    assert same(target.state_dict(), source.state_dict(), target.state_dict())

    back = network(CrossCovariance, seed=2)
    with pytest.raises(WeightsError, match=r"missing: blocks.0.attn.temperature"):
        load_weights(back, target.state_dict())
    report = load_weights(back, target.state_dict(), allow_attention_change=True)
    assert report.missing == ["blocks.0.attn.temperature", "blocks.1.attn.temperature"]
    assert (back.blocks[0].attn.core.temperature == 1).all()


def test_the_cosine_twin_takes_cross_covariance_weights_as_they_are():
    source, target = network(CrossCovariance), network(CosineSoftmax, seed=1)
    report = load_weights(target, source.state_dict())
    assert report.missing == report.unexpected == []
    assert same(target.state_dict(), source.state_dict(), source.state_dict())


def test_a_file_that_names_its_attention_is_believed(tmp_path):
    """Equal keys do not make it the same attention."""
    content = {
        "state_dict": {f"network.{k}": v for k, v in network().state_dict().items()},
        "hyper_parameters": {"attention": {"class_path": "isoattn.core.CrossCovariance"}},
    }
    path = tmp_path / "last.ckpt"
    torch.save(content, path)
    with pytest.raises(
        WeightsError, match=r"trained with isoattn.core.CrossCovariance.*isoattn.core.CosineSoftmax"
    ):
        load_weights(network(CosineSoftmax), path)
    report = load_weights(network(CosineSoftmax), path, allow_attention_change=True)
    assert report.missing == report.unexpected == []


def test_attention_parameters_of_another_shape_are_left_out():
    class Wide(Softmax):
        def __init__(self, heads: int, head_dim: int) -> None:
            super().__init__(heads, head_dim)
            self.temperature = torch.nn.Parameter(torch.ones(heads, head_dim))

    target = network(Wide)
    with pytest.raises(WeightsError, match="other shape: blocks.0.attn.temperature .2, 1, 1. for"):
        load_weights(target, network().state_dict())
    report = load_weights(target, network().state_dict(), allow_attention_change=True)
    assert "blocks.0.attn.temperature" in report.missing
    assert "blocks.0.attn.temperature" in report.unexpected
    assert (target.blocks[0].attn.core.temperature == 1).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": 3}, "missing: blocks.2.gamma1.* more"),
        ({"depth": 1}, "unexpected: blocks.1.gamma1"),
        ({"embed_dim": 32}, r"other shape: .*\(1, 1, 16\) for \(1, 1, 32\)"),
        ({"lpi": "none"}, "unexpected: blocks.0.gamma3"),
    ],
)
@pytest.mark.parametrize("allow", [True, False])
def test_other_differences_are_errors(options, message, allow):
    target = network(**options)
    with pytest.raises(WeightsError, match=message) as error:
        load_weights(target, network().state_dict(), allow_attention_change=allow)
    assert "Build the model with the options of the weights" in str(error.value)


@pytest.mark.parametrize("factory", [XCiT, ViT])
def test_learned_positions_are_resized_and_reported(factory):
    options = {"positions": "learned"} if factory is XCiT else {}
    source = factory(Softmax, 1, 10, image_size=28, **SMALL, **options)
    target = factory(Softmax, 1, 10, image_size=(28, 40), **SMALL, **options)
    report = load_weights(target, source.state_dict())
    name = "pos_embed.table" if factory is XCiT else "pos_embed"
    assert report.reshaped == [f"{name} 7x7 -> 7x10"]
    odd = factory(Softmax, 1, 10, image_size=(28, 40), **SMALL, **options)
    with pytest.raises(WeightsError, match="only square tables"):
        load_weights(source, odd.state_dict())


def test_report_is_a_few_readable_lines(tmp_path):
    path = tmp_path / "weights.safetensors"
    save_file(network(classes=1000).state_dict(), path)
    text = str(load_weights(network(), path))
    assert text.splitlines()[0] == "loaded 107 of 109 tensors from weights.safetensors"
    assert text.splitlines()[1].startswith("  sha256      ")
    assert len(text.splitlines()) == 4


def test_files_that_are_no_weights(tmp_path):
    with pytest.raises(WeightsError, match="'a'.* no tensors"):
        load_weights(network(), {"a": 1})
    with pytest.raises(WeightsError, match="holds no tensors"):
        load_weights(network(), {})
    (tmp_path / "broken.safetensors").write_bytes(b"nonsense")
    with pytest.raises(WeightsError, match="broken.safetensors cannot be read as safetensors"):
        load_weights(network(), tmp_path / "broken.safetensors")
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_weights(network(), tmp_path / "absent.pth")


def test_a_file_with_code_is_refused(tmp_path):
    torch.save({"model": network()}, tmp_path / "pickle.pth")
    with pytest.raises(CheckpointError, match="not plain data"):
        load_weights(network(), tmp_path / "pickle.pth")
