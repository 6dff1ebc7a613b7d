"""TransMIL: equal to its description at every size, any attention, and where cls looks."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isoattn.core import (
    CosineSoftmax,
    CrossCovariance,
    Favor,
    Identity,
    Linear,
    Mean,
    Nystrom,
    Retention,
    SlidingWindow,
    Softmax,
    StateSpaceDual,
    UnsupportedAttention,
    Zero,
    swap_attention,
)
from isoattn.wsi.models import RELEASED, TransMIL
from isoattn.wsi.models.transmil import repeats

NYSTROM = partial(Nystrom, landmarks=8, compat="nystrom-attention")
ARMS = {
    "released": NYSTROM,
    "without pads": partial(Nystrom, landmarks=8),
    "softmax": Softmax,
    "cosine": CosineSoftmax,
    "linear": Linear,
    "favor": Favor,
    "window": partial(SlidingWindow, window=5),
    "mean": Mean,
    "identity": Identity,
    "zero": Zero,
}
TOKEN_MIXERS = pytest.mark.parametrize("attention", ARMS.values(), ids=ARMS)


def build(attention=NYSTROM, *, in_dim=6, classes=3, dim=16, heads=2, seed=0, **options):
    torch.manual_seed(seed)
    return TransMIL(attention, in_dim, classes, dim=dim, heads=heads, **options).double().eval()


def bag(n, in_dim=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, in_dim, generator=generator, dtype=torch.float64)


def cells(n, seed=0, side=9):
    generator = torch.Generator().manual_seed(seed)
    place = torch.randperm(side * side, generator=generator)[:n].sort().values
    return torch.stack([place % side, place // side], 1)


# nystrom-attention#5: rows must belong to their tokens at every length against m
@pytest.mark.parametrize("n", [1, 2, 3, 5, 7, 10, 48, 50, 63, 64, 65])
@pytest.mark.parametrize("mask_pads", [False, True])
def test_equal_to_the_description(n, mask_pads, oracle):
    model = build(mask_pads=mask_pads)
    want = oracle(model.state_dict(), 2, 8, mask_pads=mask_pads)
    with torch.no_grad():
        x = bag(n)
        torch.testing.assert_close(model(x[None])[0], want.logits(x), rtol=1e-9, atol=1e-11)


def test_equal_to_the_description_at_257_tiles_and_256_landmarks(oracle):
    model = build(RELEASED)
    want = oracle(model.state_dict(), 2, 256)
    with torch.no_grad():
        x = bag(257)
        torch.testing.assert_close(model(x[None])[0], want.logits(x), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("n", [2, 3, 50])
def test_float32_is_near(n, oracle):
    model = build()
    want = oracle(model.state_dict(), 2, 8)
    with torch.no_grad():
        x = bag(n)
        got = model.float()(x[None].float())[0]
        torch.testing.assert_close(got.double(), want.logits(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("n", "again", "zeros"), [(1, 0, 254), (1000, 24, 255), (8800, 36, 123)])
def test_padding_of_the_examples(n, again, zeros):
    assert repeats(n) == again
    assert -(1 + n + again) % 256 == zeros


@given(st.integers(1, 10**6))
def test_repeats_fill_a_square_and_are_fewer_than_the_tiles(n):
    side = round((n + repeats(n)) ** 0.5)
    assert side * side == n + repeats(n)
    assert (side - 1) ** 2 < n
    assert repeats(n) <= n


def test_parameters_and_their_names_do_not_depend_on_the_attention():
    one, other = build(NYSTROM), build(Softmax)
    for (name, a), (also, b) in zip(one.state_dict().items(), other.state_dict().items(), strict=1):
        assert name == also and torch.equal(a, b)


@pytest.mark.parametrize("switch", [{"value_conv": False}, {"ppeg": "off"}, {"mask_pads": True}])
def test_switches_leave_all_other_weights_as_they_are(switch):
    one, other = build().state_dict(), build(**switch).state_dict()
    assert set(other) <= set(one)
    assert all(torch.equal(one[name], x) for name, x in other.items())


def test_building_does_not_depend_on_draws_of_the_attention():
    build(Favor)
    after = torch.rand(())
    build(Mean)
    assert torch.equal(torch.rand(()), after)


@TOKEN_MIXERS
@pytest.mark.parametrize("n", [1, 30])
def test_class_row_is_the_first_row_of_the_matrix(attention, n):
    model = build(attention)
    x = model.states(bag(n)[None], None, 1)
    layer = model.layers[1]
    with torch.no_grad():
        (row,), (pads,) = layer.class_row(x)
        q, k, _ = layer._project(layer.norm(x))
        want = layer.core.matrix(q, k)[0, :, 0]
    torch.testing.assert_close(row, want, rtol=1e-9, atol=1e-12)
    assert pads.shape == (2,)


@TOKEN_MIXERS
@pytest.mark.parametrize("n", [1, 2, 30, 64])
def test_tiles_get_exactly_n_weights(attention, n):
    model = build(attention)
    rows = model.class_rows(bag(n), cells(n))
    weights = model.cls_attention(bag(n))
    assert rows.tiles.shape == (2, n) and weights.shape == (n,)
    twice = torch.arange(n) < repeats(n)  # a tile in two places has the mean of both weights
    torch.testing.assert_close(weights, rows.tiles.mean(0) / (1 + twice.double()))
    whole = rows.tiles.sum(1) + rows.itself + rows.pads
    with torch.no_grad():
        (row,), (pads,) = model.layers[1].class_row(model.states(bag(n)[None], None, 1))
    torch.testing.assert_close(whole, row.sum(1) + pads)
    if attention in (Softmax, CosineSoftmax, Linear, Mean):
        torch.testing.assert_close(whole, torch.ones_like(whole))


# TransMIL#2: two paddings, where is cls, and which value belongs to which tile?
@pytest.mark.parametrize("n", [10, 50, 64])
@pytest.mark.parametrize("mask_pads", [False, True])
def test_heat_map_against_the_dense_matrix(n, mask_pads, oracle):
    model = build(mask_pads=mask_pads)
    want = oracle(model.state_dict(), 2, 8, mask_pads=mask_pads)
    with torch.no_grad():
        a = want.attend(want.before_last(bag(n)), 1)[1][:, 0]
    zeros = a.shape[1] - 1 - n - repeats(n)
    tiles = a[:, zeros + 1 : zeros + 1 + n].clone()
    tiles[:, : repeats(n)] += a[:, zeros + 1 + n :]
    rows = model.class_rows(bag(n))
    torch.testing.assert_close(rows.tiles, tiles, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(rows.itself, a[:, zeros], rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(rows.repeated, a[:, zeros + 1 + n :].sum(1), rtol=1e-8, atol=1e-10)
    if mask_pads:
        assert not rows.pads.any()
    else:
        torch.testing.assert_close(rows.pads, a[:, :zeros].sum(1), rtol=1e-8, atol=1e-10)


def test_the_heat_map_shows_the_tile_that_cls_looks_for():
    model = build(partial(Nystrom, landmarks=400), value_conv=False)
    n, wanted = 500, 7  # 29 tiles are repeated, the wanted one among them
    with torch.no_grad():
        layer = model.layers[1]
        layer.qkv.weight[:32] = 2 * torch.eye(16).repeat(2, 1)  # q.k is large where tokens agree
        states = model.states(bag(n)[None], None, 1)
        states[:, 1 + wanted] = states[:, 1 + n + wanted] = states[:, 0]
        model.states = lambda *_: states
    rows = model.class_rows(bag(n))
    assert int(rows.tiles.mean(0).argmax()) == wanted
    (row,), _ = layer.class_row(states)
    strongest = row.mean(0).topk(3).indices.tolist()
    assert set(strongest) == {0, 1 + wanted, 1 + n + wanted}


# zihou98/BCL#7: only the row of cls, never N x N numbers
@pytest.mark.parametrize("attention", [RELEASED, Softmax, Linear], ids=["nystrom", "soft", "lin"])
def test_attention_of_20000_tiles_holds_no_square(attention):
    model = build(attention).float()
    x = bag(20_000).float()
    largest = _Largest()
    with largest, torch.no_grad():
        tokens = model.tokens(x[None])
        layer = model.layers[1]
        (row,), _ = layer.class_row(tokens)
    assert row.shape == (2, 1 + 20_000 + repeats(20_000))
    assert largest.numbers <= 2 * 256 * tokens.shape[1]


class _Largest(torch.utils._python_dispatch.TorchDispatchMode):
    """The largest tensor that any operator made."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(x, torch.Tensor):
                self.numbers = max(self.numbers, x.numel())
        return out


