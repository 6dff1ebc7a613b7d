"""Where one cost falls below another."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isoattn.apps.base.crossover import Crossover, crossover


def test_it_is_interpolated_on_logarithmic_axes_and_bracketed() -> None:
    found = crossover([100, 1000], [10, 0.1])
    assert found.tokens == pytest.approx(math.sqrt(100 * 1000))
    assert found == Crossover(found.tokens, "316", (100, 1000))


def test_what_is_no_crossover_says_on_which_side_of_the_sizes_it_would_lie() -> None:
    assert crossover([100, 1000], [0.5, 0.1]) == Crossover(None, "< 100")
    assert crossover([100, 1000], [0.5, 1.0]) == Crossover(None, "> 1,000")
    assert crossover([], []) == Crossover(None, "-")


def test_cheaper_and_dearer_again_counts_from_where_it_stays() -> None:
    found = crossover([1, 10, 100], [0.5, 2, 0.5])
    assert found.tokens == pytest.approx(math.sqrt(1000))
    assert found.between == (10, 100)


def test_costs_within_the_level_are_no_crossover() -> None:
    assert crossover([1, 10], [1.02, 0.98], level=0.05) == Crossover(None, "> 10")
    # dearer, as good as equal, cheaper: the bracket holds all in which it can lie
    found = crossover([1, 10, 100], [2, 0.97, 0.5], level=0.05)
    assert found.between == (1, 100)
    assert found.tokens is not None and 1 < found.tokens < 10
    assert crossover([1, 10], [0.99, 0.5], level=0.05) == Crossover(None, "1 to 10", (1, 10))


@settings(deadline=None)
@given(
    st.lists(st.floats(0.01, 100), min_size=1, max_size=8),
    st.sampled_from([0.0, 0.05, 0.5]),
)
def test_a_crossover_lies_in_its_bracket_and_all_sizes_after_it_are_cheaper(
    ratios: list[float], level: float
) -> None:
    sizes = [2**n for n in range(len(ratios))]
    found = crossover(sizes, ratios, level=level)
    if found.between is None:
        assert found.tokens is None
        return
    low, high = found.between
    assert low < high
    assert all(r * (1 + level) < 1 for n, r in zip(sizes, ratios, strict=True) if n >= high)
    if found.tokens is not None:
        assert low * (1 - 1e-9) <= found.tokens <= high * (1 + 1e-9)
