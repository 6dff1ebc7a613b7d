"""The first seven attentions against the official implementations, in float64 and float32.

``golden/manifest.json`` says for each case where its numbers come from, the formula with all
scalings, and the tolerance. None is loosened here.
"""

import hashlib
from functools import partial

import pytest
import torch

from isoattn.core import CrossCovariance, Linear, Softmax
from isoattn.core.ops.linear import key_value_state

BOTH = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])


def test_files_are_those_of_the_manifest(golden):
    assert len(golden.CASES) == len(list(golden.FOLDER.glob("*.safetensors")))
    for case in golden.CASES.values():
        content = (golden.FOLDER / case["file"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == case["sha256"], case["id"]


@BOTH
@pytest.mark.parametrize("path", ["fused", "math"])
@pytest.mark.parametrize("name", ["softmax_plain", "softmax_causal", "softmax_keymask"])
def test_softmax(golden, name, path, dtype):
    case = golden(name, dtype)
    inputs, (q, k, v) = case.qkv(token_major=False)
    module = Softmax(q.shape[1], q.shape[3], path=path)
    options = {"causal": case.entry["options"]["causal"], "key_mask": None}
    if case.entry["options"]["key_mask"]:
        options["key_mask"] = case["in.key_mask"]
    out = module(q, k, v, **options)
    case.close(out, "out.y")
    case.close(module.matrix(q, k, **options)[:, 0], "mid.attn_head0")
    case.grads_close(out, inputs, "qkv")


@BOTH
@pytest.mark.parametrize("path", ["fused", "math"])
def test_softmax_loftr(golden, path, dtype):
    case = golden("softmax_loftr_full_nomask", dtype)
    inputs, (q, k, v) = case.qkv(token_major=True)
    out = Softmax(q.shape[1], q.shape[3], path=path)(q, k, v).transpose(1, 2)
    case.close(out, "out.y")
    case.grads_close(out, inputs, "qkv")


@BOTH
@pytest.mark.parametrize("path", ["fused", "math"])
def test_softmax_loftr_masks_give_no_nan(golden, path, dtype):
    # The released FullAttention is NaN on padded query rows; masking keys alone is right there too.
    case = golden("softmax_loftr_full_masks_nan", dtype)
    _, (q, k, v) = case.qkv(token_major=True)
    module = Softmax(q.shape[1], q.shape[3], path=path)
    out = module(q, k, v, key_mask=case["in.kv_mask"]).transpose(1, 2)
    case.close(out, "out.y_key_masked_softmax")
    official, rows = case["out.y_official"], case["in.q_mask"]
    assert official[~rows].isnan().all()
    bound = case.tolerance["atol"] + case.tolerance["rtol"] * official[rows].abs()
    assert ((out[rows].double() - official[rows]).abs() <= bound).all()


@BOTH
@pytest.mark.parametrize("masked", [False, True], ids=["nomask", "masks"])
def test_linear_loftr(golden, masked, dtype):
    case = golden(f"elu1_noncausal_loftr_{'masks' if masked else 'nomask'}", dtype)
    inputs, (q, k, v) = case.qkv(token_major=True)
    module = Linear(q.shape[1], q.shape[3], eps=case.entry["options"]["eps"])
    out = module(q, k, v, key_mask=case["in.kv_mask"] if masked else None).transpose(1, 2)
    if masked:  # the official code zeroes the query rows of pads, which is the caller's part here
        out = out * case["in.q_mask"][:, :, None, None]
    case.close(out, "out.y")
    case.grads_close(out, inputs, "qkv")


@BOTH
def test_linear_fast_transformers(golden, dtype):
    case = golden("elu1_noncausal_fasttransformers", dtype)
    inputs, (q, k, v) = case.qkv(token_major=True)
    mask = torch.arange(k.shape[2]) < case["in.key_lengths"][:, None]
    module = Linear(q.shape[1], q.shape[3], eps=case.entry["options"]["eps"])
    out = module(q, k, v, key_mask=mask).transpose(1, 2)
    case.close(out, "out.y")
    case.grads_close(out, inputs, "qkv")


@BOTH
def test_linear_causal_fast_transformers(golden, dtype):
    case = golden("elu1_causal_fasttransformers", dtype)
    inputs, (q, k, v) = case.qkv(token_major=True)
    options = case.entry["options"]
    module = Linear(q.shape[1], q.shape[3], eps=options["eps"])
    out = module(q, k, v, causal=True).transpose(1, 2)
    case.close(out, "out.y")
    case.grads_close(out, inputs, "qkv")
    state = partial(key_value_state, feature_map="elu1")
    for tokens, names in (
        (options["cut"], ("state_S_at_cut", "state_z_at_cut")),
        (options["N"], ("final_S", "final_z")),
    ):
        for got, name in zip(state(k[:, :, :tokens], v[:, :, :tokens]), names, strict=True):
            case.close(got, f"out.{name}")


@BOTH
def test_cross_covariance(golden, dtype):
    case = golden("xca", dtype)
    heads = case.entry["options"]["num_heads"]
    x, qkv_weight = (case[n].clone().requires_grad_() for n in ("in.x", "w.qkv.weight"))
    batch, tokens, dim = x.shape
    module = CrossCovariance(heads, dim // heads).to(dtype)
    module.load_state_dict({"temperature": case["w.temperature"]})
    qkv = torch.nn.functional.linear(x, qkv_weight, case["w.qkv.bias"])
    q, k, v = qkv.view(batch, tokens, 3, heads, dim // heads).permute(2, 0, 3, 1, 4)
    case.close(module.channel_matrix(q, k), "mid.attn")
    mixed = module(q, k, v).transpose(1, 2).reshape(batch, tokens, dim)
    out = torch.nn.functional.linear(mixed, case["w.proj.weight"], case["w.proj.bias"])
    case.close(out, "out.y")
    wanted = ("x", "qkv_weight", "temperature")
    case.grads_close(out, [x, qkv_weight, module.temperature], wanted)