@TOKEN_MIXERS
def test_asking_for_one_query_changes_nothing(attention):
    one, all_ = build(attention, cls_only=True), build(attention)
    x = bag(40)[None].requires_grad_()
    y = bag(40)[None].requires_grad_()
    a, b = one(x), all_(y)
    torch.testing.assert_close(a, b)
    a.square().sum().backward(), b.square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    torch.testing.assert_close(one.layers[1].qkv.weight.grad, all_.layers[1].qkv.weight.grad)


def test_the_last_layer_makes_the_class_token_that_it_makes_of_all_tokens():
    model = build()
    for n in (1, 5, 40):
        x = model.states(bag(n)[None], None, 1)
        layer = model.layers[1]
        torch.testing.assert_close(layer.class_token(x, one_query=False), layer(x)[:, :1])


def test_the_convolution_of_the_values_is_a_switch_of_its_own():
    on, off = build(Zero), build(Zero, value_conv=False)
    x = bag(20)[None]
    assert not torch.allclose(on(x), off(x))
    with torch.no_grad():
        for layer in on.layers:
            layer.value_conv.weight.zero_()
    torch.testing.assert_close(on(x), off(x))


def test_order_counts_with_local_convolutions_only():
    turn = torch.randperm(30, generator=torch.Generator().manual_seed(3))
    x, at = bag(30), cells(30)
    free = build(Softmax, value_conv=False, ppeg="off")
    torch.testing.assert_close(free(x[None]), free(x[turn][None]))
    placed = build(Softmax, value_conv=False, ppeg="coords")
    torch.testing.assert_close(placed(x[None], at[None]), placed(x[turn][None], at[turn][None]))
    released = build(Softmax)
    assert not torch.allclose(released(x[None]), released(x[turn][None]))


