"""Networks of timm: presets that build, weights that load or say why not."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file

from isoattn.wsi.features import PRESETS, EncoderError, EncoderOptions, build_encoder
from isoattn.wsi.features import timm_encoder as module
from isoattn.wsi.features.timm_encoder import TimmEncoder, read_weights

NETWORK = "resnet10t"


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small network as a file, with its classifier."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = timm.create_model(NETWORK, pretrained=False)
    path = tmp_path_factory.mktemp("weights") / "net.safetensors"
    save_file(network.state_dict(), path)
    return path


def batch(side: int = 64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (2, side, side, 3), dtype=torch.uint8, generator=generator)


PARAMETERS = {
    "uni": 303.3,
    "uni2_h": 681.4,
    "virchow": 631.2,
    "virchow2": 631.2,
    "h_optimus_0": 1134.8,
    "h_optimus_1": 1134.8,
    "gigapath": 1134.9,
    "phikon": 85.8,
    "resnet50_layer3": 8.54,
}
"""Millions, of the model cards and papers; ResNet-50 up to its third stage."""


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets_build_the_published_network(name: str) -> None:
    preset = PRESETS[name]
    with torch.device("meta"):
        network = module._build(preset.architecture, preset, preset.arguments, pretrained=False)
    dim = module._channels(network, preset.out_index)
    assert preset.dim == dim * (2 if preset.pool == "class_and_mean" else 1)
    count = sum(p.numel() for p in network.parameters()) / 1e6
    assert count == pytest.approx(PARAMETERS[name], rel=0.005)
    assert preset.licence


def test_virchow2_pools_class_token_and_patches_without_registers() -> None:
    preset = PRESETS["virchow2"]
    small = {**preset.arguments, "embed_dim": 32, "depth": 1, "num_heads": 2, "img_size": 28}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = module._build(preset.architecture, preset, small, pretrained=False).eval()
    encoder = TimmEncoder.__new__(TimmEncoder)
    torch.nn.Module.__init__(encoder)
    encoder.network, encoder.cut, encoder.pool, encoder.first_patch = network, False, preset.pool, 5
    assert network.num_prefix_tokens == 5
    images = torch.rand(2, 3, 28, 28, generator=torch.Generator().manual_seed(0))
    tokens = network.forward_features(images)
    assert tokens.shape == (2, 1 + 4 + 4, 32)
    expected = torch.cat([tokens[:, 0], tokens[:, 5:].mean(1)], 1)
    torch.testing.assert_close(encoder._pooled(images), expected)


def test_a_checkpoint_without_its_classifier(weights: Path) -> None:
    encoder = build_encoder(EncoderOptions(NETWORK, checkpoint=str(weights)))
    assert encoder.dim == 512 and encoder(batch()).shape == (2, 512)
    facts = encoder.facts()
    assert facts["input_size"] == 176 and facts["mean"] == [0.485, 0.456, 0.406]
    again = build_encoder(EncoderOptions(NETWORK, checkpoint=str(weights), input_size=64))
    assert again.facts()["weights"] == facts["weights"] and again.facts()["input_size"] == 64


def test_a_feature_map_is_averaged(weights: Path) -> None:
    options = EncoderOptions(NETWORK, checkpoint=str(weights), out_index=3, input_size=64)
    encoder = build_encoder(options)
    full = build_encoder(EncoderOptions(NETWORK, checkpoint=str(weights), input_size=64))
    images = encoder.prepare(batch())  # type: ignore[operator]
    stages = full.network.forward_intermediates(  # type: ignore[union-attr,operator]
        images, intermediates_only=True
    )
    expected = stages[3].mean((2, 3))
    assert encoder.dim == 256 == expected.shape[1]
    torch.testing.assert_close(encoder(batch()), expected, rtol=1e-4, atol=1e-5)


def test_torch_archives_load_too(weights: Path, tmp_path: Path) -> None:
    tensors = read_weights(weights)
    torch.save({"state_dict": tensors, "epoch": 3}, tmp_path / "net.pth")
    assert read_weights(tmp_path / "net.pth").keys() == tensors.keys()


def test_half_precision_gives_float32_near_by(weights: Path) -> None:
    options = {"checkpoint": str(weights), "input_size": 64}
    full = build_encoder(EncoderOptions(NETWORK, **options))(batch())  # type: ignore[arg-type]
    half = build_encoder(
        EncoderOptions(NETWORK, precision="bfloat16", **options)  # type: ignore[arg-type]
    )(batch())
    assert half.dtype == torch.float32 and not torch.equal(half, full)
    torch.testing.assert_close(half, full, rtol=0.1, atol=0.1)


def test_weights_that_do_not_fit(weights: Path, tmp_path: Path) -> None:
    with pytest.raises(EncoderError, match=r"do not fit the network: missing .*layer1.*Choose"):
        build_encoder(EncoderOptions("resnet18", checkpoint=str(weights)))
    tensors = read_weights(weights)
    tensors["layer1.0.conv1.weight"] = torch.zeros(2, 2)
    save_file(tensors, tmp_path / "odd.safetensors")
    with pytest.raises(EncoderError, match=r"other shapes layer1.0.conv1.weight \(2, 2\) for"):
        build_encoder(EncoderOptions(NETWORK, checkpoint=str(tmp_path / "odd.safetensors")))
    save_file({**read_weights(weights), "extra": torch.zeros(1)}, tmp_path / "more.safetensors")
    with pytest.raises(EncoderError, match="left over extra"):
        build_encoder(EncoderOptions(NETWORK, checkpoint=str(tmp_path / "more.safetensors")))


def test_weights_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(EncoderError, match=r"no file of weights .*gone.pth"):
        read_weights(tmp_path / "gone.pth")
    (tmp_path / "bad.safetensors").write_bytes(b"no weights")
    with pytest.raises(EncoderError, match=r"bad.safetensors cannot be read"):
        read_weights(tmp_path / "bad.safetensors")
    (tmp_path / "bad.pth").write_bytes(b"no weights")
    with pytest.raises(EncoderError, match=r"bad.pth cannot be read"):
        read_weights(tmp_path / "bad.pth")
    torch.save({"epoch": 3}, tmp_path / "none.pth")
    with pytest.raises(EncoderError, match="holds no tensors by name, but epoch"):
        read_weights(tmp_path / "none.pth")


def test_without_a_network_the_message_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any, **__: Any) -> None:
        raise OSError("Connection refused\nand more")

    monkeypatch.setattr(timm, "create_model", unreachable)
    with pytest.raises(EncoderError) as info:
        build_encoder(EncoderOptions("uni"))
    text = str(info.value)
    assert "uni (hf-hub:MahmoodLab/UNI) cannot be built: OSError: Connection refused" in text
    assert "CC-BY-NC-ND-4.0" in text and "checkpoint" in text and "hed_statistics" in text
    assert "and more" not in text


def test_unknown_names() -> None:
    with pytest.raises(
        EncoderError, match=r"no encoder 'resnet50_layer4'. Did you mean resnet50_l"
    ):
        build_encoder(EncoderOptions("resnet50_layer4"))
    with pytest.raises(EncoderError, match=r"no encoder 'QQQQQQ'. Presets: resnet50_layer3, uni"):
        build_encoder(EncoderOptions("QQQQQQ"))
