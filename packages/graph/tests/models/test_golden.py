"""The whole NodeFormer against numbers made with the authors' code."""

import json
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from isoattn.core import GumbelFavor
from isoattn.graph.graph import Graph
from isoattn.graph.models import NodeFormer, from_published, load_weights

DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
CASES = pytest.mark.parametrize("name", ["nodeformer_model", "nodeformer_model_jk_rb2"])


def whole_model(case, dtype):
    o = case.options
    attention = partial(
        GumbelFavor,
        features=o["nb_random_features"],
        tau=o["tau"],
        draws=o["nb_gumbel_sample"],
        fidelity="released",
    )
    model = NodeFormer(
        attention,
        o["in_channels"],
        o["out_channels"],
        hidden=o["hidden_channels"],
        layers=o["num_layers"],
        heads=o["num_heads"],
        dropout=o["dropout"],
        norm="layer" if o["use_bn"] else "none",
        residual=o["use_residual"],
        act=o["use_act"],
        jk=o["use_jk"],
        relational_order=o["rb_order"],
        relational_mode="power2",
        relational_gate=o["rb_trans"],
    ).to(dtype)
    report = load_weights(model, case.role("w", dtype), strict=False)
    assert {name.split(".")[2] for name in report.fresh} == {"core"}
    assert not report.unused
    for number, layer in enumerate(model.layers):
        layer.core.projection.rows.copy_(case.tensors[f"noise.projection{number}"])
        layer.relational.float()  # as in the authors' code, whatever the dtype of the rest
        noise = -case.tensors[f"noise.exponential{number}"].double().log().permute(1, 2, 0, 3)
        layer.core.draw_noise = lambda _b, _k, core=layer.core, g=noise: (
            g if core.training else None
        )
    inputs = case.role("in", dtype)
    return model, Graph(inputs["x"], inputs["adj0"]), inputs["label"]


@DTYPES
@CASES
def test_evaluation(golden, name, dtype):
    case = golden(name)
    model, graph, _ = whole_model(case, dtype)
    out = model.eval()(graph, return_extras=True)
    case.check(out.logits, "out.logits_eval")
    want = case.tensors["out.link_loss_eval"].mean()
    torch.testing.assert_close(
        out.edge_loss.detach().double(),
        want,
        **case.tolerance["f64" if dtype == torch.float64 else "f32"],
    )


@DTYPES
@CASES
def test_training_with_the_noise_of_the_case(golden, name, dtype):
    case = golden(name)
    model, graph, label = whole_model(case, dtype)
    out = model.train()(graph, return_extras=True)
    half = case.options["N"] // 2
    loss = F.cross_entropy(out.logits[:half], label[:half]) - case.options["lamda"] * out.edge_loss
    loss.backward()
    case.check(out.logits, "out.logits_train")
    case.check(loss, "out.loss_train")
    first = model.layers[0]
    case.check(first.q.weight.grad, "grad.Wq0_weight")
    case.check(first.k.weight.grad, "grad.Wk0_weight")
    case.check(model.input.weight.grad, "grad.fc0_weight")
    case.check(first.relational.gate.grad, "grad.b0")


def test_the_second_adjacency_is_the_released_one(golden):
    case = golden("nodeformer_model_jk_rb2")
    model, graph, _ = whole_model(case, torch.float64)
    second = model.adjacencies(graph.edge_index, graph.num_nodes, torch.float64)[1]
    want = {tuple(pair) for pair in case.tensors["in.adj1"].T.tolist()}
    assert {(s, t) for t, s in second.matrix.to_dense().nonzero().tolist()} == want


@pytest.mark.parametrize(
    ("file", "options"),
    [
        ("cora", {"in_dim": 1433, "out_dim": 7, "relational_order": 2}),
        (
            "ogbn_proteins",
            {
                "in_dim": 8,
                "out_dim": 112,
                "hidden": 64,
                "layers": 3,
                "heads": 1,
                "jk": True,
                "act": True,
                "relational_order": 1,
                "relational_gate": "identity",
            },
        ),
    ],
)
def test_published_names(golden_folder, file, options):
    keys = json.loads((golden_folder / f"keys_nodeformer_{file}.json").read_text())["keys"]
    generator = torch.Generator().manual_seed(0)
    weights = {name: torch.randn(shape, generator=generator) for name, shape in keys.items()}
    model = NodeFormer(GumbelFavor, **options)
    report = load_weights(model, weights, strict=False)
    assert len(report.loaded) == len(keys) == len(list(model.parameters()))
    state = model.state_dict()
    for name, tensor in from_published(weights).items():
        assert torch.equal(state[name], tensor)
