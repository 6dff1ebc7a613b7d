import pytest
import torch
import torch.nn.functional as F

from isoattn.core.mixers import Mamba2, SelectiveSSM


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: SelectiveSSM(8, state_dim=0), "SelectiveSSM needs .*got state_dim=0"),
        (lambda: SelectiveSSM(8, block=0), "block of at least 1, got .*block=0"),
        (lambda: SelectiveSSM(8, dt_range=(0.0, 1.0)), "dt_range must be .*got"),
        (lambda: Mamba2(8), "divides expand . dim = 16 .*got head_dim=64"),
        (lambda: Mamba2(8, head_dim=8, groups=3), "groups that divide the heads; got .*groups=3"),
        (lambda: Mamba2(8, head_dim=8, decay_range=(2.0, 1.0)), "decay_range must be"),
        (lambda: Mamba2(8, head_dim=8, norm="layer"), "norm must be one of rms, none, got 'layer'"),
    ],
)
def test_options_are_checked(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_steps_begin_in_their_range():
    for bias in (SelectiveSSM(64).dt_proj.bias, Mamba2(64, head_dim=2).dt_bias):
        step = F.softplus(bias)
        assert step.min() >= 1e-3 * 0.99
        assert step.max() <= 0.1 * 1.01


def test_parameters_have_the_names_of_published_weights():
    shapes = {name: tuple(x.shape) for name, x in SelectiveSSM(32).state_dict().items()}
    assert shapes == {
        "A_log": (64, 16),
        "D": (64,),
        "in_proj.weight": (128, 32),
        "conv1d.weight": (64, 1, 4),
        "conv1d.bias": (64,),
        "x_proj.weight": (34, 64),
        "dt_proj.weight": (64, 2),
        "dt_proj.bias": (64,),
        "out_proj.weight": (32, 64),
    }
    shapes = {name: tuple(x.shape) for name, x in Mamba2(32, state_dim=8).state_dict().items()}
    assert shapes == {
        "dt_bias": (1,),
        "A_log": (1,),
        "D": (1,),
        "in_proj.weight": (145, 32),
        "conv1d.weight": (80, 1, 4),
        "conv1d.bias": (80,),
        "norm.weight": (64,),
        "out_proj.weight": (32, 64),
    }


def test_a_mask_in_the_middle_is_a_deletion():
    x = torch.randn(1, 20, 16, dtype=torch.float64)
    mask = torch.rand(1, 20) < 0.6
    for mixer in (SelectiveSSM(16), Mamba2(16, head_dim=8, state_dim=4)):
        mixer = mixer.double()
        got = mixer(x, mask=mask, causal=True)[mask]
        torch.testing.assert_close(got, mixer(x[mask][None], causal=True)[0])
