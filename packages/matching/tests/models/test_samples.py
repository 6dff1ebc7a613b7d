"""Which matches are refined in training: places for true ones, none twice, from a seed alone."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isoattn.matching.models import CellMatches
from isoattn.matching.models.samples import training_cells


def make(found, truth, seed=0):
    """Found matches in cells from 0 on, true ones in cells from 1000 on, of three pairs."""
    generator = torch.Generator().manual_seed(seed)
    batches = [torch.randint(0, 3, (n,), generator=generator).sort().values for n in (found, truth)]
    cells = [torch.arange(found), torch.arange(1000, 1000 + truth)]
    return (
        CellMatches(batches[0], cells[0], cells[0] + 7, torch.rand(found) + 0.1),
        (batches[1], cells[1], cells[1] + 7),
    )


@settings(deadline=None)
@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 60), st.integers(0, 60))
def test_places(found, truth, count, least):
    least = min(least, count)
    given_matches, true_ones = make(found, truth)
    generator = torch.Generator().manual_seed(0)
    got = training_cells(given_matches, true_ones, count, least_truth=least, generator=generator)
    true_count = int((got.confidence == 0).sum())
    assert len(got) <= count
    assert len(got) == min(count, found + truth)
    assert true_count >= min(least, truth)
    assert len(got.cell0.unique()) == len(got)
    assert torch.equal(got.cell1, got.cell0 + 7)
    assert torch.equal(got.confidence == 0, got.cell0 >= 1000)
    assert torch.equal(got.batch, got.batch.sort().values)


def test_the_choice_follows_the_generator():
    def choose(seed):
        found, truth = make(40, 40)
        generator = torch.Generator().manual_seed(seed)
        return training_cells(found, truth, 20, least_truth=5, generator=generator).cell0

    assert torch.equal(choose(0), choose(0)) and not torch.equal(choose(0), choose(1))


def test_message():
    found, truth = make(3, 3)
    with pytest.raises(ValueError, match=r"least_truth must lie in 0..4, .* got 5"):
        training_cells(found, truth, 4, least_truth=5, generator=torch.Generator())