def test_coords_on_a_full_square_are_the_square():
    at = torch.stack(torch.meshgrid(torch.arange(6), torch.arange(6), indexing="ij"), -1)
    at = at.flatten(0, 1).flip(1)  # column, row; row by row
    square, placed = build(), build(ppeg="coords")
    x = bag(36)[None]
    torch.testing.assert_close(placed(x, at[None] + 11), square(x))


def test_bags_of_one_size_can_be_a_batch():
    x = torch.stack([bag(20, seed=s) for s in range(3)])
    model = build(Softmax)
    torch.testing.assert_close(model(x), torch.cat([model(one[None]) for one in x]))


@settings(max_examples=15, deadline=None)
@given(n=st.integers(1, 40), depth=st.integers(2, 3), seed=st.integers(0, 5))
def test_any_size_gives_finite_logits_and_gradients(n, depth, seed):
    model = build(depth=depth, seed=seed)
    x = bag(n, seed=seed)[None].requires_grad_()
    out = model(x)
    out.sum().backward()
    assert out.isfinite().all() and x.grad.isfinite().all()
    assert len(model.cls_attention(x[0].detach())) == n


def test_dropout_is_on_the_outputs_alone():
    model = build(dropout=0.5).train()
    torch.manual_seed(1)
    one = model(bag(9)[None])
    torch.manual_seed(1)
    assert torch.equal(one, model(bag(9)[None]))
    assert not torch.equal(one, model(bag(9)[None]))
    before = torch.get_rng_state()
    model.cls_attention(bag(9))
    assert torch.equal(torch.get_rng_state(), before) and model.training


def test_half_precision_features_are_taken():
    model = build().float()
    x = bag(9).half()
    torch.testing.assert_close(model(x[None]), model(x.float()[None]))


@pytest.mark.parametrize("norm", ["layer", "standard"])
def test_input_norms_undo_scale_and_offset(norm):
    model = build(norm=norm)
    x = bag(50)
    if norm == "standard":
        assert model.needs_moments
        with pytest.raises(ValueError, match="moments are not known"):
            model(x[None])
        model.set_moments(x.mean(0), x.std(0, correction=0))
        assert not model.needs_moments
        want = model(x[None])
        model.set_moments(1e-3 * x.mean(0) + 5, 1e-3 * x.std(0, correction=0))
        torch.testing.assert_close(model(1e-3 * x[None] + 5), want)
    else:
        torch.testing.assert_close(model(x[None]), model(100 * x[None] + 7), rtol=1e-4, atol=1e-5)


def test_swapping_keeps_everything_else():
    model = build()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    report = swap_attention(model, Linear)
    assert report.layers == ["layers.0", "layers.1"]
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_a_channel_mixer_classifies_but_has_no_heat_map():
    model = build(CrossCovariance)
    assert model(bag(12)[None]).isfinite().all()
    with pytest.raises(UnsupportedAttention, match="CrossCovariance mixes channels"):
        model.cls_attention(bag(12))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: build(ppeg="round"), ValueError, "ppeg must be one of square, coords, off"),
        (lambda: build(depth=1), ValueError, "depth must be 2 or more, or 1 with ppeg='off'"),
        (lambda: build(heads=3), ValueError, "heads must divide dim=16, got heads=3"),
        (lambda: build(norm="batch"), ValueError, "norm must be one of none, layer, standard"),
        (lambda: build(classes=0), ValueError, "TransMIL needs num_classes >= 1, got 0"),
        (lambda: build(Retention), UnsupportedAttention, "Retention lets no token see those after"),
        (lambda: build(StateSpaceDual), UnsupportedAttention, "needs gates, which TransMIL does"),
        (lambda: build()(bag(5, 7)[None]), ValueError, r"\(bags, tiles, 6\), got \(1, 5, 7\)"),
        (lambda: build()(bag(0)[None]), ValueError, "the bag has no tiles"),
        (lambda: build(ppeg="coords")(bag(5)[None]), ValueError, "needs the places of the tiles"),
        (
            lambda: build(ppeg="coords")(bag(5)[None], cells(4)[None]),
            ValueError,
            r"cells are \(bags, tiles, 2\)",
        ),
        (lambda: build().set_moments(bag(1)[0], bag(1)[0]), ValueError, "build it with 'standard'"),
        (
            lambda: build(norm="standard").set_moments(bag(1, 4)[0], bag(1)[0]),
            ValueError,
            r"mean of the features must be 6 finite numbers, got \(4,\)",
        ),
        (lambda: build().class_rows(bag(5), layer=2), IndexError, "index 2 is out of range"),
    ],
)
def test_messages(call, error, words):
    with pytest.raises(error, match=words):
        call()
