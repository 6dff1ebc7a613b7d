"""Encoders without weights: deterministic, and what they say they are."""

import numpy as np
import pytest
import torch
from skimage.color import hed_from_rgb

from isoattn.wsi.features import EncoderError, EncoderOptions, build_encoder
from isoattn.wsi.features.encoder import Prepare, weights_digest

RANDOM = "random_mobilenetv3_small_050"


def tiles(count: int = 3, side: int = 32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    shape = (count, side, side, 3)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def test_hed_statistics_against_numpy() -> None:
    batch = tiles()
    got = build_encoder(EncoderOptions("hed_statistics"))(batch)
    density = -np.log10((batch.numpy().astype(np.float64) + 1) / 256)
    stains = (density @ hed_from_rgb).reshape(3, -1, 3)
    assert got.shape == (3, 12) and got.dtype == torch.float32
    np.testing.assert_allclose(got[:, :3], stains.mean(1), atol=1e-5)
    np.testing.assert_allclose(got[:, 3:6], stains.std(1), atol=1e-5)
    for i, quantile in ((6, 0.1), (9, 0.9)):
        wanted = np.quantile(stains, quantile, axis=1, method="closest_observation")
        np.testing.assert_allclose(got[:, i : i + 3], wanted, atol=1e-2)


def test_the_random_network_depends_on_its_seed_alone() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = build_encoder(EncoderOptions(RANDOM))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    again, other = (build_encoder(EncoderOptions(RANDOM, seed=s)) for s in (0, 1))
    batch = tiles()
    assert torch.equal(first(batch), again(batch)) and first(batch).shape == (3, 1024)
    assert not torch.allclose(first(batch), other(batch))
    assert first.facts() == again.facts() and first.facts()["weights"] != other.facts()["weights"]
    assert not first.training and not any(p.requires_grad for p in first.parameters())


def test_features_of_a_tile_do_not_depend_on_the_batch() -> None:
    batch = tiles(4)
    for name in (RANDOM, "hed_statistics"):
        encoder = build_encoder(EncoderOptions(name))
        alone = torch.cat([encoder(batch[i : i + 1]) for i in range(4)])
        torch.testing.assert_close(encoder(batch), alone, rtol=1e-4, atol=1e-5)


def test_features_have_a_scale_that_can_be_learnt_from() -> None:
    # Deviations below 1e-3 would drown in the constants that normalisations add.
    features = build_encoder(EncoderOptions(RANDOM))(tiles(8, 64))
    assert features.std(0).median() > 1e-3 and features.abs().max() < 1e3


def test_input_size_and_its_record() -> None:
    encoder = build_encoder(EncoderOptions(RANDOM, input_size=48))
    assert encoder.prepare(tiles()).shape == (3, 3, 48, 48)  # type: ignore[operator]
    assert encoder.facts()["input_size"] == 48
    assert build_encoder(EncoderOptions(RANDOM)).facts()["input_size"] == "tile"


def test_prepare_normalises_resizes_and_crops() -> None:
    grey = torch.full((1, 20, 20, 3), 51, dtype=torch.uint8)
    out = Prepare(8, (0.1, 0.2, 0.3), (0.5, 0.5, 0.5))(grey)
    assert out.shape == (1, 3, 8, 8)
    torch.testing.assert_close(out[0, :, 4, 4], torch.tensor([0.2, 0.0, -0.2]))
    ramp = torch.arange(16, dtype=torch.uint8).view(1, 1, 16, 1).expand(1, 16, 16, 3)
    cut = Prepare(8, (0.0,) * 3, (1 / 255,) * 3, resize=16)(ramp)
    assert cut[0, 0, 0].round().tolist() == list(range(4, 12))


def test_only_uint8_tiles_are_taken() -> None:
    encoder = build_encoder(EncoderOptions("hed_statistics"))
    with pytest.raises(ValueError, match=r"uint8 tiles \(B, H, W, 3\), got torch.float32"):
        encoder(tiles().float())
    with pytest.raises(ValueError, match=r"got torch.uint8 \(3, 3, 32, 32\)"):
        encoder(tiles().permute(0, 3, 1, 2))


def test_a_digest_sees_names_and_values() -> None:
    a, b = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    b.load_state_dict(a.state_dict())
    assert weights_digest(a) == weights_digest(b)
    with torch.no_grad():
        b.bias[0] += 1e-6
    assert weights_digest(a) != weights_digest(b)


def test_options_that_an_encoder_does_not_have() -> None:
    with pytest.raises(EncoderError, match="hed_statistics has no option checkpoint, input_size"):
        build_encoder(EncoderOptions("hed_statistics", checkpoint="a.pt", input_size=8))
    with pytest.raises(EncoderError, match="has no option out_index"):
        build_encoder(EncoderOptions(RANDOM, out_index=2))
