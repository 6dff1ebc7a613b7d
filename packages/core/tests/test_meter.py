"""The meter against dense float64 computation of everything it says."""

import json
import math

import pytest
import torch
from torch import nn

from isoattn.core import (
    Attention,
    Capability,
    CosineSoftmax,
    Cost,
    CrossCovariance,
    Identity,
    Linear,
    Mean,
    Softmax,
    UnsupportedAttention,
    Zero,
    attentions,
)
from isoattn.core.attention.gated import GatedAttention
from isoattn.core.meter import measure, record
from isoattn.core.streams import Stream, draw
from isoattn.core.testing.suite import gates, mixing_matrix

B, H, N, D = 3, 2, 29, 5


def tokens(kind="iid", *, batch=B, heads=H, n=N, dim=D, std=1.0, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    qkv = torch.randn(3, batch, heads, n, dim, generator=generator, dtype=torch.float64)
    if kind == "smooth":
        walk = qkv.cumsum(3)
        qkv = walk / walk.std(3, keepdim=True)
    return tuple((std * qkv).to(dtype))


def softmax_matrix(q, k, *, key_mask=None, causal=False):
    logits = q.double() @ k.double().transpose(-2, -1) * q.shape[-1] ** -0.5
    if key_mask is not None:
        logits = logits.masked_fill(~key_mask[:, None, None], -math.inf)
    if causal:
        upper = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
        logits = logits.masked_fill(upper, -math.inf)
    return logits.softmax(-1)


def dense(module, q, k, v, **form):
    """Every quantity from whole matrices, all rows of all samples."""
    s = softmax_matrix(q, k, **form)
    a = module.matrix(q, k, **form)
    seen = (s > 0).double()
    exact, mean = s @ v, seen / seen.sum(-1, keepdim=True) @ v
    ours = module(q, k, v, **form)
    entropy = -(a * a.clamp(min=1e-300).log()).sum(-1)
    rank = [
        (sum(m.square().sum() ** 2 for m in a[:, h]))
        / sum((m @ m.T).square().sum() for m in a[:, h])
        for h in range(a.shape[1])
    ]
    error, baseline = (x - exact for x in (ours, mean))
    return {
        "output_error": (error.norm() / exact.norm()).item(),
        "mean_error": (baseline.norm() / exact.norm()).item(),
        "skill": (1 - error.square().sum() / baseline.square().sum()).item(),
        "kl": (s * (s.clamp(min=1e-300) / a.clamp(min=1e-300)).log()).sum(-1).mean().item(),
        "entropy": entropy.mean().item(),
        "effective_keys": entropy.exp().mean().item(),
        "negative_mass": 0.0,
        "row_sum": a.sum(-1).mean().item(),
        "top1": (a.argmax(-1) == s.argmax(-1)).double().mean().item(),
        "effective_rank": torch.stack(rank).mean().item(),
    }


@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("kind", ["iid", "smooth"])
@pytest.mark.parametrize("build", [Linear, CosineSoftmax])
def test_all_queries_equal_the_dense_computation(build, kind, causal):
    q, k, v = tokens(kind)
    module = build(H, D).double()
    reading = measure(module, q, k, v, causal=causal, queries=B * N)
    assert (reading.batch, reading.heads, reading.queries, reading.keys) == (B, H, N, N)
    assert reading.rows == B * N
    for name, want in dense(module, q, k, v, causal=causal).items():
        got = reading.quantities()[name]
        assert got.value == pytest.approx(want, rel=1e-9, abs=1e-9), name
        assert got.error == 0, name


@pytest.mark.parametrize("kind", ["iid", "smooth"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["f64", "f32"])
def test_softmax_has_skill_1_and_mean_pooling_0(kind, dtype):
    q, k, v = tokens(kind, dtype=dtype)
    bound = 1e-12 if dtype == torch.float64 else 1e-5
    for path in ("fused", "math"):
        softmax = measure(Softmax(H, D, path=path), q, k, v)
        assert softmax.output_error.value <= bound
        assert softmax.skill.value == pytest.approx(1.0, abs=bound)
        assert softmax.kl.value <= bound
        assert softmax.top1.value == 1.0
        assert softmax.effective_rank.value == pytest.approx(softmax.softmax_effective_rank.value)
    mean = measure(Mean(H, D), q, k, v)
    assert mean.skill.value == pytest.approx(0.0, abs=bound)
    assert mean.output_error.value == pytest.approx(mean.mean_error.value)
    assert mean.effective_rank.value == pytest.approx(1.0)
    assert mean.effective_keys.value == pytest.approx(N, rel=1e-5)
    assert mean.top1.value == pytest.approx(1 / N)  # every key ties


def test_the_controls_are_told_apart():
    q, k, v = tokens()
    identity = measure(Identity(H, D), q, k, v, queries=B * N)
    assert identity.effective_rank.value == pytest.approx(N)
    assert identity.entropy.value == 0
    assert identity.kl.value == math.inf
    assert identity.kl.estimator == "infinite: a key that softmax weighs has weight 0"
    zero = measure(Zero(H, D), q, k, v)
    assert zero.output_error.value == pytest.approx(1.0)
    assert zero.entropy.estimator == "undefined: 100% of the rows have no weight"
    assert not zero.entropy.defined and not zero.effective_rank.defined
    json.dumps([identity.as_dict(), zero.as_dict()], allow_nan=False)
    assert identity.as_dict()["kl"]["value"] == "inf"
    assert zero.as_dict()["kl"]["value"] is None


def test_what_mixes_channels_says_what_is_undefined():
    q, k, v = tokens()
    reading = measure(CrossCovariance(H, D).double(), q, k, v)
    assert reading.skill.defined and reading.softmax_effective_rank.defined
    for name in ("kl", "top1", "negative_mass", "row_sum", "entropy", "effective_rank"):
        quantity = reading.quantities()[name]
        assert not quantity.defined
        assert quantity.estimator == "undefined: it mixes channels, so it has no matrix over tokens"


@pytest.mark.parametrize("causal", [False, True])
def test_masks_leave_out_pads_and_equal_the_sample_alone(causal):
    q, k, v = tokens(batch=2)
    keep = torch.ones(2, N, dtype=torch.bool)
    keep[1, 17:] = False
    for x in (q, k, v):
        x[1, :, 17:] = math.nan
    masked = measure(Linear(H, D), q, k, v, key_mask=keep, causal=causal, queries=2 * N)
    assert masked.rows == N + 17
    alone = [
        measure(Linear(H, D), *(x[b : b + 1, :, :n] for x in (q, k, v)), causal=causal, queries=N)
        for b, n in ((0, N), (1, 17))
    ]
    total = (N * alone[0].entropy.value + 17 * alone[1].entropy.value) / (N + 17)
    assert masked.entropy.value == pytest.approx(total)
    assert masked.row_sum.value == pytest.approx(1.0)


def test_cross_form_key_groups_and_segments():
    q, k, v = tokens(heads=4)
    module = Linear(4, D)
    shared = measure(module, q[:, :, :7], k[:, ::2], v[:, ::2], queries=21)
    spread = (x[:, ::2].repeat_interleave(2, 1) for x in (k, v))
    wide = measure(module, q[:, :, :7], *spread, queries=21)
    for name, quantity in shared.quantities().items():
        assert quantity.value == pytest.approx(wide.quantities()[name].value), name
    ids = (torch.arange(N) >= 11).long().expand(B, N)
    parts = measure(module, q, k, v, segments=ids, queries=B * N)
    assert parts.mean_error.value < 1
    first = measure(module, *(x[:, :, :11] for x in (q, k, v)), queries=B * N)
    second = measure(module, *(x[:, :, 11:] for x in (q, k, v)), queries=B * N)
    want = (11 * first.kl.value + 18 * second.kl.value) / N
    assert parts.kl.value == pytest.approx(want)


@pytest.mark.parametrize(
    "cls", [c for c in attentions().values() if c.__module__.startswith("isoattn.core.")]
)
def test_every_attention_can_be_measured(cls):
    # row sums are of rows taken from gradients, the matrix is taken from outputs
    module = cls(H, D).double().eval()
    q, k, v = tokens()
    causal = not module.capability.bidirectional
    given = gates(module, k)
    reading = measure(module, q, k, v, causal=causal, queries=B * N, **given)
    assert reading.output_error.value >= 0
    if module.capability.mixes != "channels":
        matrix = mixing_matrix(module, q, k, causal=causal)
        sums = matrix.sum(-1).mean().item()
        assert reading.row_sum.value == pytest.approx(sums, rel=1e-6, abs=1e-6)


class Decayed(GatedAttention):
    """o_i = sum_(j <= i) exp(G_i - G_j) (q_i.k_j) v_j, as a sum over whole matrices."""

    capability = Capability(bidirectional=False, causal=True, log_decay="head", normalised=False)

    def _recur(self, q, k, v, log_decay, in_gate, state, key_mask):
        total = log_decay.cumsum(-1)
        weights = (q @ k.transpose(-2, -1)) * (total.unsqueeze(-1) - total.unsqueeze(-2)).exp()
        return weights.tril() @ v, {}

    def cost(self, shape, *, causal=False):
        return Cost(0, 0, 0, 0)


def test_gates_are_measured_with():
    q, k, v = tokens()
    module = Decayed(H, D)
    decay = -torch.rand(B, H, N, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    reading = measure(module, q, k, v, causal=True, log_decay=decay, queries=B * N)
    matrix = module.matrix(q, k, causal=True, log_decay=decay)
    assert reading.row_sum.value == pytest.approx(matrix.sum(-1).mean().item())
    negative = (-matrix.clamp(max=0)).sum(-1) / matrix.abs().sum(-1)
    assert reading.negative_mass.value == pytest.approx(negative.mean().item())
    assert "of the rows have negative weights" in reading.entropy.estimator
    with pytest.raises(ValueError, match="Linear takes no log_decay"):
        measure(Linear(H, D), q, k, v, log_decay=decay)
    with pytest.raises(UnsupportedAttention, match="bidirectional"):
        measure(module, q, k, v, log_decay=decay)


class Weighed(Attention):
    """Mean pooling with given weights of the keys, of the queries that are tokens."""

    capability = Capability(cross=True)

    def forward(self, q, k, v, *, key_mask=None, causal=False, weights=None, query_mask=None):
        total = (weights[:, None, :, None] * v).sum(2, keepdim=True) / weights.sum(1)[0]
        return total.expand(-1, -1, q.shape[2], -1) + 0 * q.masked_fill(
            ~query_mask[:, None, :, None], 0
        ).sum((2, 3), keepdim=True)

    _attend = None

    def cost(self, shape, *, causal=False):
        return Cost(0, 0, 0, 0)


def test_what_else_an_attention_takes():
    q, k, v = tokens()
    weights = torch.arange(1.0, N + 1, dtype=torch.float64).expand(B, N)
    real = torch.arange(7).expand(B, 7) < 5
    q = q[:, :, :7].masked_fill(~real[:, None, :, None], math.nan)
    model = nn.ModuleDict({"core": Weighed(H, D)})
    with record(model, queries=64) as readings:
        model["core"](q, k, v, weights=weights, query_mask=real)
    reading = readings["core"]
    assert reading.rows == B * 5
    p = weights[0] / weights[0].sum()
    assert reading.entropy.value == pytest.approx(-(p * p.log()).sum().item())


def test_errors_cover_the_truth():
    # 40 choices of queries: about 95 % of the values lie within two standard errors.
    q, k, v = tokens("smooth", batch=2, n=200)
    module = Linear(H, D)
    truth = measure(module, q, k, v, queries=400).quantities()
    names = ("skill", "output_error", "kl", "entropy", "effective_rank", "softmax_effective_rank")
    hits = dict.fromkeys(names, 0)
    for seed in range(40):
        found = measure(module, q, k, v, queries=40, seed=seed).quantities()
        for name in names:
            assert found[name].error > 0
            distance = abs(found[name].value - truth[name].value)
            hits[name] += distance <= 2 * found[name].error
    assert min(hits.values()) >= 30, hits


def test_errors_of_chosen_samples_cover_the_truth():
    q, k, v = tokens(batch=24, n=30)
    q = q * torch.linspace(0.2, 3, 24, dtype=torch.float64)[:, None, None, None]
    module = Linear(H, D)
    truth = measure(module, q, k, v, queries=24 * 240).quantities()
    assert truth["entropy"].error == 0
    hits = dict.fromkeys(("kl", "softmax_entropy", "effective_rank"), 0)
    for seed in range(40):
        found = measure(module, q, k, v, queries=64, seed=seed).quantities()
        for name in hits:
            distance = abs(found[name].value - truth[name].value)
            hits[name] += distance <= 2.4 * found[name].error  # few samples: wider tails
    assert min(hits.values()) >= 30, hits


class Noisy(Attention):
    """Softmax with noise on the keys: draws of its own in training, and torch's as well."""

    capability = Capability(stochastic=True)

    def __init__(self, heads, head_dim):
        super().__init__(heads, head_dim)
        self.stream = Stream(3)
        self.scale = nn.Parameter(torch.ones(()))

    def _attend(self, q, k, v, key_mask, causal):
        if self.training:
            k = k + draw(self.stream.advance(), k.shape, dtype=k.dtype) + torch.randn(1)
        return (self.scale * q @ k.transpose(-2, -1)).softmax(-1) @ v

    def cost(self, shape, *, causal=False):
        return Cost(0, 0, 0, 0)


@pytest.mark.parametrize("training", [False, True])
def test_nothing_of_the_callers_changes(training):
    q, k, v = (x.requires_grad_() for x in tokens())
    module = Noisy(H, D).double().train(training)
    before = {n: x.clone() for n, x in module.state_dict().items()}
    versions = [x._version for x in (q, k, v, *module.buffers())]
    generator = torch.get_rng_state()
    reading = measure(module, q, k, v)
    assert reading.row_sum.value == pytest.approx(1.0)  # rows and output are of one draw
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(x, before[n]) for n, x in module.state_dict().items())
    assert [x._version for x in (q, k, v, *module.buffers())] == versions
    assert module.training == training
    assert all(x.grad is None for x in (q, k, v, module.scale))
    assert measure(module, q, k, v) == reading


def test_what_does_not_fit_is_named():
    q, k, v = tokens()
    with pytest.raises(ValueError, match="queries must be at least 2, got 1"):
        measure(Linear(H, D), q, k, v, queries=1)
    with pytest.raises(ValueError, match="no query that sees a key: .* 0 are not masked"):
        measure(Linear(H, D), q, k, v, key_mask=torch.zeros(B, N, dtype=torch.bool))
    with pytest.raises(ValueError, match="has heads=2, head_dim=5 and takes"):
        measure(Linear(H, D), q[..., :3], k, v)


class Block(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.qkv = nn.Linear(H * D, 3 * H * D)
        self.core = attention

    def forward(self, x):
        qkv = self.qkv(x).view(*x.shape[:2], 3, H, D).permute(2, 0, 3, 1, 4)
        return x + self.core(*qkv).transpose(1, 2).reshape(x.shape)


def test_recording_a_model_in_training():
    model = nn.Sequential(Block(Linear(H, D)), Block(Noisy(H, D)))
    model.append(model[0])
    x = torch.randn(4, N, H * D, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    plain = model(x)
    plain.sum().backward()
    grads = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model[1].core.stream.count.zero_()
    torch.manual_seed(0)
    with record(model, queries=16) as readings:
        out = model(x)
    out.sum().backward()
    assert torch.equal(out, plain)
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), grads, strict=True))
    assert list(readings) == ["0.core", "1.core", "0.core#2"]
    assert all(r.rows == 16 and r.batch == 4 for r in readings.values())
    model(x)
    assert len(readings) == 3  # the hooks are gone


def test_recording_in_inference_mode_and_in_half_precision():
    model = nn.Sequential(Block(Linear(H, D)), Block(Softmax(H, D))).eval()
    with torch.inference_mode(), record(model) as readings:
        model(torch.randn(2, N, H * D))
    assert readings["1.core"].output_error.value < 1e-5
    with torch.autocast("cpu", torch.bfloat16), record(model) as half:
        model(torch.randn(2, N, H * D))
    assert 1e-5 < half["1.core"].output_error.value < 0.05


def test_many_tokens_hold_no_matrix(monkeypatch):
    n, largest = 4096, 0
    q, k, v = tokens(batch=1, heads=1, n=n, dim=8, dtype=torch.float32)

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            for x in out if isinstance(out, (tuple, list)) else [out]:
                if isinstance(x, torch.Tensor):
                    largest = max(largest, x.numel())
            return out

    with Watch():
        measure(Linear(1, 8), q, k, v, queries=16)
        measure(Softmax(1, 8), q, k, v, queries=16)
    assert largest <= 32 * n
