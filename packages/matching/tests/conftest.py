"""Official numbers, and the real image pairs where they lie beside the repository."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

GOLDEN = Path(__file__).parent / "golden"
REAL = Path(__file__).parents[4] / "shared" / "data" / "matching"


@dataclass
class Numbers:
    """One case: tensors by name, options, and the tolerance of a dtype."""

    tensors: dict[str, Tensor]
    options: dict[str, Any]
    tolerance: dict[str, dict[str, float]]

    def inputs(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """The tensors ``in.*`` by name, floating ones in ``dtype``."""
        found = {k[3:]: v for k, v in self.tensors.items() if k.startswith("in.")}
        return {k: v.to(dtype) if v.is_floating_point() else v for k, v in found.items()}

    def check(self, got: Tensor, name: str, dtype: torch.dtype) -> None:
        """|got - ref| <= atol + rtol |ref| at the tolerance of a dtype; integers exactly."""
        reference = self.tensors[name]
        if not reference.is_floating_point():
            assert torch.equal(got, reference.to(got.dtype))
            return
        bounds = self.tolerance["f64" if dtype == torch.float64 else "f32"]
        kept = {key: bounds[key] for key in ("rtol", "atol")}
        torch.testing.assert_close(got.detach().double(), reference.double(), **kept)


@pytest.fixture(scope="session")
def numbers() -> Callable[[str], Numbers]:
    cases = {c["id"]: c for c in json.loads((GOLDEN / "manifest.json").read_text())["cases"]}

    def load(name: str) -> Numbers:
        case = cases[name]
        return Numbers(load_file(GOLDEN / case["file"]), case["options"], case["tolerance"])

    return load


@pytest.fixture
def real_pairs() -> Path:
    if not REAL.is_dir():
        pytest.skip("the real pairs are not beside the repository")
    return REAL
