"""Laws that every mixer keeps, generated from what it declares.

Mixers are found from the classes. A new one needs an example or two in ``EXAMPLES``: a call without
arguments that builds it for ``DIM`` channels.
"""

import importlib
import inspect
import pkgutil
from functools import partial

import pytest
import torch

import isoattn.core.mixers
from isoattn.core import GatedAttentionUnit, MultiHead, UnsupportedAttention, attentions
from isoattn.core.mixers import RGLRU, S4D, Mamba2, Mixer, MultiScaleRetention, SelectiveSSM
from isoattn.core.testing import count_flops, saved_bytes
from isoattn.core.testing.suite import Draw, assert_close, leaves

DIM = 12

for found in pkgutil.iter_modules(isoattn.core.mixers.__path__, "isoattn.core.mixers."):
    importlib.import_module(found.name)

OURS = {n: c for n, c in attentions().items() if c.__module__.startswith("isoattn.core.")}

EXAMPLES = {
    "MultiHead": {
        "MultiHead-rotary": partial(MultiHead, DIM, 2, "Softmax", rotary=True, kv_heads=1),
        "MultiHead-wide": partial(MultiHead, DIM, 2, "Linear", head_dim=5, rotary=True),
        "MultiHead-normed": partial(MultiHead, DIM, 2, "MLSTM", out_norm=True),
        "MultiHead-bare": partial(MultiHead, DIM, 2, "Softmax", qkv_bias=False, out_bias=False),
        **{f"MultiHead-{name}": partial(MultiHead, DIM, 3, name) for name in OURS},
    },
    "GatedAttentionUnit": {
        "FLASH-placed": partial(
            GatedAttentionUnit, DIM, key_dim=5, chunk=16, rotary=True, relative_bias=True
        ),
        "GAU": partial(GatedAttentionUnit, DIM, key_dim=5),
        "GAU-placed": partial(
            GatedAttentionUnit, DIM, key_dim=5, rotary=True, relative_bias=True, bias=False
        ),
        "GAU-equation": partial(GatedAttentionUnit, DIM, key_dim=5, scaling="equation"),
        "FLASH": partial(GatedAttentionUnit, DIM, key_dim=5, chunk=8),
        "FLASH-equation": partial(
            GatedAttentionUnit, DIM, key_dim=4, chunk=3, scaling="equation", expansion=0.5
        ),
        "FLASH-one-token-chunks": partial(GatedAttentionUnit, DIM, key_dim=4, chunk=1),
        "FLASH-one-chunk": partial(GatedAttentionUnit, DIM, key_dim=5, chunk=200),
    },
    "SelectiveSSM": {
        "SelectiveSSM": partial(SelectiveSSM, DIM, state_dim=3),
        "SelectiveSSM-blocks": partial(SelectiveSSM, DIM, state_dim=2, block=7, conv_width=1),
    },
    "Mamba2": {
        "Mamba2": partial(Mamba2, DIM, head_dim=6, state_dim=5),
        "Mamba2-grouped": partial(Mamba2, DIM, head_dim=6, state_dim=3, groups=2, chunk=8),
        "Mamba2-bare": partial(
            Mamba2, DIM, head_dim=8, state_dim=3, norm="none", conv_width=1, chunk=None
        ),
    },
    "MultiScaleRetention": {
        "MultiScaleRetention": partial(MultiScaleRetention, DIM, 3),
        "MultiScaleRetention-wide": partial(MultiScaleRetention, DIM, 2, value_dim=6, chunk=8),
    },
    "RGLRU": {
        "RGLRU": partial(RGLRU, DIM),
        "RGLRU-blocks": partial(RGLRU, DIM, width=10, heads=5, conv_width=2),
    },
    "S4D": {
        "S4D": partial(S4D, DIM, state_dim=6),
        "S4D-both": partial(S4D, DIM, state_dim=4, bidirectional=True),
    },
}

FACTORIES = {name: factory for examples in EXAMPLES.values() for name, factory in examples.items()}
each = pytest.mark.parametrize("factory", FACTORIES.values(), ids=FACTORIES.keys())


