"""Multi-scale retention against torchscale's three forms."""

import pytest
import torch

from isoattn.core.mixers.retention_block import MultiScaleRetention


def loaded(case, dtype, **options):
    sizes = case.entry["options"]
    module = MultiScaleRetention(
        sizes["embed_dim"], sizes["heads"], value_dim=sizes["value_dim"], **options
    ).to(dtype)
    names = module.state_dict().keys()
    module.load_state_dict({name: case[f"w.{name}"] for name in names})
    return module


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
@pytest.mark.parametrize("chunk", [1, 8, 64, None])
def test_retnet(golden, chunk, dtype):
    case = golden("retnet_msr_layer", dtype)
    module = loaded(case, dtype, chunk=chunk, eps=case.entry["options"]["layernorm_eps"])
    x = case["in.x"]
    out = module(x, causal=True)
    case.close(out, "out.y_recurrent")
    state, steps = None, []
    for t in range(x.shape[1]):
        y, state = module.step(x[:, t], state)
        steps.append(y)
    case.close(torch.stack(steps, 1), "out.y_recurrent")
    # The other two differ by what the eps of the norm lets through, as the manifest found.
    for name in ("parallel", "chunkwise"):
        want = case[f"out.y_{name}"]
        bound = 2.0 * case.entry["checked"]["recurrent_vs_parallel"] * want.abs().max().clamp(min=1)
        assert (out.double() - want).abs().max() <= bound


def test_without_its_eps_the_norm_forgets_the_row_sums(golden):
    case = golden("retnet_msr_layer", torch.float64)
    almost, given = (loaded(case, torch.float64, eps=e) for e in (1e-14, 1e-6))
    x = case["in.x"]
    assert (almost(x, causal=True) - given(x, causal=True)).abs().max() > 1e-7


def test_sizes_are_checked():
    with pytest.raises(ValueError, match="2 \\* heads divides .*got dim=12, heads=4, value_dim=12"):
        MultiScaleRetention(12, 4)
    with pytest.raises(ValueError, match="value_dim that heads divides; got .*value_dim=5"):
        MultiScaleRetention(12, 2, value_dim=5)
    with pytest.raises(ValueError, match="eps must be positive, got 0"):
        MultiScaleRetention(12, 2, eps=0.0)
    with pytest.raises(ValueError, match="chunk must be at least 1 .*got 0"):
        MultiScaleRetention(12, 2, chunk=0)
