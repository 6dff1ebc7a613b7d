"""Sinkhorn with dustbins: marginals, masked equals cropped, gradients, the prefilter."""

import pytest
import torch

from isoattn.matching.models.optimal_transport import log_optimal_transport, match_log_confidence


def scores(batch, n, m, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, n, m, generator=generator, dtype=torch.float64) * 2


ONE = torch.tensor(1.0, dtype=torch.float64)


def test_masses_after_many_iterations():
    found = log_optimal_transport(scores(2, 7, 5), ONE, 200).exp()
    rows = torch.tensor([1.0] * 7 + [5.0], dtype=torch.float64)
    columns = torch.tensor([1.0] * 5 + [7.0], dtype=torch.float64)
    torch.testing.assert_close(found.sum(2), rows.expand(2, -1))
    torch.testing.assert_close(found.sum(1), columns.expand(2, -1))


def test_columns_hold_their_mass_after_every_iteration():
    found = log_optimal_transport(scores(1, 4, 6), ONE, 1).exp()
    torch.testing.assert_close(found.sum(1)[0, :-1], torch.ones(6, dtype=torch.float64))


@pytest.mark.parametrize("iterations", [1, 3])
def test_masked_equals_cropped(iterations):
    s = scores(1, 8, 9)
    mask0 = torch.tensor([[True, False, True, True, True, False, True, True]])
    mask1 = torch.tensor([[False, True, True, True, False, True, True, True, True]])
    got = log_optimal_transport(s, ONE, iterations, mask0, mask1)[0]
    want = log_optimal_transport(s[:, mask0[0]][:, :, mask1[0]], ONE, iterations)[0]
    rows = torch.cat([mask0[0], torch.tensor([True])])
    columns = torch.cat([mask1[0], torch.tensor([True])])
    torch.testing.assert_close(got[rows][:, columns], want)
    assert (got[~rows] == -torch.inf).all() and (got[:, ~columns] == -torch.inf).all()


@pytest.mark.parametrize("empty", ["neither", "0", "1", "both"])
def test_gradients_are_finite_where_cells_are_masked(empty):
    s = scores(2, 5, 4).requires_grad_()
    z = ONE.clone().requires_grad_()
    mask0 = torch.tensor([[True, False, True, True, True]] * 2)
    mask1 = torch.tensor([[True, True, False, True]] * 2)
    mask0[0] &= empty not in ("0", "both")
    mask1[0] &= empty not in ("1", "both")
    found = log_optimal_transport(s, z, 3, mask0, mask1)
    inner = match_log_confidence(found, prefilter=False)
    inner[mask0[:, :, None] & mask1[:, None, :]].sum().backward()
    assert s.grad.isfinite().all() and z.grad.isfinite()
    assert not s.grad[~(mask0[:, :, None] & mask1[:, None, :])].any()


def test_gradcheck():
    s, z = scores(1, 3, 4).requires_grad_(), ONE.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: log_optimal_transport(a, b, 2), (s, z))


def test_prefilter_takes_out_what_goes_to_the_dustbin():
    s = scores(1, 6, 6)
    s[0, 0], s[0, :, 1] = -9.0, -9.0
    found = log_optimal_transport(s, ONE, 3)
    kept = match_log_confidence(found, prefilter=True)[0]
    assert (kept[0] == -torch.inf).all() and (kept[:, 1] == -torch.inf).all()
    rest = kept > -torch.inf
    assert rest.any()
    assert torch.equal(kept[rest], match_log_confidence(found, prefilter=False)[0][rest])


def test_message():
    with pytest.raises(ValueError, match="Sinkhorn needs at least one iteration, got 0"):
        log_optimal_transport(scores(1, 2, 2), ONE, 0)
