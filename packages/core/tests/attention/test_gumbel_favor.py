"""GumbelFavor: official numbers, noise, edges, neighbours."""

import pytest
import torch

from isoattn.core import GumbelFavor

BOTH = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
OPS = pytest.mark.parametrize("name", ["nodeformer_ops", "nodeformer_ops_tau1_d8"])


def nodeformer(case, dtype):
    """The module of a case, with its projection (one for all heads) copied in."""
    options, rows = case.entry["options"], case["noise.projection"]
    module = GumbelFavor(
        options["H"],
        options["d"],
        features=rows.shape[0],
        tau=options["tau"],
        draws=options["K"],
        fidelity="released",
    ).to(dtype)
    module.projection.rows.copy_(rows)
    return module


def per_key(x):
    """From the official layout (N, B, H, K)."""
    return x.permute(1, 2, 0, 3)


@BOTH
@OPS
def test_without_noise(golden, name, dtype):
    case = golden(name, dtype)
    inputs, (q, k, v) = case.qkv(token_major=True)
    out = nodeformer(case, dtype).eval()(q, k, v).transpose(1, 2)
    case.close(out, "out.y_softmax")
    case.grads_close(out, inputs, ("softmax_q", "softmax_k", "softmax_v"))


@BOTH
@OPS
def test_with_noise(golden, name, dtype):
    case = golden(name, dtype)
    inputs, (q, k, v) = case.qkv(token_major=True)
    module = nodeformer(case, dtype)
    out = module(q, k, v, noise=per_key(case["noise.gumbel"])).transpose(1, 2)
    case.close(out, "out.y_gumbel")
    case.grads_close(out, inputs, ("gumbel_q", "gumbel_k", "gumbel_v"))


@BOTH
@OPS
def test_edges(golden, name, dtype):
    case = golden(name, dtype)
    _, (q, k, _) = case.qkv(token_major=True)
    edges = case["in.edge_index"]
    log_prob = nodeformer(case, dtype).edge_log_prob(q, k, edges)
    case.close(log_prob.exp().transpose(1, 2), "out.edge_weight")
    indegree = torch.bincount(edges[1], minlength=q.shape[2])
    case.close((log_prob / indegree[edges[1]]).mean(), "out.link_loss")


@BOTH
def test_noise_that_overflows_the_released_code(golden, dtype):
    case = golden("nodeformer_gumbel_overflow", dtype)
    _, (q, k, v) = case.qkv(token_major=True)
    noise = per_key(-case["noise.exponential"].log())
    out = nodeformer(case, dtype)(q, k, v, noise=noise).transpose(1, 2)
    case.close(out, "out.y_gumbel")
