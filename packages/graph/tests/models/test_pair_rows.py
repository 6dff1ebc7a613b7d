"""Rows of attention in blocks: those of the dense matrix, and which attentions have none."""

import pytest
import torch

from isoattn.core import (
    CrossCovariance,
    Favor,
    GumbelFavor,
    GumbelSoftmax,
    Identity,
    Linear,
    Mean,
    Softmax,
    Zero,
)
from isoattn.graph.models import pair_rows
from isoattn.graph.models.pair_rows import blocks, check_attention, rows_of


@pytest.mark.parametrize("attention", [GumbelFavor, GumbelSoftmax, Favor, Softmax])
def test_they_are_those_of_the_dense_matrix(attention, monkeypatch):
    monkeypatch.setattr(pair_rows, "NUMBERS", 30)
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 2, 9, 4, generator=generator, dtype=torch.float64)
    core = attention(2, 4).double().eval()
    rows = rows_of(core, q, k)
    found = [rows(n) for n in blocks(9, 9, 2)]
    assert [part.shape for part in found] == [(2, 1, 9)] * 9
    torch.testing.assert_close(torch.cat(found, 1), core.matrix(q, k)[0])


def test_blocks_cover_all_queries():
    assert list(blocks(5, 10**9, 4)) == [slice(i, i + 1) for i in range(5)]
    assert list(blocks(5, 7, 2)) == [slice(0, 5)]


@pytest.mark.parametrize(
    ("attention", "reason"),
    [
        (Mean, "Mean has no latent graph: it gives all nodes the same weight, 1/N"),
        (Zero, "Zero has no latent graph: it gives no node any weight"),
        (Identity, "Identity has no latent graph: it gives each node itself alone"),
        (CrossCovariance, "mixes channels, so two nodes have no weight between them"),
        (Linear, "Linear .* does not tell the weight of single pairs of nodes. GumbelFavor, "),
    ],
)
def test_attentions_without_rows_say_why(attention, reason):
    with pytest.raises(ValueError, match=reason):
        check_attention(attention(2, 4))
    with pytest.raises(ValueError, match=reason):
        rows_of(attention(2, 4), torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 4))