# The first example of each class: a trace takes seconds, and the attentions have theirs elsewhere.
compiled = pytest.mark.parametrize("name", [next(iter(examples)) for examples in EXAMPLES.values()])


def mixers(base=Mixer):
    """Every concrete mixer of the package that is imported."""
    for cls in base.__subclasses__():
        if not inspect.isabstract(cls) and cls.__module__.startswith("isoattn.core."):
            yield cls
        yield from mixers(cls)


def build(factory, dtype=torch.float64):
    """In evaluation mode, its parameters moved off their initial values, zeros too.

    The same ones in whatever order tests run: of three thousand draws three have a normalised
    output so near zero that bfloat16 loses it.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = factory().to(dtype).eval()
    draw = Draw(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.2 * draw.normal(*parameter.shape, dtype=dtype))
    return module


def forms(module):
    capability = module.capability
    return [c for c in (False, True) if (capability.causal if c else capability.bidirectional)]


def tokens(count, batch=1, seed=0, dtype=torch.float64):
    return Draw(seed).normal(batch, count, DIM, dtype=dtype)


def gradients(module, out, x):
    """Of x and of every parameter, for a fixed random functional of the output."""
    weight = Draw(9).normal(*out.shape)
    return torch.autograd.grad((out * weight).sum(), [x, *module.parameters()])


def test_every_mixer_has_an_example():
    missing = sorted({cls.__name__ for cls in mixers()} - EXAMPLES.keys())
    assert not missing, f"add an example of {', '.join(missing)} to EXAMPLES in this file"
    for cls, examples in EXAMPLES.items():
        for name, factory in examples.items():
            module = factory()
            assert isinstance(module, Mixer), name
            assert type(module).__name__ == cls, name
            assert module.dim == DIM, f"{name} has dim={module.dim}, not DIM"


@each
@pytest.mark.parametrize("filler", [float("nan"), 1e30, -3.0], ids=["nan", "huge", "plain"])
def test_pads_have_no_influence_and_are_zero(factory, filler):
    module = build(factory)
    if not module.capability.key_mask:
        return
    samples = [tokens(n, seed=n) for n in (37, 18, 1)]
    sides = (False, True) if module.capability.positions != "index" else (False,)
    for causal in forms(module):
        for left in sides:
            x = torch.full((3, 41, DIM), filler, dtype=torch.float64)
            mask = torch.zeros(3, 41, dtype=torch.bool)
            for b, sample in enumerate(samples):
                n = sample.shape[1]
                row = slice(41 - n, 41) if left else slice(0, n)
                x[b, row], mask[b, row] = sample[0], True
            (x,) = leaves(x)
            out = module(x, mask=mask, causal=causal)
            assert torch.equal(out[~mask], torch.zeros_like(out[~mask])), "pads do not give 0"
            total = 0.0
            for b, sample in enumerate(samples):
                alone = module(sample, causal=causal)
                assert_close(out[b : b + 1, mask[b]], alone, 1e-9, f"{causal=} {left=} row {b}")
                total = total + (alone * Draw(b).normal(*alone.shape)).sum()
            padded = sum(
                (out[b : b + 1, mask[b]] * Draw(b).normal(1, int(mask[b].sum()), DIM)).sum()
                for b in range(3)
            )
            got, *grads = torch.autograd.grad(padded, [x, *module.parameters()])
            assert torch.equal(got[~mask], torch.zeros_like(got[~mask])), "a pad has a gradient"
            wanted = torch.autograd.grad(total, list(module.parameters()))
            for (name, _), a, b in zip(module.named_parameters(), grads, wanted, strict=True):
                assert_close(a, b, 1e-8, f"{causal=} {left=} gradient of {name}")


@each
def test_a_sample_without_any_token_is_zero(factory):
    module = build(factory)
    if not module.capability.key_mask:
        return
    for causal in forms(module):
        x = tokens(20, batch=2)
        x[0] = float("nan")
        mask = torch.ones(2, 20, dtype=torch.bool)
        mask[0] = False
        (x,) = leaves(x)
        out = module(x, mask=mask, causal=causal)
        assert not out[0].any()
        assert_close(out[1:], module(x[1:].detach(), causal=causal), 1e-9, f"{causal=}")
        for grad in gradients(module, out, x):
            assert grad.isfinite().all()


@each
def test_samples_do_not_see_each_other(factory):
    module = build(factory)
    x, y = tokens(29), 20.0 * tokens(29, seed=1)
    for causal in forms(module):
        both = module(torch.cat([x, y]), causal=causal)
        assert_close(both[:1], module(x, causal=causal), 1e-12, f"{causal=}")


@each
def test_the_future_has_no_gradient(factory):
    module = build(factory)
    if not module.capability.causal:
        return
    (x,) = leaves(tokens(70))
    out = module(x, causal=True)
    used = False
    for token in (0, 1, 5, 63, 64, 68):
        (grad,) = torch.autograd.grad(out[:, token].sum(), x, retain_graph=True)
        assert not grad[:, token + 1 :].any(), f"output {token} depends on a later token"
        used = used or bool(grad[:, :token].any())
    assert used or module.capability.mixes == "nothing" or _blind(module), "the past is not used"
    changed = torch.cat([x.detach()[:, :30], tokens(40, seed=5)], 1)
    assert_close(module(changed, causal=True)[:, :30], out[:, :30], 1e-12, "after new tokens")


def _blind(module):
    """The control that returns zero whatever it is given."""
    return isinstance(module, MultiHead) and type(module.attention).__name__ == "Zero"


def continues(module):
    """Whether there is a state; where not, asking for one must say why."""
    if module.capability.state == "none":
        with pytest.raises(UnsupportedAttention, match="no state to continue: ."):
            module.extend(tokens(3))
    return module.capability.state != "none"


@each
@pytest.mark.parametrize("masked", [False, True], ids=["all", "masked"])
def test_continued_from_the_state_it_is_the_whole(factory, masked):
    module = build(factory)
    if not continues(module):
        return
    n = 41
    (x,) = leaves(tokens(n, batch=2))
    mask = Draw().mask(2, n) if masked and module.capability.key_mask else None
    whole = module(x, mask=mask, causal=True)
    want = gradients(module, whole, x)
    for cuts in ((1,), (7,), (20,), (40,), (3, 3, 23), (16, 17, 33)):
        state, outputs, ends = None, [], [0, *cuts, n]
        for a, b in zip(ends[:-1], ends[1:], strict=True):
            kept = None if state is None else {k: v.detach().clone() for k, v in state.items()}
            given = state
            piece = None if mask is None else mask[:, a:b]
            out, state = module.extend(x[:, a:b], state, mask=piece)
            outputs.append(out)
            if kept is not None:
                assert given.keys() == kept.keys()
                assert all(torch.equal(given[k], kept[k]) for k in kept), "the state was changed"
        joined = torch.cat(outputs, 1)
        assert_close(joined, whole, 1e-10, f"cut at {cuts}")
        got = gradients(module, joined, x)
        for (name, _), a, b in zip(
            [("x", None), *module.named_parameters()], got, want, strict=True
        ):
            assert_close(a, b, 1e-9, f"cut at {cuts}: gradient of {name}")
    size = {name: value.shape for name, value in state.items()}
    assert all(value.shape[0] == 2 for value in state.values()), "batch is the first axis"
    if module.capability.state == "constant":
        _, state = module.extend(tokens(2 * n, batch=2))
        assert {name: value.shape for name, value in state.items()} == size


@each
def test_token_by_token_it_is_the_whole(factory):
    module = build(factory)
    if not continues(module):
        return
    x, state, outputs = tokens(41, batch=2), None, []
    for t in range(41):
        out, state = module.step(x[:, t], state)
        outputs.append(out)
    assert_close(torch.stack(outputs, 1), module(x, causal=True), 1e-10, "token by token")


@each
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_precision(factory, dtype):
    wide, narrow = build(factory), build(factory, dtype)
    narrow.load_state_dict(wide.state_dict())
    wide.load_state_dict(narrow.state_dict())  # the same rounded numbers
    bound = {torch.float32: 1e-4, torch.bfloat16: 0.2, torch.float16: 3e-2}[dtype]
    for causal in forms(wide):
        (x,) = leaves(tokens(50, batch=2).to(dtype))
        want, got = wide(x.double(), causal=causal), narrow(x, causal=causal)
        assert got.dtype == dtype
        error = (got.double() - want).abs().max() / want.abs().max().clamp(min=1e-6)
        assert error <= bound, f"{causal=}: relative error {error:.1e}"
        grads = torch.autograd.grad(got.float().square().mean(), [x, *narrow.parameters()])
        assert all(grad.isfinite().all() for grad in grads)


@each
def test_autocast(factory):
    module = build(factory, torch.float32)
    for causal in forms(module):
        x = tokens(50, batch=2, dtype=torch.float32)
        want = module(x, causal=causal)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got = module(x, causal=causal)
        error = (got.float() - want).abs().max() / want.abs().max().clamp(min=1e-6)
        assert error <= 0.2, f"{causal=}: relative error {error:.1e}"


@each
def test_a_loaded_copy_is_the_original(factory):
    module = build(factory)
    copy = factory().double().eval()
    copy.load_state_dict(module.state_dict())
    for causal in forms(module):
        want = module(tokens(23), causal=causal)
        assert torch.equal(module(tokens(23), causal=causal), want), "two evaluation runs differ"
        assert torch.equal(copy(tokens(23), causal=causal), want), "a loaded copy differs"


@each
def test_weights_follow_the_global_seed_and_running_leaves_it_alone(factory):
    # As with nn.Linear: the seed of the run decides the weights of the model.
    with torch.random.fork_rng(devices=[]):
        built = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            built.append(factory())
        one, same, other = (module.state_dict() for module in built)
        assert all(torch.equal(one[name], same[name]) for name in one)
        assert any(not torch.equal(one[name], other[name]) for name in one)
        module = built[0].train()
        before = torch.get_rng_state()
        for causal in forms(module):
            module(tokens(11, dtype=torch.float32), causal=causal)
        assert torch.equal(torch.get_rng_state(), before), "forward touched the global generator"


@each
def test_what_it_cannot_do_raises_with_the_reason(factory):
    module, x = build(factory), tokens(9, batch=2)
    mask = torch.ones(2, 9, dtype=torch.bool)
    calls = {
        "causal": lambda: module(x, causal=True),
        "bidirectional": lambda: module(x, causal=False),
        "key_mask": lambda: module(x, mask=mask, causal=forms(module)[0]),
    }
    for form, call in calls.items():
        if getattr(module.capability, form):
            call()
        else:
            reason = module.unsupported.get(form)
            assert reason, f"no reason in unsupported for {form!r}"
            with pytest.raises(UnsupportedAttention) as error:
                call()
            assert reason in str(error.value)


@each
def test_inputs_that_do_not_fit_are_named(factory):
    module = build(factory)
    causal, x = forms(module)[0], tokens(9, batch=2)
    for bad in (x[0], x[:, :, :-1], x.long()):
        with pytest.raises(ValueError, match=r"got .*\d"):
            module(bad, causal=causal)
    for mask in (torch.ones(2, 9), torch.ones(2, 8, dtype=torch.bool), torch.ones(1, dtype=bool)):
        with pytest.raises(ValueError, match="mask must be bool .*got"):
            module(x, mask=mask, causal=causal)


@each
def test_gradients(factory):
    module = build(factory)
    (x,) = leaves(tokens(5))
    for causal in forms(module):
        for grad in gradients(module, module(x, causal=causal), x):
            assert grad.isfinite().all()
        assert torch.autograd.gradcheck(partial(module, causal=causal), (x,), fast_mode=True)


COSTED = {
    **FACTORIES,
    "MultiHead-normed-rotary": partial(MultiHead, DIM, 2, "Softmax", rotary=True, out_norm=True),
    "MultiHead-one-head": partial(MultiHead, DIM, 1, "Softmax", rotary=True),
    "MultiHead-Math": partial(
        MultiHead, DIM, 2, {"class_path": "Softmax", "init_args": {"path": "math"}}
    ),
    "GAU-bare": partial(GatedAttentionUnit, DIM, key_dim=3, bias=False, scaling="equation"),
    "SelectiveSSM-ranked": partial(SelectiveSSM, DIM, dt_rank=3, bias=True, conv_bias=False),
}


@pytest.mark.parametrize("factory", COSTED.values(), ids=COSTED.keys())
def test_cost(factory):
    module = build(factory, torch.float32)
    shared = isinstance(module, MultiHead) and module.kv_heads != module.heads
    for batch, count in ((1, 1), (2, 37), (1, 70)):
        for causal in forms(module):
            (x,) = leaves(tokens(count, batch=batch, dtype=torch.float32))
            run = partial(module, x, causal=causal)
            said = module.cost(batch, count, causal=causal)
            counted = *count_flops(run), saved_bytes(run, exclude=module.parameters())
            what = f"{batch=} {count=} {causal=}"
            assert (said.forward_flops, said.backward_flops) == counted[:2], what
            assert said.saved_bytes == counted[2] or (shared and said.saved_bytes > counted[2]), (
                f"{what}: saved bytes said {said.saved_bytes:,}, counted {counted[2]:,}"
            )
            weights = sum(p.numel() for p in module.parameters())
            assert said.min_bytes == 4 * (2 * x.numel() + weights), what


@each
def test_the_state_has_the_declared_bytes(factory):
    module = build(factory, torch.float32)
    if module.capability.state == "none" or getattr(module, "kv_heads", 0) == 1:
        return
    for count in (1, 23):
        _, state = module.extend(tokens(count, batch=2, dtype=torch.float32))
        found = sum(x.numel() * x.element_size() for x in state.values())
        said = module.cost(2, count, causal=True).state_bytes
        assert said == found, f"after {count} tokens: said {said:,} bytes, found {found:,}"


@each
def test_a_cost_that_cannot_be_is_refused(factory):
    module = build(factory)
    for batch, count in ((0, 3), (3, 0)):
        with pytest.raises(ValueError, match="batch >= 1 and tokens >= 1, got batch="):
            module.cost(batch, count, causal=forms(module)[0])
    for causal in {False, True} - set(forms(module)):
        with pytest.raises(UnsupportedAttention, match="has no .* form: ."):
            module.cost(1, 3, causal=causal)


@each
def test_callers_tensors_are_left_alone(factory):
    module = build(factory)
    for causal in forms(module):
        (x,) = leaves(tokens(13, batch=2))
        kept = x.detach().clone()
        mask = Draw().mask(2, 13) if module.capability.key_mask else None
        given = None if mask is None else mask.clone()
        out = module(x, mask=mask, causal=causal)
        torch.autograd.backward(out.sum())
        with torch.no_grad():
            out.detach().add_(1.0)
        assert torch.equal(x, kept)
        assert mask is None or torch.equal(mask, given)


@compiled
@pytest.mark.slow
def test_the_compiler_takes_it_whole(name):
    module = build(FACTORIES[name])
    torch._dynamo.reset()
    program = torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager")
    for count, masked in ((35, True), (70, True)):
        for causal in forms(module):
            mask = Draw().mask(2, count) if masked and module.capability.key_mask else None
            (x,) = leaves(tokens(count, batch=2))
            want = module(x, mask=mask, causal=causal)
            got = program(x, mask=mask, causal=causal)
            assert_close(got, want, 1e-10, f"{count} tokens, {causal=}")
            for a, b in zip(gradients(module, got, x), gradients(module, want, x), strict=True):
                assert_close(a, b, 1e-9, f"{count} tokens, {causal=}: gradient")
