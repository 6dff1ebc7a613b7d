"""Laws about building an attention and about what it refuses."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial

import torch

from isoattn.core.contract import UnsupportedAttention
from isoattn.core.registry import AttentionFactory
from isoattn.core.testing.suite import (
    LAWS,
    Draw,
    NotApplicableError,
    Sizes,
    attend,
    build,
    forms,
    law,
    mixing_matrix,
)


@law()
def signature(factory: AttentionFactory, sizes: Sizes) -> None:
    """Heads and head_dim come first and positional, all options are typed and keyword-only."""
    module = factory(3, 5)
    assert (module.heads, module.head_dim) == (3, 5), (
        f"factory(3, 5) has heads={module.heads}, head_dim={module.head_dim}"
    )
    parameters = list(inspect.signature(type(module)).parameters.values())
    first = [p.name for p in parameters[:2]]
    assert first == ["heads", "head_dim"], f"the first parameters are {first}"
    for option in parameters[2:]:
        assert option.kind is inspect.Parameter.KEYWORD_ONLY, f"{option} is not keyword-only"
        assert option.default is not inspect.Parameter.empty, f"{option} has no default"
        assert option.annotation is not inspect.Parameter.empty, f"{option} has no type"
    for bad in ((0, 5), (3, 0)):
        _raises(ValueError, partial(factory, *bad), f"sizes {bad}", "got")


@law()
def refusals(factory: AttentionFactory, sizes: Sizes) -> None:
    """Every form outside the capability raises UnsupportedAttention with the declared reason."""
    sizes = sizes.at_most(64)
    module, draw = build(factory, sizes), Draw()
    capability, name = module.capability, type(module).__name__
    q, k, v = draw.qkv(sizes)
    longer = draw.qkv(sizes, keys=sizes.tokens + 2)
    mask = draw.mask(sizes.batch, sizes.tokens)
    causal = forms(module)[0]
    calls: dict[str, Callable[[], object]] = {
        "causal": lambda: attend(module, q, k, v, causal=True),
        "bidirectional": lambda: attend(module, q, k, v, causal=False),
        "cross": lambda: attend(module, *longer, causal=causal),
        "key_mask": lambda: attend(module, q, k, v, key_mask=mask, causal=causal),
    }
    for form, call in calls.items():
        if getattr(capability, form):
            call()
        else:
            reason = module.unsupported.get(form, "")
            assert reason, f"no reason in {name}.unsupported for {form!r}"
            _raises(UnsupportedAttention, call, form, name, reason)
    if capability.mixes == "channels":
        _raises(
            UnsupportedAttention, lambda: mixing_matrix(module, q, k), "matrix", "channel_matrix"
        )


@law()
def bad_input(factory: AttentionFactory, sizes: Sizes) -> None:
    """Shapes and dtypes that do not fit raise ValueError naming them."""
    sizes = sizes.at_most(64)
    module, draw = build(factory, sizes), Draw()
    q, k, v = draw.qkv(sizes)
    causal = forms(module)[0]
    swapped = q.transpose(1, 2) if sizes.heads != sizes.tokens else q[:, :, :, :0]
    for what, args in {
        "three dimensions": (q[0], k, v),
        "token-major layout": (swapped, k, v),
        "keys of another length than values": (q, k[:, :, :0], v),
        "keys of another width": (q, torch.cat([k, k], -1), v),
        "no key head": (q, k[:, :0], v[:, :0]),
        "another batch": (q, torch.cat([k, k]), torch.cat([v, v])),
    }.items():
        _raises(ValueError, partial(attend, module, *args, causal=causal), what, "got")
    _raises(
        ValueError, lambda: attend(module, q.long(), k, v, causal=causal), "integers", "floating"
    )
    if module.capability.key_mask:
        for mask in (torch.ones(sizes.batch, sizes.tokens), torch.ones(1, 1, 1, dtype=torch.bool)):
            _raises(
                ValueError,
                partial(attend, module, q, k, v, key_mask=mask, causal=causal),
                "a mask that is not bool (batch, keys)",
                "key_mask must be bool",
            )


@law()
def swap(factory: AttentionFactory, sizes: Sizes) -> None:
    """Building and running leave torch's global generator, and so all other weights, alone."""
    sizes = sizes.at_most(64)
    torch.manual_seed(12)
    want = torch.nn.Linear(3, 3).weight
    torch.manual_seed(12)
    module = factory(sizes.heads, sizes.head_dim)
    q, k, v = Draw().qkv(sizes, dtype=torch.float32)
    attend(module, q, k, v, causal=forms(module)[0])
    got = torch.nn.Linear(3, 3).weight
    assert torch.equal(got, want), "weights drawn after the attention differ from those without it"


@law()
def state_dict(factory: AttentionFactory, sizes: Sizes) -> None:
    """Two evaluation runs agree, and a loaded copy is the original; loading is final."""
    sizes = sizes.at_most(64)
    module = build(factory, sizes)
    inputs, causal = Draw().qkv(sizes), forms(module)[0]
    want = attend(module, *inputs, causal=causal)
    assert torch.equal(attend(module, *inputs, causal=causal), want), "two evaluation runs differ"
    copy = factory(sizes.heads, sizes.head_dim).double().eval()
    copy.load_state_dict(module.state_dict())
    assert torch.equal(attend(copy, *inputs, causal=causal), want), "a loaded copy differs"


@law()
def weight_decay(factory: AttentionFactory, sizes: Sizes) -> None:
    """Every name in no_weight_decay is a parameter."""
    module = factory(sizes.heads, sizes.head_dim)
    if not module.no_weight_decay:
        raise NotApplicableError("no parameter is exempt from weight decay")
    unknown = module.no_weight_decay - {name for name, _ in module.named_parameters()}
    assert not unknown, f"no_weight_decay names {sorted(unknown)}, which are no parameters"


@law()
def deviations(factory: AttentionFactory, sizes: Sizes) -> None:
    """Every law that an option is said to break exists and is indeed broken, at 200 tokens."""
    declared = factory(sizes.heads, sizes.head_dim).deviations
    if not declared:
        raise NotApplicableError("it claims no exception")
    unknown = declared.keys() - (LAWS.keys() - {"deviations"})
    assert not unknown, f"deviations names {sorted(unknown)}, which are no laws to be broken"
    for name, reason in declared.items():
        assert reason, f"deviations gives no reason for {name!r}"
        try:
            LAWS[name].check(factory, Sizes(tokens=200))
        except NotApplicableError as error:
            raise AssertionError(f"{name!r} is no deviation: {error}") from None
        except Exception:  # broken, as declared
            continue
        raise AssertionError(f"{name!r} is named as a deviation but holds")


def _raises(kind: type[Exception], call: Callable[[], object], what: str, *words: str) -> None:
    try:
        call()
    except kind as error:
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"{what}: the message {str(error)!r} does not say {missing}"
    else:
        raise AssertionError(f"{what}: {kind.__name__} was not raised")
