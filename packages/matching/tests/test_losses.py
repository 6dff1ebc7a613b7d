"""LoFTR's losses against its own numbers, and what they do where its code goes wrong."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from isoattn.matching.losses import CoarseLossOptions, coarse_loss, fine_loss
from isoattn.matching.supervision import Supervision

DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
EVERY = pytest.mark.parametrize(
    "options",
    [
        CoarseLossOptions(space, entries, pooling)
        for space in ("log", "clamped")
        for entries in ("dense", "sparse")
        for pooling in ("pair", "batch")
    ],
    ids=lambda o: f"{o.space}-{o.entries}-{o.pooling}",
)


def truth_of(dense: Tensor) -> Supervision:
    b, i, j = dense.bool().nonzero(as_tuple=True)
    batch, cells0, cells1 = dense.shape
    warped = torch.full((batch, cells0, 2), torch.nan)
    known = torch.ones(batch, dtype=torch.bool)
    return Supervision(b, i, j, warped, known, (1, cells0), (1, cells1))


def diagonal(batch: int, cells: int, matches: int) -> Supervision:
    dense = torch.zeros(batch, cells, cells)
    dense[:, range(matches), range(matches)] = 1
    return truth_of(dense)


def dual(logits: Tensor) -> Tensor:
    return logits.log_softmax(1) + logits.log_softmax(2)


def random_logits(batch: int, cells: int, seed: int = 0, scale: float = 3.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(batch, cells, cells, generator=generator)


@DTYPES
@pytest.mark.parametrize("entries", ["dense", "sparse"])
def test_released_coarse_loss(numbers, entries, dtype):
    case = numbers(f"loftr_loss_{entries}")
    data = case.inputs(dtype)
    confidence = data["conf"].requires_grad_()
    keep0 = keep1 = None
    if "weight" in data:
        keep0, keep1 = data["weight"].bool().any(2), data["weight"].bool().any(1)
    loss = coarse_loss(
        confidence.log(),
        truth_of(data["conf_gt"]),
        CoarseLossOptions("clamped", entries, "batch"),
        keep0_BL=keep0,
        keep1_BS=keep1,
    )
    loss.backward()
    case.check(loss, "out.loss_coarse", dtype)
    case.check(confidence.grad, "grad.conf", dtype)


@DTYPES
def test_released_fine_loss(numbers, dtype):
    case = numbers("loftr_loss_dense")
    data = case.inputs(dtype)
    expectation = data["expec_f"].requires_grad_()
    one_pair = torch.zeros(len(expectation), dtype=torch.int64)
    loss = fine_loss(expectation, data["expec_f_gt"], one_pair, 1, pooling="batch")
    loss.backward()
    case.check(loss, "out.loss_fine", dtype)
    case.check(expectation.grad, "grad.expec_f", dtype)
    # One pair alone is the same by pair.
    again = fine_loss(expectation, data["expec_f_gt"], one_pair, 1)
    case.check(again, "out.loss_fine", dtype)


def test_both_spaces_agree_where_nothing_is_clamped():
    log_confidence = dual(random_logits(2, 6, scale=1.0).double())
    for entries in ("dense", "sparse"):
        for pooling in ("pair", "batch"):
            losses = [
                coarse_loss(
                    log_confidence,
                    diagonal(2, 6, 4),
                    CoarseLossOptions(space, entries, pooling),
                )
                for space in ("log", "clamped")
            ]
            torch.testing.assert_close(losses[0], losses[1], rtol=1e-6, atol=0)


def test_a_match_of_hardly_any_confidence_is_learned_in_log_space_alone():
    # The released code gives 94-98 % of the matches no gradient at the start.
    for space, moves in (("log", True), ("clamped", False)):
        logits = torch.zeros(1, 4, 4)
        logits[0, 0, 1] = logits[0, 1, 0] = 40.0  # the match (0, 0) has a confidence of e-80
        logits.requires_grad_()
        truth = diagonal(1, 4, 1)
        coarse_loss(dual(logits), truth, CoarseLossOptions(space, "sparse")).backward()
        assert bool(logits.grad.abs().max() > 1e-3) == moves
        assert logits.grad.isfinite().all()


@EVERY
def test_a_pair_without_a_match_contributes_nothing(options):
    # M7, LoFTR#175
    logits = random_logits(3, 5).requires_grad_()
    dense = torch.zeros(3, 5, 5)
    dense[0, range(3), range(3)] = 1
    whole = coarse_loss(dual(logits), truth_of(dense), options)
    whole.backward()
    assert whole.isfinite() and logits.grad.isfinite().all()
    assert not logits.grad[1:].any() and logits.grad[0].any()
    if options.pooling == "pair":
        alone = coarse_loss(dual(logits[:1]), truth_of(dense[:1]), options)
        torch.testing.assert_close(whole, alone)
    nothing = torch.zeros(3, 5, 5)
    fresh = random_logits(3, 5).requires_grad_()
    loss = coarse_loss(dual(fresh), truth_of(nothing), options)
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert fresh.grad is not None and not fresh.grad.any()


def test_the_mean_is_by_pair():
    dense = torch.zeros(2, 6, 6)
    dense[0, range(6), range(6)] = 1
    dense[1, 0, 0] = 1
    log_confidence = dual(random_logits(2, 6))
    both = coarse_loss(log_confidence, truth_of(dense))
    single = [coarse_loss(log_confidence[k : k + 1], truth_of(dense[k : k + 1])) for k in (0, 1)]
    torch.testing.assert_close(both, (single[0] + single[1]) / 2)


@EVERY
def test_padding_is_in_no_mean(options):
    small, cells = random_logits(1, 4), 6
    padded = torch.full((1, cells, cells), -1e30)
    padded[:, :4, :4] = small
    keep = torch.zeros(1, cells, dtype=torch.bool)
    keep[:, :4] = True
    either = ~(keep[:, :, None] & keep[:, None, :])
    log_padded = dual(padded).masked_fill(either, -torch.inf).requires_grad_()
    small_truth, padded_truth = diagonal(1, 4, 3), diagonal(1, cells, 3)
    loss = coarse_loss(log_padded, padded_truth, options, keep0_BL=keep, keep1_BS=keep)
    loss.backward()
    assert log_padded.grad.isfinite().all() and not log_padded.grad[either].any()
    if options.pooling == "pair":
        torch.testing.assert_close(loss, coarse_loss(dual(small), small_truth, options))


def test_dustbins_take_the_cells_without_match():
    log_assignment = random_logits(2, 7).log_softmax(2)
    dense = torch.zeros(2, 6, 6)
    dense[0, 0, 1] = dense[0, 2, 2] = 1
    options = CoarseLossOptions(entries="sparse", pooling="batch")
    loss = coarse_loss(log_assignment, truth_of(dense), options)

    def focal(log_c: Tensor) -> Tensor:
        return -0.25 * (1 - log_c.exp()) ** 2 * log_c

    own = log_assignment[0]
    matches = focal(torch.stack([own[0, 1], own[2, 2]])).mean()
    lost = torch.cat([own[[1, 3, 4, 5], 6], own[6, [0, 3, 4, 5]]])
    torch.testing.assert_close(loss, matches + focal(lost).mean())
    # Without dustbins, or dense, they have no part in it.
    inner = coarse_loss(log_assignment[:, :6, :6], truth_of(dense), options)
    torch.testing.assert_close(inner, matches)
    dense_options = CoarseLossOptions(pooling="batch")
    torch.testing.assert_close(
        coarse_loss(log_assignment, truth_of(dense), dense_options),
        coarse_loss(log_assignment[:, :6, :6], truth_of(dense), dense_options),
    )


@EVERY
def test_gradients(options):
    logits = random_logits(2, 4, scale=0.7).double().requires_grad_()
    truth = diagonal(2, 4, 2)
    assert torch.autograd.gradcheck(lambda x: coarse_loss(dual(x), truth, options), (logits,))


@pytest.mark.parametrize("gamma", [0.0, 1.0, 2.5])
def test_other_exponents(gamma):
    logits = random_logits(1, 4, scale=50.0).requires_grad_()
    logits.data[0, 0, 0] = 500.0  # a confidence of exactly 1
    options = CoarseLossOptions(gamma=gamma)
    loss = coarse_loss(dual(logits), diagonal(1, 4, 2), options)
    loss.backward()
    assert loss.isfinite() and logits.grad.isfinite().all()


@given(seed=st.integers(0, 10_000), scale=st.sampled_from([0.0, 1.0, 30.0, 1e3, 1e6]))
@settings(deadline=None, max_examples=30)
def test_any_logits_give_finite_losses_and_gradients(seed, scale):
    for options in (CoarseLossOptions(), CoarseLossOptions("clamped", "sparse", "batch")):
        logits = random_logits(2, 5, seed, scale).requires_grad_()
        loss = coarse_loss(dual(logits), diagonal(2, 5, 3), options)
        loss.backward()
        assert loss.isfinite() and logits.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_single(dtype):
    log_confidence = dual(random_logits(2, 6)).to(dtype)
    loss = coarse_loss(log_confidence, diagonal(2, 6, 4))
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, coarse_loss(log_confidence.float(), diagonal(2, 6, 4)))


def test_fine_loss_leaves_out_what_the_window_does_not_hold():
    expectation = torch.tensor(
        [[0.5, 0.0, 1.0], [0.1, 0.1, 0.5], [0.0, 0.0, 2.0]], requires_grad=True
    )
    target = torch.tensor([[0.0, 0.0], [1.0, 0.0], [torch.nan, torch.nan]])
    pair = torch.tensor([0, 0, 1])
    loss = fine_loss(expectation, target, pair, 2)
    loss.backward()
    # 1 / std is 1 and 2, of mean 1.5, in the first pair; the second has nothing inside.
    assert float(loss.detach()) == pytest.approx(0.25 / 1.5)
    assert not expectation.grad[1:].any() and expectation.grad[0].tolist() == pytest.approx(
        [1.0 / 1.5, 0.0, 0.0]
    )


@pytest.mark.parametrize("pooling", ["pair", "batch"])
def test_fine_loss_of_nothing_is_zero(pooling):
    for count in (0, 2):
        expectation = torch.rand(count, 3, requires_grad=True)
        target = torch.full((count, 2), 5.0)
        loss = fine_loss(
            expectation, target, torch.zeros(count, dtype=torch.int64), 3, pooling=pooling
        )
        loss.backward()
        assert float(loss.detach()) == 0.0 and not expectation.grad.any()


def test_a_matrix_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"\(2, 5, 6\) do not fit the supervision: \(2, 5, 5\)"):
        coarse_loss(torch.zeros(2, 5, 6), diagonal(2, 5, 1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"space": "prob"}, "space must be one of log, clamped, got 'prob'"),
        ({"entries": "full"}, "entries must be one of dense, sparse, got 'full'"),
        ({"pooling": "mean"}, "pooling must be one of pair, batch, got 'mean'"),
        ({"alpha": 0.0}, "alpha must be above 0"),
        ({"gamma": -1.0}, "gamma 0, 1 or more, got 0.25 and -1.0"),
        ({"gamma": 0.5}, "gamma 0, 1 or more"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        CoarseLossOptions(**options)
