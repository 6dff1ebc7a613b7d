"""Half precision: black and constant images stay finite wherever float32 does.

Cases: https://github.com/facebookresearch/xcit/issues/22,
https://github.com/facebookresearch/deit/issues/29 and 109 (the norm's epsilon is 0 in float16).
"""

import pytest
import torch

from isoattn.core import CosineSoftmax, CrossCovariance, Linear, Softmax
from isoattn.vision.models import SelfAttention, ViT, XCiT

HALF = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
ATTENTIONS = pytest.mark.parametrize("attention", [CrossCovariance, CosineSoftmax, Softmax, Linear])


@HALF
@ATTENTIONS
def test_zero_tokens(attention, dtype):
    layer = SelfAttention(attention, 32, 2).to(dtype)
    torch.nn.init.zeros_(layer.qkv.bias)
    tokens = torch.zeros(1, 16, 32, dtype=dtype, requires_grad=True)
    out = layer(tokens)
    out.float().square().sum().backward()
    assert out.isfinite().all()
    assert tokens.grad.isfinite().all()


@HALF
@pytest.mark.parametrize("factor", [1.0, 300.0, 3000.0])
def test_large_tokens_keep_their_accuracy(dtype, factor):
    """Reported: 16 % relative error at x3000 and 3136 tokens when norms are summed in float16."""
    torch.manual_seed(0)
    layer = SelfAttention(CrossCovariance, 32, 2, qkv_bias=False)
    tokens = torch.randn(1, 3136, 32) * factor
    core = layer.core.to(dtype)
    q, k, v = layer.qkv(tokens).unflatten(2, (3, 2, 16)).permute(2, 0, 3, 1, 4).to(dtype)
    exact = CrossCovariance(2, 16).double()(q.double(), k.double(), v.double())
    error = (core(q, k, v).double() - exact).norm() / exact.norm()
    assert error < (1e-3 if dtype == torch.float16 else 8e-3)


@HALF
@ATTENTIONS
@pytest.mark.parametrize("level", [0.0, 1.0])
@pytest.mark.parametrize("network", [XCiT, ViT])
def test_black_and_constant_images_under_autocast(network, attention, dtype, level):
    torch.manual_seed(0)
    model = network(attention, 1, 10)
    image = torch.full((2, 1, 28, 28), level)
    with torch.autocast("cpu", dtype):
        logits = model(image)
    logits.float().square().sum().backward()
    assert logits.isfinite().all()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@HALF
@ATTENTIONS
def test_black_images_in_a_half_precision_model(attention, dtype):
    torch.manual_seed(0)
    model = XCiT(attention, 1, 10).to(dtype).eval()
    with torch.no_grad():
        assert model(torch.zeros(2, 1, 28, 28, dtype=dtype)).isfinite().all()
