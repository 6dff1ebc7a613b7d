"""Official numbers and small random graphs."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from isoattn.graph.graph import Graph, tidy_edges

GOLDEN = Path(__file__).parents[1] / "golden"


@dataclass
class Golden:
    """One case: tensors by name, options, and the tolerance of a dtype."""

    tensors: dict[str, Tensor]
    options: dict[str, Any]
    tolerance: dict[str, dict[str, float]]

    def role(self, role: str, dtype: torch.dtype) -> dict[str, Tensor]:
        """Tensors of a role without its prefix, floating ones in ``dtype``."""
        found = {
            k.removeprefix(f"{role}."): v
            for k, v in self.tensors.items()
            if k.startswith(f"{role}.")
        }
        return {k: v.to(dtype) if v.is_floating_point() else v for k, v in found.items()}

    def check(self, got: Tensor, name: str) -> None:
        """|got - ref| <= atol + rtol |ref| at the tolerance of got's dtype."""
        key = "f64" if got.dtype == torch.float64 else "f32"
        reference = self.tensors[name]
        torch.testing.assert_close(got.detach().double(), reference.double(), **self.tolerance[key])


@pytest.fixture(scope="session")
def golden() -> Callable[[str], Golden]:
    cases = {c["id"]: c for c in json.loads((GOLDEN / "manifest.json").read_text())["cases"]}

    def load(name: str) -> Golden:
        case = cases[name]
        return Golden(load_file(GOLDEN / case["file"]), case["options"], case["tolerance"])

    return load


@pytest.fixture(scope="session")
def golden_folder() -> Path:
    return GOLDEN


@pytest.fixture
def graph() -> Callable[..., Graph]:
    """``graph(nodes, edges)``: random features and undirected edges."""

    def make(nodes: int = 24, edges: int = 40, *, features: int = 6, seed: int = 0) -> Graph:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(nodes, features, generator=generator)
        drawn = torch.randint(0, nodes, (2, edges), generator=generator)
        return Graph(x, tidy_edges(drawn, nodes)[0])

    return make
