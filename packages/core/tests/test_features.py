import pytest
import torch

from isoattn.core.features import FEATURES
from isoattn.core.ops.reference.direct import PHI


@pytest.mark.parametrize("name", FEATURES)
def test_map_and_slope(name):
    x = torch.linspace(-30.0, 30.0, 1001, dtype=torch.float64).requires_grad_()
    feature = FEATURES[name]
    phi = feature.phi(x)
    torch.testing.assert_close(phi, PHI[name](x), rtol=1e-14, atol=0.0)
    assert (phi >= 0).all()
    (slope,) = torch.autograd.grad(phi.sum(), x)
    torch.testing.assert_close(feature.slope(phi), slope, rtol=1e-12, atol=1e-13)


def test_elu1_is_positive_where_elu_plus_one_is_zero():
    x = torch.tensor([-100.0, -20.0])
    assert (FEATURES["elu1"].phi(x) > 0).all()
    assert not (torch.nn.functional.elu(x) + 1).any()


def test_every_map_has_an_oracle():
    assert set(FEATURES) == set(PHI)
