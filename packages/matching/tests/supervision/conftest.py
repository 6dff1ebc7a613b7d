"""Scenes whose geometry is known in closed form."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor


@pytest.fixture
def shift() -> Callable[[float, float], Tensor]:
    """``shift(x, y)``: the homography that moves by whole or part pixels, (1, 3, 3)."""

    def make(x: float, y: float) -> Tensor:
        return torch.tensor([[[1.0, 0, x], [0, 1, y], [0, 0, 1]]])

    return make
