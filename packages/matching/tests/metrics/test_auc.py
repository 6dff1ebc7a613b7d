"""The area under recall over error."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isoattn.matching.metrics import error_auc


def test_official_numbers(numbers):
    case = numbers("metric_pose_auc")
    errors = case.tensors["in.errors"]
    assert int(errors.isinf().sum()) == case.options["n_inf"]
    for thresholds, name in (([5, 10, 20], "out.auc_5_10_20"), ([3, 5, 10], "out.auc_3_5_10")):
        got = torch.tensor(error_auc(errors, thresholds), dtype=torch.float64)
        case.check(got, name, torch.float64)


@given(st.lists(st.floats(0, 50), min_size=1, max_size=20), st.randoms())
@settings(deadline=None, max_examples=25)
def test_order_means_nothing_and_failures_count(errors, random):
    values = torch.tensor(errors, dtype=torch.float64)
    area = error_auc(values, [10.0])[0]
    assert 0 <= area <= 1
    random.shuffle(errors)
    assert error_auc(torch.tensor(errors, dtype=torch.float64), [10.0])[0] == area
    failed = torch.cat([values, torch.tensor([torch.inf, torch.nan], dtype=torch.float64)])
    share = len(errors) / (len(errors) + 2)
    assert error_auc(failed, [10.0])[0] == pytest.approx(area * share)


def test_ends():
    assert error_auc(torch.zeros(3), [1.0]) == [1.0]
    assert error_auc(torch.tensor([torch.inf]), [1.0, 5.0]) == [0.0, 0.0]
    assert math.isnan(error_auc(torch.zeros(0), [1.0])[0])
    with pytest.raises(ValueError, match=r"must be above 0, got \[0, 5\]"):
        error_auc(torch.zeros(1), [0, 5])
