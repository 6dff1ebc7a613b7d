import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file


class Golden:
    """One file: tensors in the tested dtype, expected ones as stored, and the tolerance.

    ``golden/manifest.json`` says for each case where its numbers come from, the formula with all
    scalings, and the tolerance. None is loosened.
    """

    FOLDER = Path(__file__).parent / "golden"
    CASES = {
        case["id"]: case for case in json.loads((FOLDER / "manifest.json").read_text())["cases"]
    }

    def __init__(self, name, dtype):
        self.entry = self.CASES[name]
        self.tolerance = self.entry["tolerance"]["f64" if dtype == torch.float64 else "f32"]
        self.stored = load_file(self.FOLDER / self.entry["file"])
        self.dtype = dtype

    def __getitem__(self, name):
        """A stored tensor, floating point inputs and weights in the tested dtype."""
        x = self.stored[name]
        given = name.split(".")[0] in ("in", "w", "noise")
        return x.to(self.dtype) if given and x.is_floating_point() else x

    def qkv(self, *, token_major):
        inputs = [self[f"in.{name}"].clone().requires_grad_() for name in "qkv"]
        return inputs, [x.transpose(1, 2) if token_major else x for x in inputs]

    def close(self, got, name):
        want = self.stored[name]
        bound = self.tolerance["atol"] + self.tolerance["rtol"] * want.abs()
        excess = ((got.double() - want).abs() - bound).max().item()
        assert got.shape == want.shape
        assert excess <= 0, f"{self.entry['id']} {name}: beyond the tolerance by {excess:.2e}"

    def grads_close(self, out, inputs, names):
        grads = torch.autograd.grad(out, inputs, self["in.grad_out"])
        for grad, name in zip(grads, names, strict=True):
            self.close(grad, f"grad.{name}")


@pytest.fixture(scope="session")
def golden():
    """``golden(name, dtype)``: a case of the official numbers."""
    return Golden


@pytest.fixture(autouse=True)
def one_thread():
    """With tensors as small as here, more threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
