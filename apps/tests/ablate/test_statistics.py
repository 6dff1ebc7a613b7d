"""Laws first, then scipy, then tables, then coverage by simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from isoattn.ablate.statistics import (
    fresh_seed_probability,
    half_width_in_sds,
    hierarchical_bootstrap,
    holm,
    mcnemar,
    paired_t,
    pool_mcnemar,
    sign_flip_test,
    smallest_sign_flip_p,
    standardised_difference,
    tost,
)

# Steps of a ten-thousandth: accuracies come in such steps, and ties happen.
differences = st.lists(st.integers(-5000, 5000).map(lambda k: k / 10_000), min_size=2, max_size=9)
p_values = st.lists(st.floats(0, 1), min_size=1, max_size=8)
EXAMPLES = [0.012, -0.004, 0.021, 0.009, 0.017, 0.003]


# Laws -----------------------------------------------------------------------------------------


@given(differences)
def test_turning_all_signs_turns_the_interval_and_keeps_p(d: list[float]) -> None:
    one, two = paired_t(d), paired_t([-x for x in d])
    assert (one.mean, one.low, one.high) == pytest.approx((-two.mean, -two.high, -two.low))
    assert one.p == pytest.approx(two.p)
    assert sign_flip_test(d).p == sign_flip_test([-x for x in d]).p
    assert tost(d, 0.01).p == pytest.approx(tost([-x for x in d], 0.01).p)
    assert fresh_seed_probability(d) == pytest.approx(1 - fresh_seed_probability([-x for x in d]))


@given(differences, st.randoms(use_true_random=False))
def test_the_order_of_seeds_plays_no_part(d: list[float], random: object) -> None:
    shuffled = list(d)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert sign_flip_test(d).p == sign_flip_test(shuffled).p
    one, two = paired_t(d), paired_t(shuffled)
    assert (one.mean, one.low, one.high) == pytest.approx((two.mean, two.low, two.high))
    if one.sd > 1e-6 and one.n > 2:
        assert standardised_difference(d) == pytest.approx(standardised_difference(shuffled))


@given(differences, st.sampled_from([0.01, 100.0]))
def test_the_unit_plays_no_part(d: list[float], unit: float) -> None:
    scaled = [x * unit for x in d]
    one, two = paired_t(d), paired_t(scaled)
    assert two.low == pytest.approx(unit * one.low, abs=1e-9 * unit)
    assert sign_flip_test(d).p == sign_flip_test(scaled).p


@given(differences)
def test_sign_flip_p_is_a_multiple_of_its_smallest_and_never_below(d: list[float]) -> None:
    test = sign_flip_test(d)
    assert test.exact
    assert test.smallest <= test.p <= 1
    assert test.p * 2 ** len(d) == pytest.approx(round(test.p * 2 ** len(d)))


@given(differences)
def test_sign_flip_agrees_with_counting_by_hand(d: list[float]) -> None:
    # In integers, where ties are exact.
    steps = [round(x * 10_000) for x in d]
    sums = [
        abs(sum(s * x for s, x in zip(signs, steps, strict=True)))
        for signs in itertools.product((1, -1), repeat=len(steps))
    ]
    by_hand = sum(total >= abs(sum(steps)) for total in sums) / len(sums)
    assert sign_flip_test(d).p == pytest.approx(by_hand)


@given(p_values)
def test_holm_laws(p: list[float]) -> None:
    adjusted = holm(p)
    assert all(a >= b or a == pytest.approx(b) for a, b in zip(adjusted, p, strict=True))
    assert all(a <= min(1.0, len(p) * b) + 1e-12 for a, b in zip(adjusted, p, strict=True))
    order = np.argsort(p, kind="stable")
    assert list(np.array(adjusted)[order]) == sorted(adjusted)
    assert holm(p[::-1])[::-1] == pytest.approx(adjusted)


@given(differences, st.floats(0.001, 0.4), st.floats(0.001, 0.1))
def test_a_wider_margin_is_easier_to_meet(d: list[float], margin: float, more: float) -> None:
    assert tost(d, margin + more).p <= tost(d, margin).p + 1e-12


@given(differences, st.floats(0.001, 0.4))
def test_tost_is_its_ninety_percent_interval(d: list[float], margin: float) -> None:
    t = tost(d, margin)
    if min(abs(t.low + margin), abs(t.high - margin)) > 1e-9:
        assert (t.p < 0.05) == (-margin < t.low and t.high < margin)


@given(differences)
def test_the_interval_excludes_zero_exactly_where_p_is_small(d: list[float]) -> None:
    t = paired_t(d)
    if abs(t.p - 0.05) > 1e-9 and t.sd > 0:
        assert (t.p < 0.05) == (not t.low <= 0 <= t.high)


# Against scipy --------------------------------------------------------------------------------


def test_paired_t_is_scipys() -> None:
    base = np.array([0.91, 0.92, 0.90, 0.93, 0.915, 0.905])
    ours = paired_t(EXAMPLES)
    theirs = stats.ttest_rel(base + EXAMPLES, base)
    interval = theirs.confidence_interval(0.95)
    assert ours.p == pytest.approx(theirs.pvalue)
    assert (ours.low, ours.high) == pytest.approx((interval.low, interval.high))


@pytest.mark.parametrize("n", [3, 6, 9])
def test_sign_flip_is_scipys_permutation_test(n: int) -> None:
    d = np.random.default_rng(n).normal(0.3, 1, n)
    theirs = stats.permutation_test(
        (d, np.zeros(n)),
        lambda x, y, axis: np.mean(x - y, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=np.inf,
    )
    assert sign_flip_test(d).p == pytest.approx(theirs.pvalue)


def test_mcnemar_is_scipys_binomial_test() -> None:
    variant = [1] * 50 + [1] * 12 + [0] * 4 + [0] * 34
    baseline = [1] * 50 + [0] * 12 + [1] * 4 + [0] * 34
    table = mcnemar(variant, baseline)
    assert (table.variant_only, table.baseline_only, table.items) == (12, 4, 100)
    assert table.p == pytest.approx(stats.binomtest(12, 16).pvalue)
    swapped = mcnemar(baseline, variant)
    assert swapped.variant_only == 4
    assert swapped.p == pytest.approx(table.p)
    assert mcnemar(variant, variant).p == 1.0


# Tables ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "sds"), [(3, 2.48), (5, 1.24), (6, 1.05), (10, 0.72), (20, 0.47)])
def test_half_widths_of_the_protocol(n: int, sds: float) -> None:
    assert half_width_in_sds(n) == pytest.approx(sds, abs=0.005)


@pytest.mark.parametrize(
    ("n", "p"), [(1, 1.0), (3, 0.25), (5, 0.0625), (6, 0.03125), (10, 0.001953125)]
)
def test_smallest_sign_flip_p(n: int, p: float) -> None:
    assert smallest_sign_flip_p(n) == p
    assert sign_flip_test([0.01 + k / 1000 for k in range(n)]).p == p


def test_holm_by_hand() -> None:
    # 4 x .01 = .04; 3 x .015 = .045; 2 x .03 = .06; .06 stays, since adjusted p never fall.
    assert holm([0.03, 0.01, 0.04, 0.015]) == pytest.approx([0.06, 0.04, 0.06, 0.045])


def test_holm_counts_what_could_not_be_tested() -> None:
    first, second = holm([0.02, math.nan])
    assert first == pytest.approx(0.04)
    assert math.isnan(second)


def test_hedges_factor() -> None:
    # J(5) = gamma(2.5) / (sqrt(2.5) gamma(2)) = 0.8408, Hedges 1981, table 1.
    d = np.array(EXAMPLES)
    assert standardised_difference(d) == pytest.approx(0.8408 * d.mean() / d.std(ddof=1), rel=1e-3)


def test_more_than_twenty_pairs_are_sampled_and_close_to_exact() -> None:
    d = np.random.default_rng(3).normal(0.25, 1, 22)
    sampled = sign_flip_test(d)
    assert not sampled.exact
    sums = np.array([d[0]])
    for value in d[1:]:
        sums = np.concatenate([sums + value, sums - value])
    assert sampled.p == pytest.approx(np.mean(np.abs(sums) >= abs(d.sum())), abs=0.005)
    assert sampled.p == sign_flip_test(d).p, "seeded: the same every time"
    assert sign_flip_test(np.ones(40)).p > 0


# Edges ----------------------------------------------------------------------------------------


def test_one_pair_gives_a_number_and_bounds_nothing() -> None:
    t = paired_t([0.02])
    assert (t.n, t.mean, t.low, t.high) == (1, 0.02, -math.inf, math.inf)
    assert math.isnan(t.p) and math.isnan(t.sd)
    assert math.isnan(tost([0.02], 0.01).p)
    assert math.isnan(fresh_seed_probability([0.02]))
    assert math.isnan(standardised_difference([0.02]))
    assert sign_flip_test([0.02]).p == 1.0


def test_equal_differences() -> None:
    zero = paired_t([0.0] * 6)
    assert (zero.low, zero.high, zero.p) == (0.0, 0.0, 1.0)
    assert tost([0.0] * 6, 0.01).p == 0.0
    assert tost([0.02] * 6, 0.01).p == 1.0
    assert fresh_seed_probability([0.0] * 6) == 0.5
    assert fresh_seed_probability([0.02] * 6) == 1.0
    assert standardised_difference([0.0] * 6) == 0.0
    assert standardised_difference([-0.02] * 6) == -math.inf


def test_what_cannot_be_estimated_is_refused() -> None:
    with pytest.raises(ValueError, match="No paired difference"):
        paired_t([])
    with pytest.raises(ValueError, match="score diverged runs first"):
        sign_flip_test([0.1, math.nan])
    with pytest.raises(ValueError, match="margin must be 0 or more"):
        tost([0.1, 0.2], -1)
    with pytest.raises(ValueError, match="one pair per seed"):
        hierarchical_bootstrap([[1, 0]], [])
    with pytest.raises(ValueError, match="do not pair up"):
        mcnemar([1, 0], [1, 0, 1])


# Coverage -------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [3, 5, 6, 10])
def test_t_interval_covers(n: int) -> None:
    truth, repeats = 0.7, 2000
    draws = np.random.default_rng(n).normal(truth, 1, (repeats, n))
    hits = sum(t.low <= truth <= t.high for t in map(paired_t, draws))
    # Two-sided 99.9 % band of a binomial share around .95.
    assert hits / repeats == pytest.approx(0.95, abs=3.3 * math.sqrt(0.95 * 0.05 / repeats))


def test_sign_flip_and_tost_keep_their_level() -> None:
    repeats = 2000
    draws = np.random.default_rng(5).normal(0, 1, (repeats, 8))
    rejected = sum(sign_flip_test(d).p < 0.05 for d in draws)
    # 8 pairs: the p-values are multiples of 1/128, 6/128 is the largest below .05.
    assert rejected / repeats == pytest.approx(6 / 128, abs=0.016)
    # At the margin itself equivalence is claimed in at most 5 %.
    claimed = sum(tost(d + 1.0, 1.0).p < 0.05 for d in draws)
    assert claimed / repeats <= 0.05 + 0.016


def test_fresh_seed_probability_is_the_predictive_one() -> None:
    """Where the sixth pair falls among the predictions from five is uniform, as it must be."""
    draws = np.random.default_rng(11).normal(0.6, 1, (3000, 6))
    ranks = [fresh_seed_probability(d[:5] - d[5]) for d in draws]
    assert stats.kstest(ranks, "uniform").pvalue > 0.01


# Items ----------------------------------------------------------------------------------------


def test_bootstrap_of_one_seed_is_the_binomial_interval_of_its_items() -> None:
    n = 1000
    variant, baseline = np.zeros(n), np.zeros(n)
    variant[:300] = 1
    result = hierarchical_bootstrap([variant], [baseline], repeats=8000)
    se = math.sqrt(0.3 * 0.7 / n)
    assert result.mean == pytest.approx(0.3)
    assert result.low == pytest.approx(0.3 - 1.96 * se, abs=0.003)
    assert result.high == pytest.approx(0.3 + 1.96 * se, abs=0.003)
    assert (result.seeds, result.items) == (1, n)


def test_bootstrap_is_paired_by_item_and_knows_the_seeds() -> None:
    random = np.random.default_rng(0)
    base = [random.random(500) < 0.9 for _ in range(5)]
    same = hierarchical_bootstrap(base, base)
    assert (same.low, same.mean, same.high) == (0.0, 0.0, 0.0)
    # Seeds that differ by much more than their items can: the interval must hold their spread.
    variant = [row & (np.arange(500) >= 20 * k) for k, row in enumerate(base)]
    result = hierarchical_bootstrap(variant, base)
    one = hierarchical_bootstrap(variant[2:3], base[2:3])
    assert result.high - result.low > 1.5 * (one.high - one.low)
    assert result == hierarchical_bootstrap(variant, base), "seeded: the same every time"


def test_bootstrap_draws_items_anew_where_a_seed_is_drawn_twice() -> None:
    """Two identical seeds: their mean is half as variable as one, if the items are redrawn."""
    random = np.random.default_rng(1)
    variant = random.random(400) < 0.6
    baseline = np.zeros(400)
    one = hierarchical_bootstrap([variant], [baseline], repeats=6000)
    two = hierarchical_bootstrap([variant] * 2, [baseline] * 2, repeats=6000)
    ratio = (two.high - two.low) / (one.high - one.low)
    assert ratio == pytest.approx(math.sqrt(0.5), abs=0.05)


def test_pooled_mcnemar_has_no_p() -> None:
    tables = [mcnemar([1, 1, 0], [0, 1, 1]), mcnemar([1, 1, 1], [0, 0, 1])]
    pooled = pool_mcnemar(tables)
    assert (pooled.variant_only, pooled.baseline_only, pooled.items) == (3, 1, 6)
    assert math.isnan(pooled.p)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60))
def test_mcnemar_reads_only_the_disagreements(pairs: list[tuple[bool, bool]]) -> None:
    table = mcnemar(*map(list, zip(*pairs, strict=True)))
    agreed = mcnemar(*map(list, zip(*(pairs + [(True, True)] * 9), strict=True)))
    assert table.p == agreed.p
