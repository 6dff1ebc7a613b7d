"""Linformer: official numbers, its options and messages."""

import pytest
import torch

from isoattn.core import Linformer, UnsupportedAttention, seed_attentions
from isoattn.core.testing.suite import Draw, Sizes

BOTH = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])


def draw(tokens, keys=None, groups=None):
    return Draw(tokens).qkv(Sizes(4, 6, tokens, 2), keys=keys, groups=groups)


@BOTH
def test_lucidrains(golden, dtype):
    case = golden("linformer", dtype)
    options = case.entry["options"]
    heads = options["heads"]
    module = Linformer(
        heads, 8, max_tokens=options["seq_len"], projected=options["k"], share="heads"
    ).to(dtype)
    module.load_state_dict(
        {"project_k": case["w.proj_k"][None], "project_v": case["w.proj_v"][None]}
    )
    x = case["in.x"].clone().requires_grad_()
    linear = torch.nn.functional.linear
    q, k, v = (
        linear(x, case[f"w.to_{name}.weight"]).unflatten(-1, (heads, -1)).transpose(1, 2)
        for name in "qkv"
    )
    mixed = module(q, k, v).transpose(1, 2).flatten(2)
    out = linear(mixed, case["w.to_out.weight"], case["w.to_out.bias"])
    case.close(out, "out.y")
    case.grads_close(out, [x], ["x"])


@pytest.mark.parametrize("share", ["none", "heads", "keys and values"])
def test_shorter_sequences_use_the_first_rows_and_heads_their_own(share):
    module = Linformer(4, 6, max_tokens=20, projected=3, share=share).double()
    short = Linformer(4, 6, max_tokens=7, projected=3, share=share).double()
    short.load_state_dict({n: w[:, :7] for n, w in module.state_dict().items()})
    q, k, v = draw(5, 7, groups=2)
    torch.testing.assert_close(module(q, k, v), short(q, k, v), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(module(q, k, v), module.reference(q, k, v), rtol=1e-12, atol=1e-12)
    assert ("project_v" in module.state_dict()) == (share != "keys and values")
    assert module.project_k.shape[0] == (4 if share == "none" else 1)


def test_mass_spreads_over_empty_slots():
    q, k, v = draw(8)
    mask = torch.arange(8).expand(2, -1) < 1  # one key is visible, and yet no row sums to 1
    matrix = Linformer(4, 6, projected=5).double().matrix(q, k, key_mask=mask)
    assert not matrix[..., 1:].any()
    assert (matrix[..., 0] - 1.0).abs().min() > 0.1


def test_draws_are_its_own():
    module, again, other = (Linformer(2, 4, max_tokens=9, seed=s) for s in (0, 0, 1))
    assert torch.equal(module.project_k, again.project_k)
    assert not torch.equal(module.project_k, other.project_k)
    assert not torch.equal(module.project_k, module.project_v)
    layers = torch.nn.ModuleList([module, again])
    seed_attentions(layers, 3)
    assert not torch.equal(module.project_k, again.project_k)


def test_too_many_keys_name_both_numbers():
    module = Linformer(4, 6, max_tokens=7).double()
    module(*draw(30, 7))
    with pytest.raises(ValueError, match="max_tokens=7 tokens, got 8 keys. Build it with a larger"):
        module(*draw(8))


def test_no_causal_form_has_a_reason():
    with pytest.raises(UnsupportedAttention, match="each slot sums over all tokens"):
        Linformer(4, 6)(*draw(5), causal=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 0}, "must be at least 1; got max_tokens=0, projected=64"),
        ({"projected": 0}, "must be at least 1; got max_tokens=4096, projected=0"),
        ({"share": "layers"}, "share must be one of none, heads, keys and values; got 'layers'"),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        Linformer(4, 6, **options)


def test_the_options_are_shown():
    text = repr(Linformer(4, 6, max_tokens=8, projected=3, share="none"))
    assert "max_tokens=8, projected=3, share='none'" in text
