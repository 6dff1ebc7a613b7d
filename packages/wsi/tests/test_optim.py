"""Optimisers: what the released runs used, and the schedule."""

import pytest
import torch

from isoattn.wsi.models import RELEASED, TransMIL
from isoattn.wsi.optim import OptimOptions, make_optimizer, make_schedule


def test_the_released_optimiser():
    model = TransMIL(RELEASED, 6, 2, dim=16, heads=2)
    optimizer = make_optimizer(model, OptimOptions())
    assert type(optimizer).__name__ == "Lookahead"
    assert isinstance(optimizer._base_optimizer, torch.optim.RAdam)
    decayed, free = optimizer.param_groups
    assert decayed["decoupled_weight_decay"] and decayed["lr"] == 2e-4
    assert (decayed["weight_decay"], free["weight_decay"]) == (1e-5, 0.0)
    assert (decayed["lookahead_k"], decayed["lookahead_alpha"]) == (6, 0.5)
    assert "cls" in decayed["param_names"]
    assert "layers.0.value_conv.weight" in decayed["param_names"]
    assert all(name.endswith(("bias", "norm.weight")) for name in free["param_names"])


def test_lookahead_goes_halfway_back_every_sixth_step():
    """Its slow weights are those of step 6 at first, so that step 12 is the first to go back."""
    module = torch.nn.Linear(1, 1, bias=False)
    twin = torch.nn.Linear(1, 1, bias=False)
    twin.load_state_dict(module.state_dict())
    ours = make_optimizer(module, OptimOptions(lr=0.1, weight_decay=0.0))
    plain = torch.optim.RAdam(twin.parameters(), lr=0.1)
    seen = []
    for _ in range(12):
        for model, optimizer in ((module, ours), (twin, plain)):
            optimizer.zero_grad()
            (model.weight - 3).square().sum().backward()
            optimizer.step()
        seen.append((module.weight.item(), twin.weight.item()))
    assert [a == b for a, b in seen] == [True] * 11 + [False]
    assert seen[11][0] == pytest.approx((seen[5][1] + seen[11][1]) / 2, rel=1e-5)


def test_the_schedule_is_optional_and_ends_at_its_floor():
    options = OptimOptions("adamw", 1.0, 0.0, "warmup_cosine", warmup=3, min_lr=0.1)
    optimizer = make_optimizer(torch.nn.Linear(2, 2), options)
    schedule = make_schedule(optimizer, options, 10)
    rates = []
    for _ in range(10):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates[:3] == pytest.approx([1 / 3, 2 / 3, 1]) and rates[-1] == pytest.approx(0.1)
    assert make_schedule(optimizer, OptimOptions(), 10) is None


def test_a_warm_up_longer_than_the_run_is_cut():
    options = OptimOptions("adamw", schedule="warmup_cosine", warmup=100)
    optimizer = make_optimizer(torch.nn.Linear(2, 2), options)
    assert make_schedule(optimizer, options, 5) is not None
    assert optimizer.param_groups[0]["lr"] == pytest.approx(options.lr / 5)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: OptimOptions("sgd"), "name must be one of lookahead_radamw, adamw, got 'sgd'"),
        (lambda: OptimOptions(schedule="step"), "schedule must be one of constant, warmup_cosine"),
        (lambda: OptimOptions(lr=0), "lr must be above 0, got 0"),
        (lambda: OptimOptions(weight_decay=-1), "weight_decay must be 0 or more, got -1"),
        (lambda: OptimOptions(warmup=-1), "warmup must be 0 or more, got -1"),
        (lambda: OptimOptions(min_lr=2), r"min_lr must be a fraction of lr in \[0, 1\], got 2"),
        (lambda: OptimOptions(betas=(1.0, 0.9)), r"betas must be in \[0, 1\)"),
    ],
)
def test_messages(call, words):
    with pytest.raises(ValueError, match=words):
        call()
