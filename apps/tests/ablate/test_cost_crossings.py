"""Crossovers of arms with the baseline, from given numbers; in numbers and in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest

from isoattn.ablate.cost_crossings import crossing, own_size
from isoattn.ablate.cost_records import CostTable, SizedCost
from isoattn.ablate.records import ArmCost
from isoattn.ablate.report.cost_wording import (
    about_text,
    arm_sentence,
    crossing_cell,
    not_measured,
)

SIZES = (100, 1000, 10_000)


def table_of(
    arms: Mapping[str, Sequence[float | None]],
    *,
    peaks: Mapping[str, Sequence[float]] | None = None,
    tokens: Sequence[int | None] = SIZES,
    own: int | None = None,
) -> CostTable:
    """Step times of arms at 100, 1,000 and 10,000 nodes; None: not measured. The first is base."""
    rows = []
    for arm, steps in arms.items():
        for number, (size, step) in enumerate(zip(SIZES, steps, strict=True)):
            peak = 10.0 if peaks is None else peaks[arm][number]
            cost = None if step is None else ArmCost(arm, {}, 1, 1, step, 0.0, step / 2, peak, 1)
            status, reason = ("measured", "") if cost else ("failed", "too much")
            rows.append(SizedCost(arm, size, "", status, reason, cost))  # type: ignore[arg-type]
    return CostTable(
        "Title",
        tuple(arms),
        next(iter(arms)),
        (),
        {"label": "nodes"},
        {},
        own,
        dict(zip(SIZES, tokens, strict=True)),
        tuple(rows),
    )


def test_an_arm_that_becomes_cheaper_crosses_between_two_sizes() -> None:
    table = table_of({"Softmax": (1, 10, 1000), "Linear": (10, 10, 100)}, own=1000)
    found = crossing(table, "Linear", "step_ms")
    assert found is not None and found.crossover is not None
    assert found.ratios == (10, 1, 0.1)
    assert found.side == "cheaper"
    assert found.crossover.between == (1000, 10_000)
    assert found.crossover.tokens == pytest.approx(1000)
    assert crossing_cell(table, "Linear", "step_ms") == "cheaper from 1,000–10,000 (about 1,000)"
    assert arm_sentence(table, "Linear").startswith(
        "Linear against Softmax: 0.1 times the training step at 10,000 nodes (cheaper from between "
        "1,000 and 10,000 on, about 1,000, 1 times the study's own size); 0.1 times the forward "
    )


def test_against_a_linear_baseline_softmax_becomes_dearer_at_the_same_place() -> None:
    steps = {"Linear": (10, 20, 100), "Softmax": (1, 10, 1000)}
    one = crossing(table_of(steps), "Softmax", "step_ms")
    other = crossing(table_of(dict(reversed(steps.items()))), "Linear", "step_ms")
    assert one is not None and one.crossover is not None
    assert other is not None and other.crossover is not None
    assert (one.side, other.side) == ("dearer", "cheaper")
    assert one.crossover.tokens == pytest.approx(other.crossover.tokens)
    assert one.crossover.between == other.crossover.between == (1000, 10_000)


@pytest.mark.parametrize(
    ("steps", "cell"),
    [
        ((2, 20, 200), "none up to 10,000 (dearer)"),
        ((0.5, 5, 50), "none up to 10,000 (cheaper)"),
        ((1.03, 9.8, 101), "none up to 10,000 (equal)"),
        ((0.5, 5, 101), "none up to 10,000 (equal)"),
        ((2, 20, None), "none up to 1,000 (dearer)"),
        ((0.97, 5, 50), "cheaper from 100–1,000"),
        ((None, None, None), "–"),
    ],
)
def test_no_crossover_is_a_result(steps: tuple[float | None, ...], cell: str) -> None:
    table = table_of({"Softmax": (1, 10, 100), "Linear": steps})
    assert crossing_cell(table, "Linear", "step_ms") == cell


def test_the_sentence_says_no_crossover_and_the_last_ratio() -> None:
    table = table_of({"Softmax": (1, 10, 100), "Linear": (2, 20, 200)})
    assert arm_sentence(table, "Linear") == (
        "Linear against Softmax: 2 times the training step at 10,000 nodes (crossover: none up to "
        "10,000); 2 times the forward pass at 10,000 nodes (crossover: none up to 10,000); 1 times "
        "the peak memory at 10,000 nodes (crossover: none up to 10,000)."
    )


def test_each_part_has_its_own_crossover() -> None:
    table = table_of(
        {"Softmax": (1, 10, 1000), "Linear": (10, 20, 100)},
        peaks={"Softmax": (1.5, 2, 3), "Linear": (3, 30, 300)},
    )
    time, memory = (crossing(table, "Linear", part) for part in ("step_ms", "peak_mib"))
    assert time is not None and memory is not None
    assert (time.side, memory.side) == ("cheaper", "dearer")
    assert memory.crossover is None


def test_memory_that_is_too_little_to_be_told_from_nothing_is_not_compared() -> None:
    peaks = {"Softmax": (0.2, 4, 40), "Linear": (0.0, 8, 20)}
    table = table_of({"Softmax": (1, 1, 1), "Linear": (1, 1, 1)}, peaks=peaks)
    found = crossing(table, "Linear", "peak_mib")
    assert found is not None and found.sizes == (1000, 10_000)


def test_an_arm_without_a_size_in_common_says_so() -> None:
    table = table_of({"Softmax": (1, None, None), "Linear": (None, 1, 1)})
    assert arm_sentence(table, "Linear") == (
        "Linear: at no size were both it and Softmax measured."
    )
    assert not_measured(table) == [
        "Softmax, 1,000, 10,000 nodes: too much",
        "Linear, 100 nodes: too much",
    ]


def test_the_study_s_own_size_is_where_the_attention_sees_as_many_tokens() -> None:
    steps = {"Softmax": (1, 1, 1)}
    assert own_size(table_of(steps, own=2708)) == 2708
    assert own_size(table_of(steps)) is None
    assert own_size(table_of(steps, tokens=(None, None, None), own=5)) is None
    squares = tuple((size // 10) ** 2 for size in SIZES)  # the side of an image against its tokens
    assert own_size(table_of(steps, tokens=squares, own=100**2)) == pytest.approx(1000)
    assert own_size(table_of(steps, tokens=squares, own=30**2)) == pytest.approx(300)
    sizes = sorted(table_of(steps, tokens=squares).tokens)
    for size, tokens in zip(sizes, squares, strict=True):  # measured: that very size, to the bit
        assert own_size(table_of(steps, tokens=squares, own=tokens)) == size
    assert own_size(table_of(steps, tokens=squares, own=2**2)) == pytest.approx(20)  # continued
    assert own_size(table_of(steps, tokens=(49, 49, 49), own=49)) == 100
    assert own_size(table_of(steps, tokens=(49, 49, 49), own=50)) is None


def test_interpolated_sizes_have_two_digits() -> None:
    numbers = (2708.0, 1234.5, 641.2, 12.34, math.pi)
    assert [about_text(n) for n in numbers] == ["2,708", "1,200", "640", "12", "3.1"]
