"""Costs: closed forms of the attention, the rest counted; sizes of both images, refined matches."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from isoattn.core import Linear, Mean, Shape, Softmax
from isoattn.matching.models import CellMatches, attention_calls, count_flops


def test_calls_look_from_each_image_at_itself_and_at_the_other(build):
    calls = attention_calls(build(layers=2), (40, 48), (24, 32), batch=3, matches=7)
    sizes = [(name, s.batch, s.queries, s.keys) for name, _, s in calls]
    assert sizes == [
        ("loftr_coarse.layers.0", 3, 30, 30),
        ("loftr_coarse.layers.0", 3, 12, 12),
        ("loftr_coarse.layers.1", 3, 30, 12),
        ("loftr_coarse.layers.1", 3, 12, 30),
        *[(f"loftr_fine.layers.{i}", 7, 25, 25) for i in (0, 0, 1, 1)],
    ]
    assert calls[0][2] == Shape(3, 2, 30, 30, 8, 8)
    assert len(attention_calls(build(layers=2), (40, 48), (24, 32))) == 4
    assert attention_calls(build(layers=0, fine=False), (40, 48), (24, 32)) == []


@pytest.mark.parametrize("matches", [0, 5])
@pytest.mark.parametrize("attention", [Linear, Softmax, Mean], ids=lambda a: a.__name__)
def test_total_is_that_of_a_run(build, images, attention, matches):
    options = {"path": "math"} if attention is Softmax else {}
    model = build(lambda heads, dim: attention(heads, dim, **options))
    flops = count_flops(model, (40, 48), (24, 32), matches=matches)
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        x0, x1 = model.attend(
            *model.features_of_pair(*images(1, (40, 48), (24, 32)), fine=matches > 0)
        )
        model.log_confidence(x0, x1)
        if matches:
            index = torch.zeros(matches, dtype=torch.int64)
            model.refine(x0, x1, CellMatches(index, index, index, torch.ones(matches)))
    assert flops.total == counter.get_total_flops()
    calls = attention_calls(model, (40, 48), (24, 32), matches=matches)
    assert flops.attention == sum(core.cost(shape).forward_flops for _, core, shape in calls)
    assert 0 <= flops.attention < flops.total
