"""Golden vectors and randomised twins of timm's models."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

GOLDEN = Path(__file__).parents[1] / "golden"


@dataclass
class Golden:
    """One case: tensors by name, options, and the tolerance of a dtype."""

    tensors: dict[str, Tensor]
    options: dict
    tolerance: dict

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
def randomise() -> Callable[[nn.Module], nn.Module]:
    """Give every scale, bias and running statistic a value that shows when it is misplaced."""

    def apply(model: nn.Module, seed: int = 0) -> nn.Module:
        generator = torch.Generator().manual_seed(seed)

        def uniform(like: Tensor, low: float, high: float) -> Tensor:
            draw = torch.rand(like.shape, generator=generator, dtype=torch.float32)
            return (low + (high - low) * draw).to(like.dtype)

        with torch.no_grad():
            for name, tensor in (*model.named_parameters(), *model.named_buffers()):
                leaf = name.rsplit(".", 1)[-1]
                if leaf in ("gamma1", "gamma2", "gamma3"):
                    tensor.copy_(uniform(tensor, 0.2, 0.6))
                elif leaf == "temperature":
                    tensor.copy_(uniform(tensor, 0.5, 3.0))
                elif leaf == "running_var" or (leaf == "weight" and tensor.ndim == 1):
                    tensor.copy_(uniform(tensor, 0.6, 1.4))
                elif leaf in ("bias", "running_mean", "cls_token", "pos_embed"):
                    tensor.copy_(uniform(tensor, -0.3, 0.3))
        return model

    return apply
