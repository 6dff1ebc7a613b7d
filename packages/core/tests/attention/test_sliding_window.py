"""SlidingWindow: official numbers, laws in windows smaller than the sequence, and its options."""

from functools import partial

import pytest
import torch
from torch.nn.functional import linear

from isoattn.core import SlidingWindow, Softmax
from isoattn.core.ops.window import window_table
from isoattn.core.testing import LAWS, NotApplicableError, Sizes
from isoattn.core.testing.suite import Draw

BOTH = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
SMALL = {
    "window": partial(SlidingWindow, window=5, block=4),
    "global": partial(SlidingWindow, window=6, global_tokens=5, block=4),
}


@pytest.mark.parametrize(
    "name", [n for n, law in LAWS.items() if not (law.slow or "derivatives" in n)]
)
@pytest.mark.parametrize("factory", SMALL.values(), ids=SMALL)
def test_laws_in_a_small_window(factory, name):
    try:
        LAWS[name](factory, Sizes())
    except NotApplicableError as reason:
        assert str(reason)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n, law in LAWS.items() if law.slow or "derivatives" in n])
@pytest.mark.parametrize("factory", SMALL.values(), ids=SMALL)
def test_slow_laws_in_a_small_window(factory, name):
    LAWS[name](factory, Sizes())


def heads_of(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def longformer(case, suffix=""):
    x, heads = case["in.x"], case.entry["options"]["heads"]
    return [
        heads_of(linear(x, case[f"w.{n}{suffix}.weight"], case[f"w.{n}{suffix}.bias"]), heads)
        for n in ("query", "key", "value")
    ]


@BOTH
def test_longformer_window(golden, dtype):
    case = golden("longformer_window_only", dtype)
    q, k, v = longformer(case)
    window = case.entry["options"]["attention_window"]
    for block in (3, 4, 64):
        module = SlidingWindow(q.shape[1], q.shape[3], window=window, block=block)
        case.close(module(q, k, v).transpose(1, 2).flatten(2), "out.y")


@BOTH
def test_longformer_global_tokens(golden, dtype):
    # Its global tokens stand anywhere, have weights of their own and differ in number. Copies of
    # them go first, where ours are, and the originals are masked as keys.
    case = golden("longformer_window_global", dtype)
    is_global, kept = case.stored["in.is_global"], ~case.stored["in.is_masked"]
    many = int(is_global.sum(1).max())
    order = is_global.int().argsort(dim=1, descending=True, stable=True)[:, :many]
    real = is_global.gather(1, order)
    mask = torch.cat([real, kept & ~is_global], 1)
    outs = []
    for suffix in ("", "_global"):
        q, k, v = longformer(case, suffix)
        index = order[:, None, :, None].expand(-1, q.shape[1], -1, q.shape[3])
        module = SlidingWindow(
            q.shape[1], q.shape[3], window=case.entry["options"]["attention_window"],
            global_tokens=many, block=4,
        )  # fmt: skip
        out = module(*(torch.cat([x.gather(2, index), x], 2) for x in (q, k, v)), key_mask=mask)
        outs.append(out.transpose(1, 2).flatten(2))
    local, shared = outs
    rows = torch.where(real[..., None], shared[:, :many], 0.0)
    y = local[:, many:].masked_fill(is_global[..., None], 0.0)
    y = y.scatter_add(1, order[..., None].expand(rows.shape), rows)
    case.close(y.masked_fill(~kept[..., None], 0.0), "out.y")


def rotated(x):
    """Rotary embedding of the first half of the dimensions, half-split, angles in float32."""
    half = x.shape[-1] // 4
    frequency = 10_000 ** -(torch.arange(half, dtype=torch.float32) / half)
    angle = torch.arange(x.shape[2], dtype=torch.float32)[:, None] * frequency
    first, second, rest = x.split([half, half, 2 * half], -1)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], -1)


