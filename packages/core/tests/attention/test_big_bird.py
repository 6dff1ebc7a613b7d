"""BigBird: official numbers, laws in many small blocks, its draws and its options."""

from functools import partial

import pytest
import torch
from torch.nn.functional import linear

from isoattn.core import BigBird, Softmax, seed_attentions
from isoattn.core.ops.big_bird import BITS, Layout, big_bird_table
from isoattn.core.ops.block_sparse import Blocks, block_sparse_attention
from isoattn.core.testing import LAWS, NotApplicableError, Sizes
from isoattn.core.testing.suite import Draw

BOTH = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
SMALL = {
    "blocks of 4": partial(BigBird, window=12, block=4, global_tokens=4, random_blocks=2),
    "both ends": partial(
        BigBird, window=9, block=3, global_tokens=6, random_blocks=1, global_ends="both"
    ),
    "random alone": partial(BigBird, window=2, block=2, global_tokens=0, random_blocks=3),
}


@pytest.mark.parametrize(
    "name", [n for n, law in LAWS.items() if not (law.slow or "derivatives" in n)]
)
@pytest.mark.parametrize("factory", SMALL.values(), ids=SMALL)
def test_laws_in_small_blocks(factory, name):
    try:
        LAWS[name](factory, Sizes())
    except NotApplicableError as reason:
        assert str(reason)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n, law in LAWS.items() if law.slow or "derivatives" in n])
@pytest.mark.parametrize("factory", SMALL.values(), ids=SMALL)
def test_slow_laws_in_small_blocks(factory, name):
    LAWS[name](factory, Sizes())


def projected(case):
    x, heads = case["in.x"], case.entry["options"]["heads"]
    return [
        linear(x, case[f"w.{n}.weight"], case[f"w.{n}.bias"])
        .unflatten(-1, (heads, -1))
        .transpose(1, 2)
        for n in ("query", "key", "value")
    ]


def released_table(case):
    """The released lists: first and last block, the neighbours, the random blocks."""
    options = case.entry["options"]
    heads, n, r = options["heads"], options["n_blocks"], options["num_random_blocks"]
    table = torch.full((1, heads, n, 5 + r), -1)
    for h in range(heads):
        for t in range(1, n - 1):
            listed = {0: 0, n - 1: 0}  # in order; a block is listed once by window and ends
            listed.update(dict.fromkeys((t - 1, t, t + 1), 0))
            row = [*listed, *case.stored["noise.random_blocks"][h, t - 1].tolist()]
            table[0, h, t, : len(row)] = torch.tensor(row)
    size = options["block_size"]
    rows = torch.tensor([*range(size), *range((n - 1) * size, n * size)])
    return table, rows[None], size


@BOTH
@pytest.mark.parametrize("name", ["bigbird_eval", "bigbird_train_random"])
def test_released_lists(golden, name, dtype):
    # A block listed twice counts twice, so the operator with the released lists is the released
    # layer; in evaluation its random blocks are all block 0.
    case = golden(name, dtype)
    q, k, v = projected(case)
    table, rows, size = released_table(case)
    mask = case.stored["in.attention_mask"] > 0
    out = block_sparse_attention(q, k, v, table, Blocks(size), key_mask=mask, rows_BR=rows)
    out = out.transpose(1, 2).flatten(2).masked_fill(~mask[..., None], 0.0)
    case.close(out, "out.y")


