"""The positive control: content-based attention solves what nothing else here can."""

import pytest
import torch
import torch.nn.functional as F

from isoattn.core import Attention, Mean, Softmax, Zero
from isoattn.graph.data import FarRecall
from isoattn.graph.models import GCN, NodeFormer, NodeNetwork

TASK = FarRecall(seed=0).load()


def accuracy(model: NodeNetwork, steps: int = 100) -> float:
    train, test = TASK.split.train, TASK.split.test
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(TASK.graph).logits[train], TASK.y[train]).backward()
        optimizer.step()
    with torch.no_grad():
        right = model.eval()(TASK.graph).logits.argmax(1) == TASK.y
    return float(right[test].float().mean())


def node_former(attention: type[Attention]) -> NodeFormer:
    torch.manual_seed(0)
    return NodeFormer(attention, TASK.graph.x.shape[1], 2, heads=2, act=True, relational_order=1)


@pytest.mark.slow
def test_only_content_based_attention_recalls() -> None:
    assert accuracy(node_former(Softmax)) > 0.85
    for control in (Mean, Zero):
        assert accuracy(node_former(control)) < 0.65
    torch.manual_seed(0)
    assert accuracy(GCN(None, TASK.graph.x.shape[1], 2)) < 0.65
