import pytest
import torch
import torch.nn.functional as F

from isoattn.core.ops.state_space_dual import state_space_dual

BOTH = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])


@BOTH
@pytest.mark.parametrize("chunk", [1, 8, 64, None])
def test_official_mamba2_parameters(golden, chunk, dtype):
    case = golden("ssd_mamba2_param", dtype)

    def call(start, stop, state):
        x, dt, B, C = (case[f"in.{n}"][:, start:stop] for n in ("x", "dt", "B", "C"))
        weights = case["w.A_log"], B, C, case["w.D"], state
        return state_space_dual(x, dt, *weights, dt_bias_H=case["w.dt_bias"], chunk=chunk)

    y, state = call(0, None, None)
    case.close(y, "out.y")
    case.close(y * F.silu(case["in.z"]), "out.y_gated")
    case.close(state.transpose(2, 3), "out.final_state")
    first, middle = call(0, 11, None)
    rest, last = call(11, None, middle)
    case.close(torch.cat([first, rest], 1), "out.y")
    case.close(last.transpose(2, 3), "out.final_state")


def test_shapes_that_do_not_fit_are_named():
    x, dt, weight = torch.randn(2, 5, 4, 3), torch.randn(2, 5, 4), torch.randn(2, 5, 3, 6)
    with pytest.raises(ValueError, match=r"groups that divide the heads; got x \(2, 5, 4, 3\)"):
        state_space_dual(x, dt, torch.zeros(4), weight, weight)
    with pytest.raises(ValueError, match=r"dt \(batch, tokens, heads\).*dt \(2, 5\)"):
        state_space_dual(x, dt[..., 0], torch.zeros(4), weight[:, :, :2], weight[:, :, :2])