def draws_for(module, wanted_HTr, blocks):
    """The draws that give the wanted blocks, found from the rank of each among the free ones."""
    draws = torch.zeros_like(module.draws)
    layout = module._layout
    shared = {*range(layout.first), *range(blocks - layout.last, blocks)}
    for h, rows in enumerate(wanted_HTr.tolist()):
        for t, row in enumerate(rows, start=1):
            listed = shared | set(range(max(0, t - layout.side), min(blocks, t + layout.side + 1)))
            for slot, block in enumerate(row):
                free = [u for u in range(blocks) if u not in listed]
                draws[h, t, slot] = -(-free.index(block) * 2**BITS // len(free))
                listed.add(block)
    return draws


@BOTH
def test_released_training(golden, dtype):
    # In training nothing is listed twice, so our definition gives the released numbers. Of the
    # second sample it does not: the released last block is one of padding there.
    case = golden("bigbird_train_random", dtype)
    q, k, v = projected(case)
    options = case.entry["options"]
    size = options["block_size"]
    module = BigBird(
        options["heads"], q.shape[3], window=3 * size, global_tokens=size, global_ends="both",
        random_blocks=options["num_random_blocks"], block=size,
    )  # fmt: skip
    module.draws.copy_(draws_for(module, case.stored["noise.random_blocks"], options["n_blocks"]))
    out = module(q, k, v)[:1].transpose(1, 2).flatten(2)
    want = case.stored["out.y"][:1]
    bound = case.tolerance["atol"] + case.tolerance["rtol"] * want.abs()
    assert ((out.double() - want).abs() <= bound).all()


def test_released_evaluation_counts_block_0_twice(golden):
    case = golden("bigbird_eval", torch.float64)
    q, k, v = projected(case)
    table, rows, size = released_table(case)
    released = block_sparse_attention(q, k, v, table, Blocks(size), rows_BR=rows)
    module = BigBird(
        q.shape[1], q.shape[3], window=3 * size, global_tokens=size, global_ends="both",
        random_blocks=0, block=size,
    )  # fmt: skip
    ours = module(q, k, v)
    assert not torch.allclose(ours, released, atol=1e-3)
    # a key twice is its weight doubled: a row of ours, normalised with that, is the released one
    weights = module.matrix(q, k)
    inner = slice(size, -size)
    weights[:, :, inner, :size] *= 2.0
    weights = weights / weights.sum(-1, keepdim=True)
    torch.testing.assert_close(weights @ v, released, rtol=1e-10, atol=1e-12)


def test_enough_blocks_are_softmax():
    q, k, v = Draw().qkv(Sizes(3, 5, 40), groups=1)
    for options in ({"window": 76}, {"global_tokens": 40}, {"random_blocks": 9}):
        module = BigBird(3, 5, **{"window": 4, "global_tokens": 0, "block": 4, **options})
        torch.testing.assert_close(module(q, k, v), Softmax(3, 5)(q, k, v))


def test_lists_are_distinct_and_random_blocks_cover_all():
    draws = (torch.rand(2, 512, 3, generator=torch.Generator().manual_seed(0)) * 2**BITS).int()
    table, _ = big_bird_table(600, torch.tensor([600, 37, 2]), draws, Layout(1, 1, 2, 1))
    for count, rows in zip((600, 37, 2), table.flatten(1, 2).tolist(), strict=True):
        for row in rows:
            listed = [block for block in row if block >= 0]
            assert len(set(listed)) == len(listed)
            assert not listed or max(listed) < count
    chosen = table[0, 0, :, -3:].flatten()
    assert chosen.min() == 2
    counts = torch.bincount(chosen, minlength=600)[2:599]
    assert counts.max() <= 12  # 1,800 picks of 597 blocks


def test_draws_are_its_own():
    module, same, other = (BigBird(2, 4) for _ in range(3))
    other.reseed(5)
    assert torch.equal(module.draws, same.draws)
    assert not torch.equal(module.draws, other.draws)
    other.load_state_dict(module.state_dict())
    assert torch.equal(module.draws, other.draws)
    half = BigBird(2, 4).half()
    assert torch.equal(half.draws, module.draws)
    layers = torch.nn.ModuleList([module, same])
    seed_attentions(layers, 1)
    assert not torch.equal(module.draws, same.draws)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 64 * 2}, "odd number of blocks of 64 tokens, such as 64 or 192; got 128"),
        ({"window": 100}, "odd number of blocks.*got 100"),
        ({"window": 0}, "odd number of blocks.*got 0"),
        ({"global_tokens": 10}, "whole blocks of 64 tokens, such as 0 or 64; got 10"),
        ({"global_tokens": -64}, "whole blocks.*got -64"),
        ({"global_ends": "last"}, "must be 'first' or 'both', got 'last'"),
        ({"block": 0}, "block >= 1.*got block=0"),
        ({"random_blocks": -1}, "random_blocks >= 0, got block=64, random_blocks=-1"),
    ],
)
def test_refuses_impossible_sizes(options, message):
    with pytest.raises(ValueError, match=message):
        BigBird(2, 4, **options)


def test_says_what_it_is():
    text = repr(BigBird(2, 4, global_ends="both"))
    assert "window=192, global_tokens=64, global_ends='both', random_blocks=3, block=64" in text
