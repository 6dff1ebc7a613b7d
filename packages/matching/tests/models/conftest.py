"""Official numbers, and matchers that are quick to run."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from isoattn.core import Linear
from isoattn.matching.models import Matcher

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

    def check(self, got: Tensor, name: str, where: Tensor | None = None) -> None:
        """|got - ref| <= atol + rtol |ref| at the tolerance of got's dtype; integers exactly."""
        reference = self.tensors[name]
        if not reference.is_floating_point():
            assert torch.equal(got, reference)
            return
        tolerance = self.tolerance["f64" if got.dtype == torch.float64 else "f32"]
        bounds = {k: tolerance[k] for k in ("rtol", "atol")}
        if where is not None:
            got, reference = got[where], reference[where]
        torch.testing.assert_close(got.detach().double(), reference.double(), **bounds)


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
def build() -> Callable[..., Matcher]:
    """``build(attention, seed=0, **options)``: a small matcher in evaluation mode."""

    def make(attention=Linear, *, seed: int = 0, **options) -> Matcher:
        sizes = {"widths": (8, 12, 16), "heads": 2, "layers": 4, "border": 0}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return Matcher(attention, **{**sizes, **options}).eval()

    return make


@pytest.fixture
def images() -> Callable[..., tuple[Tensor, Tensor]]:
    """``images(batch, size0, size1)``: noise in [0, 1]; image 1 is image 0 where sizes agree."""

    def make(batch=1, size0=(40, 48), size1=None, *, seed: int = 0) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        image0 = torch.rand(batch, 1, *size0, generator=generator)
        if size1 is None:
            return image0, image0.clone()
        return image0, torch.rand(batch, 1, *size1, generator=generator)

    return make
