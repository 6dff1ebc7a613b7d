"""The schedule rises at once, reaches its peak exactly, and starts its cosine there."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from isoattn.core.training import warmup_cosine


def test_published_case_of_two_epochs_at_the_warmup_rate() -> None:
    # facebookresearch/xcit#21: 8 epochs seen of 20, 5 of them warm-up, peak 5e-4. There the
    # first two rates were equal, and 5e-4 was never reached.
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=5e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, partial(warmup_cosine, warmup_steps=5, total_steps=20, floor=0.02)
    )
    rates = []
    for _ in range(20):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates[:5] == pytest.approx([1e-4, 2e-4, 3e-4, 4e-4, 5e-4])
    assert rates[4] == 5e-4
    assert all(a > b for a, b in zip(rates[4:], rates[5:], strict=False))
    assert rates[5] > 0.98 * 5e-4  # the cosine begins at the peak, not part way down
    assert rates[-1] == pytest.approx(1e-5)


@given(
    total=st.integers(1, 300),
    warmup_share=st.floats(0, 1),
    floor=st.floats(0, 0.5),
)
def test_shape_of_the_schedule(total: int, warmup_share: float, floor: float) -> None:
    warmup = int(total * warmup_share)
    values = [
        warmup_cosine(s, warmup_steps=warmup, total_steps=total, floor=floor) for s in range(total)
    ]
    peak = max(warmup - 1, 0)
    assert values[0] > 0
    assert values[peak] == 1.0
    assert all(a < b for a, b in zip(values[:peak], values[1 : peak + 1], strict=True))
    assert all(a >= b for a, b in zip(values[peak:-1], values[peak + 1 :], strict=True))
    if peak < total - 1:
        assert values[-1] == floor
    assert warmup_cosine(total + 5, warmup_steps=warmup, total_steps=total, floor=floor) == floor


def test_halfway_down_the_cosine() -> None:
    value = warmup_cosine(50, warmup_steps=1, total_steps=101, floor=0.0)
    assert math.isclose(value, 0.5)


@pytest.mark.parametrize(
    "arguments",
    [
        {"step": -1, "warmup_steps": 0, "total_steps": 5},
        {"step": 0, "warmup_steps": 6, "total_steps": 5},
        {"step": 0, "warmup_steps": 0, "total_steps": 0},
        {"step": 0, "warmup_steps": 0, "total_steps": 5, "floor": 2.0},
    ],
)
def test_impossible_arguments_are_named(arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="0 <= warmup_steps <= total_steps"):
        warmup_cosine(**arguments)  # type: ignore[arg-type]
