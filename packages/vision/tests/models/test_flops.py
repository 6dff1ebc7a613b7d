"""Counted FLOPs against the published table, and against the closed forms of the core."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from isoattn.core import CosineSoftmax, CrossCovariance, Identity, Linear, Mean, Softmax
from isoattn.vision.models import ViT, XCiT, attention_calls, count_flops, xcit

# timm's table of GMAC; the counter, which sees no norms, stays 0.2 to 1.9 % below it
TABLE = {
    ("nano_12_p16", 224): 0.56,
    ("nano_12_p16", 384): 1.64,
    ("nano_12_p8", 224): 2.16,
    ("tiny_12_p16", 224): 1.24,
    ("tiny_24_p8", 384): 27.05,
    ("small_12_p16", 224): 4.82,
    ("small_12_p16", 384): 14.14,
    ("small_12_p8", 224): 18.69,
    ("small_24_p16", 224): 9.10,
    ("medium_24_p16", 224): 16.13,
    ("large_24_p8", 384): 415.0,
}
# counted, the same model with CrossCovariance and with softmax
COUNTED = {
    ("small_12_p16", 224): (4.80, 5.06),
    ("small_12_p16", 384): (14.09, 16.89),
    ("small_12_p16", 1024): (100.2, 253.0),
    ("small_12_p8", 224): (18.62, 23.94),
    ("nano_12_p16", 512): (2.88, 6.00),
    ("nano_12_p16", 1024): (11.5, 62.6),
}


def meta(variant: str, attention=CrossCovariance) -> XCiT:
    with torch.device("meta"):
        return xcit(variant, attention)


@pytest.mark.parametrize(("variant", "size"), list(TABLE))
def test_published_table(variant, size):
    published = TABLE[variant, size]
    counted = count_flops(meta(variant), size).macs / 1e9
    assert 0.98 * published < counted < published


@pytest.mark.parametrize(("variant", "size"), list(COUNTED))
def test_counted_table(variant, size):
    for attention, gmac in zip((CrossCovariance, Softmax), COUNTED[variant, size], strict=True):
        counted = count_flops(meta(variant, attention), size).macs / 1e9
        assert counted == pytest.approx(gmac, rel=5e-3, abs=6e-3)


@pytest.mark.parametrize("attention", [CrossCovariance, Softmax, CosineSoftmax, Linear, Mean])
@pytest.mark.parametrize("network", [XCiT, ViT])
def test_closed_forms_are_the_counted_difference_to_no_attention(network, attention):
    size, batch = (28, 40), 3
    cost = count_flops(network(attention, 1, 10), size, batch)
    without = count_flops(network(Identity, 1, 10), size, batch)
    assert without.attention == 0
    assert cost.total - without.total == cost.attention
    assert count_flops(network(attention, 1, 10), size).attention * batch == cost.attention


def test_equals_a_real_forward_pass():
    model = XCiT(CrossCovariance, 1, 10).eval()
    counter = FlopCounterMode(display=False)
    with (
        counter,
        torch.no_grad(),
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    ):
        model(torch.randn(1, 1, 28, 28))
    assert counter.get_total_flops() == count_flops(model, 28).total


def test_counting_changes_nothing():
    model = XCiT(CrossCovariance, 1, 10, drop_path=0.5).train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    state = torch.get_rng_state()
    count_flops(model, 28)
    assert torch.equal(state, torch.get_rng_state())
    assert model.training
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_attention_calls():
    model = XCiT(CrossCovariance, 1, 10, embed_dim=16, depth=2, heads=2).double()
    calls = attention_calls(model, (28, 40), batch=5)
    assert [name for name, _, _ in calls] == ["blocks.0.attn", "blocks.1.attn"]
    _, core, shape = calls[0]
    assert core is model.blocks[0].attn.core
    assert (shape.batch, shape.heads, shape.queries, shape.head_dim) == (5, 2, 70, 8)
    assert shape.itemsize == 8
    vit = ViT(Softmax, 1, 10)
    assert attention_calls(vit, 28)[0][2].queries == 50  # the class token takes part
