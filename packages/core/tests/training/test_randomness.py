"""Draws are functions of (seed, epoch, stream, item), and of nothing else."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from isoattn.core.training import derive_seed, item_generator, item_uniform

numbers = st.integers(-(2**62), 2**62)


@given(st.lists(numbers, min_size=2, max_size=4))
def test_seed_depends_on_order_and_stays_in_range(parts: list[int]) -> None:
    seed = derive_seed(*parts)
    assert 0 <= seed < 2**63
    assert seed == derive_seed(*parts)
    if parts != parts[::-1]:
        assert seed != derive_seed(*parts[::-1])


@given(seed=numbers, epoch=st.integers(0, 1000), items=st.lists(st.integers(0, 2**40), min_size=1))
def test_a_row_does_not_depend_on_its_batch(seed: int, epoch: int, items: list[int]) -> None:
    together = item_uniform(seed, epoch, torch.tensor(items), 3)
    alone = torch.cat([item_uniform(seed, epoch, torch.tensor([i]), 3) for i in items])
    assert torch.equal(together, alone)
    assert together.dtype == torch.float32
    assert bool((together >= 0).all()) and bool((together < 1).all())


def test_uniform_numbers_look_uniform_and_independent() -> None:
    draws = item_uniform(0, 0, torch.arange(20_000), 4).double()
    assert torch.allclose(draws.mean(0), torch.full((4,), 0.5, dtype=torch.float64), atol=0.01)
    assert torch.allclose(draws.var(0), torch.full((4,), 1 / 12, dtype=torch.float64), atol=0.003)
    correlation = torch.corrcoef(draws.T) - torch.eye(4, dtype=torch.float64)
    assert float(correlation.abs().max()) < 0.03
    neighbours = torch.corrcoef(torch.stack([draws[:-1, 0], draws[1:, 0]]))[0, 1]
    assert abs(float(neighbours)) < 0.03


def test_item_generator_is_a_function_of_its_arguments() -> None:
    def draw(*arguments: int | str) -> list[float]:
        return torch.rand(4, generator=item_generator(*arguments)).tolist()  # type: ignore[arg-type]

    base = draw(0, 1, 2, "augment")
    assert base == draw(0, 1, 2, "augment")
    others = [draw(1, 1, 2), draw(0, 2, 2), draw(0, 1, 3), draw(0, 1, 2, "mix"), draw(0, 2, 1)]
    assert all(other != base for other in others)


def test_global_generator_is_untouched() -> None:
    before = torch.get_rng_state()
    item_uniform(0, 0, torch.arange(5), 2)
    item_generator(0, 0, 0)
    assert torch.equal(before, torch.get_rng_state())
