"""Loading between arms, with a report; all or nothing."""

from functools import partial

import pytest
import torch

from isoattn.core import GumbelFavor, GumbelSoftmax, Zero
from isoattn.graph.models import NodeFormer, WeightsError, load_weights

BUFFERS = {
    f"layers.{i}.core.projection.{n}"
    for i in (0, 1)
    for n in ("rows", "stream.seed", "stream.count")
}
STREAMS = {f"layers.{i}.core.stream.{n}" for i in (0, 1) for n in ("seed", "count")}


def test_strict_takes_the_same_attention_and_names_the_buffers_of_another():
    linear, exact = (NodeFormer(a, 6, 3) for a in (GumbelFavor, GumbelSoftmax))
    again = NodeFormer(GumbelFavor, 6, 3)
    report = load_weights(again, linear.state_dict())
    assert not report.fresh and not report.unused
    assert all(
        torch.equal(a, b)
        for a, b in zip(again.state_dict().values(), linear.state_dict().values(), strict=True)
    )
    with pytest.raises(WeightsError, match=r"unexpected: layers.0.core.*strict=False to go on"):
        load_weights(exact, linear.state_dict())
    before = {n: x.clone() for n, x in exact.state_dict().items()}
    assert all(torch.equal(x, exact.state_dict()[n]) for n, x in before.items())
    report = load_weights(
        exact, {f"network.{n}": x for n, x in linear.state_dict().items()}, strict=False
    )
    assert set(report.unused) == BUFFERS and not report.fresh
    assert all(
        torch.equal(p, dict(linear.named_parameters())[n]) for n, p in exact.named_parameters()
    )
    report = load_weights(linear, NodeFormer(Zero, 6, 3).state_dict(), strict=False)
    assert set(report.fresh) == BUFFERS | STREAMS


def test_another_number_of_features_is_another_attention(graph):
    few, many = (NodeFormer(partial(GumbelFavor, features=m), 6, 3) for m in (5, 50))
    with pytest.raises(WeightsError, match="other shape: layers.0.core.projection.rows"):
        load_weights(many, few.state_dict())
    report = load_weights(many, few.state_dict(), strict=False)
    assert set(report.fresh) == {f"layers.{i}.core.projection.rows" for i in (0, 1)}
    assert many(graph()).logits.isfinite().all()


def test_parameters_always_have_to_fit():
    with pytest.raises(WeightsError, match=r"other shape: .*Build the network with the options"):
        load_weights(NodeFormer(Zero, 6, 3), NodeFormer(Zero, 7, 3).state_dict(), strict=False)
    with pytest.raises(WeightsError, match=r"missing: layers.0.relational.gate"):
        load_weights(
            NodeFormer(Zero, 6, 3, relational_order=1),
            NodeFormer(Zero, 6, 3).state_dict(),
            strict=False,
        )