@BOTH
def test_griffin_local_attention(golden, dtype):
    case = golden("griffin_local_mqa", dtype)
    x, options = case["in.x"].clone().requires_grad_(), case.entry["options"]
    q, k, v = (
        heads_of(linear(x, case[f"w.proj_{n}.weight"]), heads)
        for n, heads in (("q", options["heads"]), ("k", 1), ("v", 1))
    )
    q, k = rotated(q), rotated(k)
    module = SlidingWindow(options["heads"], q.shape[3], window=options["window_size"], block=3)
    out = module(q, k, v, causal=True).transpose(1, 2).flatten(2)
    y = linear(out, case["w.proj_final.weight"], case["w.proj_final.bias"])
    case.close(y, "out.y")
    case.grads_close(y, [x], "x")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("groups", [1, 3])
def test_a_window_over_everything_is_softmax(causal, masked, groups):
    draw = Draw()
    q, k, v = draw.qkv(Sizes(3, 8, 50), groups=groups, dtype=torch.float32)
    mask = draw.mask(2, 50) if masked else None
    window = 49 if causal else 98
    got = SlidingWindow(3, 8, window=window)(q, k, v, causal=causal, key_mask=mask)
    assert torch.equal(got, Softmax(3, 8)(q, k, v, causal=causal, key_mask=mask))
    less = SlidingWindow(3, 8, window=window - 2)(q, k, v, causal=causal, key_mask=mask)
    assert not torch.equal(got, less)


def test_a_window_of_nothing_sees_itself():
    q, k, v = Draw().qkv(Sizes(2, 4, 21))
    for causal in (False, True):
        torch.testing.assert_close(
            SlidingWindow(2, 4, window=0, block=4)(q, k, v, causal=causal), v
        )


def test_the_window_includes_its_ends():
    q, k, _ = Draw().qkv(Sizes(1, 4, 30))
    i, j = torch.arange(30)[:, None], torch.arange(30)
    seen = SlidingWindow(1, 4, window=6, block=7).matrix(q, k)[0, 0] > 0
    assert torch.equal(seen, (i - j).abs() <= 3)
    seen = SlidingWindow(1, 4, window=6, block=7).matrix(q, k, causal=True)[0, 0] > 0
    assert torch.equal(seen, (i >= j) & (i - j <= 6))
    odd = SlidingWindow(1, 4, window=7, block=7).matrix(q, k)[0, 0] > 0
    assert torch.equal(odd, (i - j).abs() <= 3)


def test_tables_list_each_block_once():
    for tokens, window, first, block, causal in (
        (100, 16, 0, 4, False),
        (101, 17, 9, 4, True),
        (64, 30, 20, 3, False),
    ):
        table = window_table(tokens, window, first, block, causal, torch.device("cpu"))[0, 0]
        for row in table.tolist():
            listed = [block for block in row if block >= 0]
            assert len(listed) == len(set(listed))
            assert max(listed) < -(-tokens // block)


def test_the_state_is_a_buffer_of_the_window():
    module = SlidingWindow(2, 4, window=6, global_tokens=2)
    q, k, v = Draw().qkv(Sizes(2, 4, 40))
    _, state = module.extend(q, k, v)
    assert {name: tuple(x.shape) for name, x in state.items()} == {
        "count": (2,), "seen": (2, 8), "k": (2, 2, 8, 4), "v": (2, 2, 8, 4)
    }  # fmt: skip
    assert torch.equal(state["k"], torch.cat([k[:, :, :2], k[:, :, -6:]], 2))
    assert state["count"].tolist() == [40, 40]
    out, same = module.extend(*(x[:, :, :0] for x in (q, k, v)), state)
    assert out.shape == (2, 2, 0, 4)
    assert all(torch.equal(same[name], x) for name, x in state.items())


@pytest.mark.parametrize(
    "options", [{"window": -1}, {"global_tokens": -2}, {"block": 0}], ids=lambda o: next(iter(o))
)
def test_refuses_impossible_sizes(options):
    (name, value), = options.items()  # fmt: skip
    with pytest.raises(ValueError, match=f"window >= 0.*got.*{name}={value}"):
        SlidingWindow(2, 4, **options)


def test_says_what_it_is():
    module = SlidingWindow(2, 4, window=6, global_tokens=2)
    assert "window=6, global_tokens=2, block=64" in repr(module)
    assert module.capability.positions == "index"
    assert SlidingWindow(2, 4).capability.positions == "distance"
