"""Scores of tiles under a network: attention on one scale, and what speaks for a class."""

import pytest
import torch

from isoattn.core import Nystrom, Softmax
from isoattn.wsi.heatmap import tile_evidence
from isoattn.wsi.models import MaxPooling, MeanPooling, TransMIL


def test_attention_of_one_is_even():
    network = MeanPooling(None, 4, 2, dim=8)
    values, what = tile_evidence(network, torch.randn(7, 4))
    torch.testing.assert_close(values, torch.ones(7))
    assert "even" in what
    values, what = tile_evidence(MaxPooling(None, 4, 2, dim=8), torch.randn(7, 4))
    assert "probability" in what and bool((values <= 1).all())


@pytest.mark.parametrize("attention", [Softmax, Nystrom])
def test_the_gradient_is_what_a_tile_takes_away(attention):
    """To first order: replacing a tile by the mean one changes the log-odds by its share."""
    torch.manual_seed(0)
    network = TransMIL(attention, 4, 3, dim=8, heads=2, ppeg="off").double().eval()
    x = torch.randn(9, 4, dtype=torch.float64)
    size = 1e-5

    def odds(x):
        logits = network(x[None])[0]
        return logits[1] - logits[[0, 2]].logsumexp(0)

    values, _ = tile_evidence(network, x, kind="gradient", target=1)
    with torch.no_grad():
        found = []
        for i in range(9):
            moved = x.clone()
            moved[i] += size * (x.mean(0) - x[i])
            found.append((odds(x) - odds(moved)) / size)
    found = torch.stack(found)
    torch.testing.assert_close(values, found / found.abs().mean(), rtol=1e-3, atol=1e-4)
    opposite, _ = tile_evidence(network, x, kind="gradient", target=-2)
    torch.testing.assert_close(opposite, values)


def test_the_mode_is_left_and_other_kinds_are_refused():
    network = TransMIL(Softmax, 4, 2, dim=8, heads=2).train()
    with torch.inference_mode():
        tile_evidence(network, torch.randn(5, 4), kind="gradient")
    assert network.training and all(p.grad is None for p in network.parameters())
    with pytest.raises(ValueError, match="kind must be one of attention, gradient, got 'grad'"):
        tile_evidence(network, torch.randn(5, 4), kind="grad")
