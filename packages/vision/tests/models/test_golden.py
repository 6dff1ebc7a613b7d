"""Blocks and whole models against vectors made with the authors' code."""

import pytest
import torch
from torch.nn import functional as F

from isoattn.core import CrossCovariance
from isoattn.vision.models import SelfAttention, XCiT, load_weights
from isoattn.vision.models.class_attention import ClassAttentionBlock
from isoattn.vision.models.positions import FourierPositions, fourier_features
from isoattn.vision.models.weight_names import rename_weights
from isoattn.vision.models.xcit import XCiTBlock

DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])


@DTYPES
def test_xca(golden, dtype):
    case = golden("xca")
    layer = SelfAttention(CrossCovariance, case.options["dim"], case.options["num_heads"])
    layer.to(dtype).load_state_dict(case.role("w", dtype), strict=True)
    inputs = case.role("in", dtype)
    x = inputs["x"].requires_grad_()
    y = layer(x)
    y.backward(inputs["grad_out"])
    case.check(y, "out.y")
    case.check(x.grad, "grad.x")
    case.check(layer.qkv.weight.grad, "grad.qkv_weight")
    case.check(layer.core.temperature.grad, "grad.temperature")


@DTYPES
def test_xca_map(golden, dtype):
    case = golden("xca")
    layer = SelfAttention(CrossCovariance, case.options["dim"], case.options["num_heads"])
    layer.to(dtype).load_state_dict(case.role("w", dtype))
    x = case.role("in", dtype)["x"]
    qkv = layer.qkv(x).unflatten(2, (3, layer.heads, layer.head_dim)).permute(2, 0, 3, 1, 4)
    case.check(layer.core.channel_matrix(qkv[0], qkv[1]), "mid.attn")


@DTYPES
@pytest.mark.parametrize("mode", ["eval", "train"])
def test_xcit_block(golden, dtype, mode):
    case = golden(f"xcit_block_{mode}")
    o = case.options
    block = XCiTBlock(CrossCovariance, o["dim"], o["num_heads"], eta=o["eta"])
    block.to(dtype).train(o["train"])
    block.load_state_dict(case.role("w", dtype), strict=True)
    inputs = case.role("in", dtype)
    x = inputs["x"].requires_grad_()
    y = block(x, (o["H"], o["W"]))
    y.backward(inputs["grad_out"])
    case.check(y, "out.y")
    case.check(x.grad, "grad.x")
    if o["train"]:
        case.check(block.local_mp.bn.running_mean, "out.running_mean_after")
        case.check(block.local_mp.bn.running_var, "out.running_var_after")


@DTYPES
@pytest.mark.parametrize("name", ["xcit_class_attn_block", "xcit_class_attn_block_tokensnorm"])
def test_class_attention_block(golden, dtype, name):
    case = golden(name)
    o = case.options
    block = ClassAttentionBlock(
        o["dim"], o["num_heads"], eta=o["eta"], tokens_norm=o["tokens_norm"]
    ).to(dtype)
    official = {f"cls_attn_blocks.0.{k}": v for k, v in case.role("w", dtype).items()}
    ours = rename_weights(official).weights
    block.load_state_dict({k.removeprefix("cls_attn_blocks.0."): v for k, v in ours.items()})
    x = case.role("in", dtype)["x"]
    case.check(block(x), "out.y")
    torch.testing.assert_close(block.class_token(x), block(x)[:, :1])


def test_fourier_positions_in_float64(golden):
    case = golden("xcit_pos_fourier")
    grid = (case.options["H"], case.options["W"])
    positions = FourierPositions(case.options["dim"], angle_dtype=torch.float64).double()
    positions.load_state_dict(case.role("w", torch.float64))
    case.check(positions(grid)[0].T.unflatten(1, grid), "out.pos_f64")
    rows, columns = (fourier_features(n, dtype=torch.float64) for n in grid)
    features = torch.cat([rows[:, None].expand(*grid, -1), columns[None].expand(*grid, -1)], dim=2)
    case.check(features.permute(2, 0, 1), "mid.fourier_features")


def test_fourier_positions_in_float32(golden):
    case = golden("xcit_pos_fourier")
    grid = (case.options["H"], case.options["W"])
    positions = FourierPositions(case.options["dim"])
    positions.load_state_dict(case.role("w", torch.float32))
    case.check(positions(grid)[0].T.unflatten(1, grid), "out.pos_official_f32")


def whole_model(case, dtype: torch.dtype) -> XCiT:
    o = case.options
    model = XCiT(
        CrossCovariance,
        3,
        o["num_classes"],
        embed_dim=o["embed_dim"],
        depth=o["depth"],
        heads=o["num_heads"],
        patch_size=o["patch_size"],
        mlp_ratio=o["mlp_ratio"],
        eta=o["eta"],
        tokens_norm=o["tokens_norm"],
        cls_layers=o["cls_attn_layers"],
    )
    report = load_weights(model.to(dtype), {"model": case.role("w", dtype)})
    assert report.missing == []
    assert report.unexpected == []
    return model.train(o["train"])


@DTYPES
@pytest.mark.parametrize("name", ["xcit_tiny_p16_eval", "xcit_tiny_p8_tokensnorm_train"])
def test_whole_model(golden, dtype, name):
    case = golden(name)
    model = whole_model(case, dtype)
    inputs = case.role("in", dtype)
    mids = {}
    model.patch_embed.register_forward_hook(lambda _m, _i, out: mids.update(stem=out[0]))
    model.blocks[-1].register_forward_hook(lambda _m, _i, out: mids.update(block=out))
    logits = model(inputs["image"])
    loss = F.cross_entropy(logits, inputs["label"])
    loss.backward()
    case.check(mids["stem"], "mid.patch_embed")
    case.check(mids["block"], "mid.last_xca_block")
    case.check(logits, "out.logits")
    case.check(loss, "out.loss")
    case.check(model.head.weight.grad, "grad.head_weight")
    case.check(model.patch_embed.proj[0][0].weight.grad, "grad.stem_conv0")
    case.check(model.blocks[0].attn.core.temperature.grad, "grad.temperature_block0")
    if case.options["train"]:
        case.check(model.blocks[0].local_mp.bn.running_var, "out.lpi0_running_var_after")
        case.check(model.patch_embed.proj[0][1].running_mean, "out.stem_bn0_running_mean_after")


@pytest.mark.parametrize("name", ["xcit_tiny_p16_eval", "xcit_tiny_p8_tokensnorm_train"])
def test_whole_model_with_float64_angles(golden, name):
    case = golden(name)
    model = whole_model(case, torch.float64)
    model.pos_embed.angle_dtype = torch.float64
    logits = model(case.role("in", torch.float64)["image"])
    torch.testing.assert_close(
        logits, case.tensors["out.logits_f64_positions"], rtol=1e-9, atol=1e-11
    )
