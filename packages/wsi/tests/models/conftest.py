"""Official numbers, and TransMIL written out once more in float64 from its description."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

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


@dataclass
class Oracle:
    """TransMIL as its authors' code computes it, dense and step by step, on one bag (n, I).

    Args:
        weights: by the names of the network.
        heads: H.
        landmarks: m; zero tokens in front up to a multiple, visible.
        mask_pads: they are hidden.
    """

    weights: dict[str, Tensor]
    heads: int
    landmarks: int
    iterations: int = 6
    mask_pads: bool = False

    def logits(self, bag_nI: Tensor) -> Tensor:
        w = self.weights
        x = self.before_last(bag_nI)
        x = x + self.attend(x, 1)[0]
        last = F.layer_norm(x[0], x[0].shape, w["norm.weight"], w["norm.bias"])
        return w["head.weight"] @ last + w["head.bias"]

    def before_last(self, bag_nI: Tensor) -> Tensor:
        w = self.weights
        x = (bag_nI @ w["input.weight"].T + w["input.bias"]).clamp(min=0)
        side = math.ceil(math.sqrt(len(x)))
        x = torch.cat([w["cls"][0], x, x[: side * side - len(x)]])
        x = x + self.attend(x, 0)[0]
        return torch.cat([x[:1], self.ppeg(x[1:].view(side, side, -1)).flatten(0, 1)])

    def ppeg(self, map_YXD: Tensor) -> Tensor:
        out = map_YXD.clone()
        rows, columns, _ = map_YXD.shape
        for size in (7, 5, 3):
            kernel = self.weights[f"ppeg.conv{size}.weight"][:, 0]
            out = out + self.weights[f"ppeg.conv{size}.bias"]
            for dy in range(-(size // 2), size // 2 + 1):
                for dx in range(-(size // 2), size // 2 + 1):
                    for y in range(max(0, -dy), min(rows, rows - dy)):
                        for x in range(max(0, -dx), min(columns, columns - dx)):
                            tap = kernel[:, dy + size // 2, dx + size // 2]
                            out[y, x] = out[y, x] + tap * map_YXD[y + dy, x + dx]
        return out

    def attend(self, x_ND: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Output of a layer (N, D), and its matrix with the zeros in front (H, N, P + N)."""
        w = {
            k.removeprefix(f"layers.{layer}."): v
            for k, v in self.weights.items()
            if k.startswith(f"layers.{layer}.")
        }
        dim = x_ND.shape[1]
        x = F.layer_norm(x_ND, (dim,), w["norm.weight"], w["norm.bias"])
        zeros = -len(x) % self.landmarks
        x = torch.cat([x.new_zeros(zeros, dim), x])
        real = torch.arange(len(x)) >= zeros
        q, k, v = (
            (x @ part.T).view(len(x), self.heads, -1).transpose(0, 1)
            for part in w["qkv.weight"].split(dim)
        )
        a_HNN = self.matrix(q * q.shape[2] ** -0.5, k, real)
        mixing = a_HNN
        if "value_conv.weight" in w:
            mixing = a_HNN + torch.stack(
                [_band(taps, len(x)) for taps in w["value_conv.weight"][:, 0, :, 0]]
            )
        out = (mixing @ v)[:, zeros:].transpose(0, 1).flatten(1)
        return out @ w["out.weight"].T + w["out.bias"], a_HNN[:, zeros:]

    def matrix(self, q_HNE: Tensor, k_HNE: Tensor, real: Tensor) -> Tensor:
        """A1 Z A3 of all heads; both maxima of the start of Z run over the whole tensor."""
        seen = real if self.mask_pads else torch.ones_like(real)
        count = seen.view(self.landmarks, -1).sum(1)
        share = (count + 1e-8 if self.mask_pads else count)[:, None]
        ql, kl = (y.unflatten(1, (self.landmarks, -1)).sum(2) / share for y in (q_HNE, k_HNE))
        kept = count > 0
        a1 = _soft(q_HNE @ kl.transpose(1, 2), seen, kept)
        a2 = _soft(ql @ kl.transpose(1, 2), kept, kept)
        a3 = _soft(ql @ k_HNE.transpose(1, 2), kept, seen)
        z = a2.transpose(1, 2) / (a2.sum(1).max() * a2.sum(2).max())
        eye = torch.eye(self.landmarks, dtype=z.dtype)
        for _ in range(self.iterations):
            az = a2 @ z
            z = z @ (13 * eye - az @ (15 * eye - az @ (7 * eye - az))) / 4
        return a1 @ z @ a3


def _soft(logits: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    hidden = ~(rows[:, None] & columns[None])
    return logits.masked_fill(hidden, torch.finfo(logits.dtype).min).softmax(-1)


def _band(taps_K: Tensor, size: int) -> Tensor:
    """The matrix of a convolution with zeros beyond both ends."""
    place = torch.arange(size)
    offset = place[None] - place[:, None] + len(taps_K) // 2
    inside = (offset >= 0) & (offset < len(taps_K))
    return taps_K[offset.clamp(0, len(taps_K) - 1)] * inside


@pytest.fixture
def oracle() -> type[Oracle]:
    return Oracle
