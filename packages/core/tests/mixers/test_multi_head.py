"""MultiHead: swaps, cross-attention, shared key heads, gates, rotary positions, messages."""

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from isoattn.core import (
    Capability,
    CrossCovariance,
    Linear,
    MultiHead,
    Softmax,
    UnsupportedAttention,
    attentions,
)
from isoattn.core.attention.gated import GatedAttention
from isoattn.core.ops.rotary import ranks, rotate
from isoattn.core.testing.suite import Draw

OURS = {n: c for n, c in attentions().items() if c.__module__.startswith("isoattn.core.")}
GATED = {n: c for n, c in OURS.items() if issubclass(c, GatedAttention)}


class Decayed(GatedAttention):
    """S_t = a_t S_(t-1) + exp(i_t) k_t v_t^T, one token after the other."""

    capability = Capability(
        bidirectional=False,
        causal=True,
        state="constant",
        log_decay="channel",
        in_gate=True,
        normalised=False,
    )
    unsupported = {"bidirectional": "a decay has a direction"}

    def _recur(self, q, k, v, log_decay, in_gate, state, key_mask):
        total = v.new_zeros(*k.shape[:2], k.shape[3], v.shape[3]) if state is None else state["S"]
        outputs = []
        for t in range(k.shape[2]):
            new = (in_gate[:, :, t, None] + 0 * k[:, :, t]).exp() * k[:, :, t]
            new = log_decay[:, :, t, :, None].exp() * total + new[..., None] * v[:, :, t, None]
            keep = True if key_mask is None else key_mask[:, t, None, None, None]
            total = torch.where(torch.as_tensor(keep), new, total)
            outputs.append(q[:, :, t, None] @ total.repeat_interleave(self.heads // k.shape[1], 1))
        return torch.cat(outputs, 2), {"S": total}

    def cost(self, shape, *, causal=False):
        raise NotImplementedError


class HeadDecayed(Decayed):
    """One decay a head, no input gate."""

    capability = replace(Decayed.capability, log_decay="head", in_gate=False)

    def _recur(self, q, k, v, log_decay, in_gate, state, key_mask):
        wide, none = log_decay[..., None].expand_as(k), torch.zeros_like(log_decay)
        return super()._recur(q, k, v, wide, none, state, key_mask)


def shared_weights(module):
    own = ("attention.", "log_decay.", "in_gate.")
    return {n: x for n, x in module.state_dict().items() if not n.startswith(own)}


def test_a_swap_leaves_every_other_weight_bit_identical():
    def model(attention):
        torch.manual_seed(7)
        layers = [MultiHead(12, 3, attention) for _ in range(2)]
        return *layers, torch.nn.Linear(12, 12)

    with torch.random.fork_rng(devices=[]):
        first, second, head = model(Softmax)
        for attention in (*OURS.values(), Decayed, HeadDecayed):
            layers = model(attention)
            for got, want in zip(layers[:2], (first, second), strict=True):
                got, want = shared_weights(got), shared_weights(want)
                assert got.keys() == want.keys()
                assert all(torch.equal(got[name], want[name]) for name in want), attention
            assert torch.equal(layers[2].weight, head.weight), attention
        assert not torch.equal(first.query.weight, second.query.weight)


def test_gates_are_drawn_like_any_linear_map_and_differ_between_layers():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        one, two = (MultiHead(64, 4, Decayed) for _ in range(2))
    assert one.log_decay.weight.shape == (64, 64)
    assert one.in_gate.weight.shape == (4, 64)
    assert not torch.equal(one.log_decay.weight, two.log_decay.weight)
    assert not torch.equal(one.log_decay.weight[:4], one.in_gate.weight)
    for layer in (one.log_decay, one.in_gate):
        assert layer.weight.abs().max() <= 1 / 8
    assert one.log_decay.weight.std().item() == pytest.approx(1 / 8 / 3**0.5, rel=0.05)


def test_it_is_projections_around_the_attention():
    module = MultiHead(12, 4, "Softmax", head_dim=5, kv_heads=2).double()
    x = Draw().normal(2, 9, 12)
    q = module.query(x).view(2, 9, 4, 5).transpose(1, 2)
    k, v = (y.view(2, 9, 2, 5).transpose(1, 2) for y in module.key_value(x).chunk(2, -1))
    k, v = (y.repeat_interleave(2, 1) for y in (k, v))
    out = F.scaled_dot_product_attention(q, k, v)
    want = module.out(out.transpose(1, 2).reshape(2, 9, 20))
    torch.testing.assert_close(module(x), want)
    assert "kv_heads=2" in repr(module)


@pytest.mark.parametrize("name", [n for n, c in OURS.items() if c(3, 4).capability.cross])
def test_cross_attention(name):
    module = MultiHead(12, 3, name, context_dim=7, kv_heads=1).double().eval()
    x, context = Draw().normal(2, 9, 12), Draw(1).normal(2, 14, 7)
    mask, context_mask = Draw(2).mask(2, 9), torch.arange(14) < torch.tensor([[11], [14]])
    want = torch.cat([module(x[:1], context[:1, :11]), module(x[1:], context[1:])])
    want = want.masked_fill(~mask[:, :, None], 0.0)
    x[~mask], context[~context_mask] = float("nan"), float("nan")
    got = module(x, context, mask=mask, context_mask=context_mask)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


def test_out_norm_divides_each_head_by_its_root_mean_square():
    torch.manual_seed(0)
    layer = MultiHead(12, 3, "Linear", out_norm=True).double()
    plain = MultiHead(12, 3, "Linear").double()
    plain.load_state_dict(layer.state_dict())
    for part in (layer, plain):
        with torch.no_grad():
            part.out.weight.copy_(torch.eye(12))
            part.out.bias.zero_()
    x = Draw(0).normal(2, 9, 12)
    head = plain(x).unflatten(-1, (3, 4))
    want = head / (head.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(layer(x), want.flatten(2))


@pytest.mark.parametrize("name", [n for n, c in OURS.items() if c(3, 4).capability.cross])
def test_padded_queries_change_no_other_even_where_the_lengths_agree(name):
    # Nystrom pools queries too: it must not take the mask of the context for theirs
    torch.manual_seed(0)
    layer = MultiHead(12, 3, name).double().eval()
    x, context = Draw(0).normal(2, 90, 12), Draw(1).normal(2, 90, 12)
    mask = torch.arange(90) < 80
    context_mask = torch.arange(90) < 70
    out = layer(x, context, mask=mask.expand(2, -1), context_mask=context_mask.expand(2, -1))
    torch.testing.assert_close(out[:, :80], layer(x[:, :80], context[:, :70]))
    assert not out[:, 80:].any()


@pytest.mark.parametrize("cls", [Decayed, HeadDecayed])
@pytest.mark.parametrize("temperature", [16.0, 1.0])
def test_gates(cls, temperature):
    module = MultiHead(6, 2, cls, kv_heads=1, decay_temperature=temperature).double()
    x = Draw().normal(2, 8, 6)
    decay = F.logsigmoid(module.log_decay(x)) / temperature
    gates = {"log_decay": decay.view(2, 8, 1, -1).transpose(1, 2)}
    if cls is HeadDecayed:
        gates["log_decay"] = gates["log_decay"].squeeze(-1)
    else:
        gates["in_gate"] = module.in_gate(x).transpose(1, 2)
    q = module.query(x).view(2, 8, 2, 3).transpose(1, 2)
    k, v = (y.view(2, 8, 1, 3).transpose(1, 2) for y in module.key_value(x).chunk(2, -1))
    out = module.attention(q, k, v, causal=True, **gates)
    want = module.out(out.transpose(1, 2).reshape(2, 8, 6))
    torch.testing.assert_close(module(x, causal=True), want)

    grads = torch.autograd.grad(module(x, causal=True).square().sum(), list(module.parameters()))
    assert all(grad.abs().sum() > 0 for grad in grads)
    first, state = module.extend(x[:, :3])
    rest, _ = module.extend(x[:, 3:], state)
    torch.testing.assert_close(torch.cat([first, rest], 1), want)


@pytest.mark.parametrize("name", GATED)
def test_the_gates_of_the_package_reach_the_attention(name):
    module = MultiHead(12, 3, name).double()
    x = Draw().normal(1, 9, 12)
    before = module(x, causal=True)
    for gate in (module.log_decay, module.in_gate):
        if gate is not None:
            with torch.no_grad():
                gate.bias.sub_(2.0)
            after = module(x, causal=True)
            assert not torch.allclose(after, before)
            before = after


@pytest.mark.parametrize("causal", [False, True])
def test_packed_samples_give_what_they_give_alone(causal):
    module = MultiHead(12, 3, Softmax, rotary=True).double()
    lengths = (5, 1, 9)
    samples = [Draw(n).normal(1, n, 12) for n in lengths]
    ids = torch.repeat_interleave(torch.tensor([0, 2, 3]), torch.tensor(lengths))[None]
    got = module(torch.cat(samples, 1), segments=ids, causal=causal)
    want = torch.cat([module(sample, causal=causal) for sample in samples], 1)
    torch.testing.assert_close(got, want)


def test_rotary_makes_products_depend_on_distance_alone():
    q, k = Draw().normal(2, 1, 7)
    for layout in ("interleaved", "halves"):
        turn = partial(rotate, layout=layout)
        near = turn(q, torch.tensor([5])) @ turn(k, torch.tensor([3])).T
        far = turn(q, torch.tensor([905])) @ turn(k, torch.tensor([903])).T
        torch.testing.assert_close(near, far, rtol=1e-10, atol=1e-10)
        other = turn(q, torch.tensor([6])) @ turn(k, torch.tensor([3])).T
        assert (near - other).abs() > 1e-3


def test_rotary_of_some_channels_and_far_tokens():
    x = Draw().normal(3, 8)
    place = torch.tensor([0, 1, 100_000])
    some = rotate(x, place, channels=4)
    assert torch.equal(some[:, 4:], x[:, 4:])
    assert torch.equal(some[0], x[0])
    narrow = rotate(x.float(), place)
    torch.testing.assert_close(
        narrow.double(), rotate(x.float().double(), place), atol=1e-6, rtol=0
    )
    for channels in (3, 10, -2):
        with pytest.raises(ValueError, match=f"even number from 0 to the 8 of x, got {channels}"):
            rotate(x, place, channels=channels)


def test_ranks():
    keep = torch.tensor([[False, True, True, False, True, True]])
    assert ranks(keep)[keep].tolist() == [0, 1, 2, 3]
    assert ranks(keep, torch.tensor([[0, 0, 4, 4, 4, 5]]))[keep].tolist() == [0, 0, 1, 0]


@pytest.mark.parametrize(
    ("args", "options", "message"),
    [
        ((12, 5), {}, "heads must divide dim=12 unless head_dim is given, got heads=5"),
        ((12, 0), {}, "got heads=0"),
        ((12, 3), {"kv_heads": 2}, "kv_heads must divide heads=3, got kv_heads=2"),
        ((12, 3), {"head_dim": 0}, "got head_dim=0"),
        ((12, 3), {"context_dim": 0}, "context_dim=0"),
        ((12, 3), {"decay_temperature": 0.0}, "must be positive, got 0.0"),
        ((0, 3), {}, "dim >= 1, got dim=0"),
    ],
)
def test_messages_of_construction(args, options, message):
    with pytest.raises(ValueError, match=message):
        MultiHead(*args, Linear, **options)


def test_names_and_options_of_the_attention_are_checked():
    assert isinstance(MultiHead(8, 2, "Linear").attention, Linear)
    spec = {"class_path": "isoattn.core.Linear", "init_args": {"feature_map": "relu"}}
    assert MultiHead(8, 2, spec).attention.feature_map == "relu"
    assert isinstance(MultiHead(8, 2, lambda h, d: Softmax(h, d)).attention, Softmax)
    with pytest.raises(ValueError, match="Did you mean Softmax"):
        MultiHead(8, 2, "Sofmax")


def test_messages_of_calls():
    x = torch.randn(2, 5, 8)
    module = MultiHead(8, 2, Softmax)
    keep = torch.ones(2, 5, dtype=torch.bool)
    ids = torch.zeros(2, 5, dtype=torch.long)
    for message, call in {
        "context_mask without a context": lambda: module(x, context_mask=keep),
        "segments are for self-attention": lambda: module(x, x, segments=ids),
        r"segments must be integer ids .* got torch.int64 \(2, 4\)": lambda: module(
            x, segments=ids[:, :4]
        ),
        "context must be floating point .*, 8": lambda: module(x, x[:, :, :3]),
        "context_mask must be bool": lambda: module(x, x, context_mask=ids),
        "must share the batch": lambda: module(x, x[:1]),
        "built for a context of 3 channels; give the context": lambda: MultiHead(
            8, 2, Softmax, context_dim=3
        )(x),
    }.items():
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(UnsupportedAttention, match="CrossCovariance has no cross form: ."):
        MultiHead(8, 2, CrossCovariance)(x, x)  # as long as x, and still not the same tokens
    with pytest.raises(UnsupportedAttention, match="no common position. Use rotary=False"):
        MultiHead(8, 2, Softmax, rotary=True)(x, x)
