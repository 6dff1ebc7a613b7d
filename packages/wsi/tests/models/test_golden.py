"""TransMIL against numbers made with the authors' code."""

import json
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from isoattn.core import Nystrom
from isoattn.wsi.models import PPEG, RELEASED, TransMIL, from_published, load_weights

DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
CASES = pytest.mark.parametrize(
    "name", ["transmil_n1", "transmil_n10_nonsquare", "transmil_n36_square", "transmil_n130"]
)


def whole_model(case, dtype):
    o = case.options
    attention = partial(
        Nystrom,
        landmarks=o["num_landmarks"],
        iterations=o["pinv_iterations"],
        compat="nystrom-attention",
    )
    model = TransMIL(
        attention, o["in_features"], o["n_classes"], dim=o["dim"], heads=o["heads"]
    ).to(dtype)
    report = load_weights(model, case.role("w", dtype))
    assert not report.fresh and not report.unused
    return model.eval()


@DTYPES
@CASES
def test_values_and_gradients(golden, name, dtype):
    case = golden(name)
    model = whole_model(case, dtype)
    bag = case.role("in", dtype)["bag"].requires_grad_()
    logits = model(bag)
    loss = F.cross_entropy(logits, case.tensors["in.label"])
    loss.backward()
    case.check(logits, "out.logits")
    case.check(logits.softmax(1), "out.prob")
    case.check(loss, "out.loss")
    assert torch.equal(logits.argmax(1), case.tensors["out.pred"])
    case.check(bag.grad[:, :4], "grad.bag")
    case.check(model.cls.grad, "grad.cls_token")
    case.check(model.head.weight.grad, "grad.fc2_weight")


@DTYPES
@CASES
def test_tokens_between_the_layers(golden, name, dtype):
    case = golden(name)
    model = whole_model(case, dtype)
    with torch.no_grad():
        first = model.layers[0](model.tokens(case.role("in", dtype)["bag"]))
        case.check(first[:, :8], "mid.after_layer1")
        case.check(model.ppeg(first)[:, :8], "mid.after_ppeg")


@DTYPES
def test_official_size(golden, dtype):
    case = golden("transmil_official_size")
    model = TransMIL(RELEASED, 1024, case.options["n_classes"])
    assert sum(p.numel() for p in model.parameters()) == 2_672_146
    weights = {}
    for k, (name, shape) in enumerate(case.options["parameter_order"]):
        size = torch.Size(shape).numel()
        i = torch.arange(size, dtype=torch.float64)
        f = torch.sin((0.9 + 0.1 * k) * i + 0.3 * k**2).view(shape)
        if name.endswith("norm.weight"):
            f = 1 + 0.1 * f
        elif len(shape) == 1:
            f = 0.05 * f
        else:
            f = 1.2 * f / torch.Size(shape[1:]).numel() ** 0.5
        weights[name] = f.float()
    load_weights(model, weights)
    model = model.to(dtype).eval()
    with torch.no_grad():
        case.check(model(case.role("in", dtype)["bag"]), "out.logits")


@DTYPES
def test_ppeg(golden, dtype):
    case = golden("transmil_ppeg")
    w = case.role("w", dtype)
    ppeg = PPEG(case.options["dim"]).to(dtype)
    names = {"proj": "conv7", "proj1": "conv5", "proj2": "conv3"}
    ppeg.load_state_dict(
        {f"{names[name.split('.')[0]]}.{name.split('.')[1]}": x for name, x in w.items()}
    )
    inputs = case.role("in", dtype)
    x = inputs["x"].requires_grad_()
    y = ppeg(x)
    (y * inputs["grad_out"]).sum().backward()
    case.check(y, "out.y")
    case.check(x.grad, "grad.x")


def test_published_names(golden_folder):
    keys = json.loads((golden_folder / "keys_transmil.json").read_text())["keys"]
    generator = torch.Generator().manual_seed(0)
    weights = {f"model.{n}": torch.randn(shape, generator=generator) for n, shape in keys.items()}
    model = TransMIL(RELEASED, 1024, 2)
    report = load_weights(model, weights)
    assert len(report.loaded) == len(keys) == len(list(model.parameters()))
    state = model.state_dict()
    for name, tensor in from_published(weights).items():
        assert torch.equal(state[name], tensor)
