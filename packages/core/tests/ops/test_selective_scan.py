import pytest
import torch

from isoattn.core.ops.selective_scan import selective_scan
from isoattn.core.testing.suite import Draw, assert_close, leaves

BOTH = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])


def official(case):
    """Inputs of a case with gradients, and a call on them that cuts at the given tokens."""
    names = ("u", "delta", "A", "B", "C", "D", "delta_bias", "z")
    options = case.entry["options"]
    given = {n: case[f"in.{n}"].clone().requires_grad_() for n in names if f"in.{n}" in case.stored}

    def call(start, stop, state, block):
        u, delta = (given[n].transpose(1, 2)[:, start:stop] for n in ("u", "delta"))
        B, C = (given[n] if options["groups"] else given[n].unsqueeze(1) for n in "BC")
        B, C = (x.permute(0, 3, 1, 2)[:, start:stop] for x in (B, C))
        z = given["z"].transpose(1, 2)[:, start:stop] if options["z"] else None
        return selective_scan(
            u,
            delta,
            given["A"],
            B,
            C,
            given["D"],
            state,
            z_BNC=z,
            delta_bias_C=given.get("delta_bias"),
            softplus=options["delta_softplus"],
            block=block,
        )

    return given, call


@BOTH
@pytest.mark.parametrize("block", [1, 7, None])
@pytest.mark.parametrize("name", ["selective_scan", "selective_scan_groups"])
def test_official_scan(golden, name, block, dtype):
    case = golden(name, dtype)
    given, call = official(case)
    out, state = call(0, None, None, block)
    case.close(out.transpose(1, 2), "out.y")
    case.close(state, "out.last_state")
    wanted = ("u", "delta", "A", "B", "C")
    case.grads_close(out.transpose(1, 2), [given[n] for n in wanted], wanted)
    first, middle = call(0, 9, None, block)
    rest, last = call(9, None, middle, block)
    joined = torch.cat([first, rest], 1).transpose(1, 2)
    case.close(joined, "out.y")
    case.close(last, "out.last_state")
    case.grads_close(joined, [given[n] for n in wanted], wanted)
