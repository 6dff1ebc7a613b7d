"""Laws, the sizes they run on, and how one attention is put through all of them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, Protocol, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from isoattn.core.contract import Attention, State
from isoattn.core.registry import AttentionFactory


class NotApplicableError(Exception):
    """A law does not concern this attention; the message says why."""


@dataclass(frozen=True)
class Sizes:
    """The sizes a law runs on. Each law caps what it cannot afford (an N x N oracle, a Jacobian).

    Args:
        heads: H.
        head_dim: D.
        tokens: N.
        batch: B.
    """

    heads: int = 3
    head_dim: int = 5
    tokens: int = 37
    batch: int = 2

    def __post_init__(self) -> None:
        if min(self.heads, self.head_dim, self.tokens, self.batch) < 1:
            raise ValueError(f"All sizes must be at least 1, got {self}")

    def at_most(self, tokens: int, batch: int = 2) -> Sizes:
        """The same with a bounded number of tokens and samples."""
        return replace(self, tokens=min(self.tokens, tokens), batch=min(self.batch, batch))


class LawFunction(Protocol):
    """A law raises AssertionError where it is broken."""

    def __call__(self, factory: AttentionFactory, sizes: Sizes, /) -> None:
        """Look at the attention that the factory builds."""


@dataclass(frozen=True)
class Law:
    """One law, callable as ``law(factory, sizes)``.

    Args:
        name: short name.
        statement: the first line of its docstring.
        check: raises AssertionError with what was seen, or :class:`NotApplicableError`.
        slow: takes longer than about a second; left out of a gate.
    """

    name: str
    statement: str
    check: LawFunction
    slow: bool = False

    def __call__(self, factory: AttentionFactory, sizes: Sizes) -> None:
        """Raise AssertionError if the attention breaks the law.

        A law named in ``Attention.deviations`` raises :class:`NotApplicableError` with the reason.
        Torch's global generator, its number of threads and its gradient mode come back as they
        were. One thread meanwhile: with tensors this small, more only wait for each other.
        """
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with torch.random.fork_rng(devices=[]), torch.enable_grad():
                reason = factory(sizes.heads, sizes.head_dim).deviations.get(self.name)
                if reason is not None and self.name != "deviations":
                    raise NotApplicableError(f"broken as released: {reason}")
                self.check(factory, sizes)
        finally:
            torch.set_num_threads(threads)


@dataclass(frozen=True)
class LawResult:
    """What one law said of one attention.

    Args:
        name: of the law.
        passed: False where it is broken; True also where it was skipped.
        detail: what was seen where it is broken, else empty.
        skipped: why the law does not concern this attention, else None.
    """

    name: str
    passed: bool
    detail: str = ""
    skipped: str | None = None


_LAWS: dict[str, Law] = {}
LAWS: Mapping[str, Law] = MappingProxyType(_LAWS)
"""Every law by name, in the order in which they are best read."""


def law(*, slow: bool = False) -> Callable[[LawFunction], Law]:
    """Register a function as the law of its own name."""

    def register(check: LawFunction) -> Law:
        name = str(getattr(check, "__name__", check))
        statement = (check.__doc__ or name).strip().splitlines()[0]
        _LAWS[name] = Law(name, statement, check, slow)
        return _LAWS[name]

    return register


def run_law(law: Law, factory: AttentionFactory, sizes: Sizes) -> LawResult:
    """Put one attention through one law; an error of any kind counts as broken."""
    try:
        law(factory, sizes)
    except NotApplicableError as reason:
        return LawResult(law.name, True, skipped=str(reason))
    except AssertionError as broken:
        return LawResult(law.name, False, str(broken) or law.statement)
    except Exception as error:
        return LawResult(law.name, False, f"{type(error).__name__}: {error}")
    return LawResult(law.name, True)


def _builds(factory: AttentionFactory, sizes: Sizes) -> None:
    """The factory builds an attention at these sizes; a law, but so plain that it goes ahead."""
    factory(sizes.heads, sizes.head_dim)


BUILDS = Law("builds", "the factory builds an attention", _builds)


def check_attention(
    factory: AttentionFactory,
    heads: int,
    head_dim: int,
    tokens: int,
    *,
    batch: int = 2,
    slow: bool = False,
) -> list[LawResult]:
    """Put an attention through the laws at the sizes it will be used with.

    Cheap enough to stand before every study: a few seconds. Torch's global generator is left as
    it was, and nothing is printed.

    Args:
        factory: ``factory(heads, head_dim) -> Attention``; a class, or a partial with options.
        heads: H.
        head_dim: D.
        tokens: N. Laws that compare with a dense oracle cap it, see each one.
        batch: B.
        slow: also run the laws that take longer (16,384 tokens in half precision, the compiler).

    Returns:
        One result a law, in the order of :data:`LAWS`; a single broken one named ``builds`` where
        the factory raises (an abstract class, an option that does not fit the sizes).

    Example:
        >>> broken = [r for r in check_attention(Linear, 4, 32, 196) if not r.passed]
    """
    sizes = Sizes(heads, head_dim, tokens, batch)
    built = run_law(BUILDS, factory, sizes)
    if not built.passed:
        return [built]
    return [run_law(law, factory, sizes) for law in LAWS.values() if slow or not law.slow]


def variants(cls: type[Attention]) -> dict[str, AttentionFactory]:
    """The class and every alternative that its typed options offer, one option changed at a time.

    Options of type ``Literal`` and ``bool`` are walked through; others keep their default.

    Example:
        >>> list(variants(Softmax))
        ["Softmax", "Softmax(path='math')"]
    """
    found: dict[str, AttentionFactory] = {cls.__name__: cls}
    types = get_type_hints(cls.__init__)
    for option in inspect.signature(cls).parameters.values():
        choices: tuple[object, ...] = ()
        if get_origin(types.get(option.name)) is Literal:
            choices = get_args(types[option.name])
        elif types.get(option.name) is bool:
            choices = (False, True)
        for value in choices:
            if value != option.default:
                name = f"{cls.__name__}({option.name}={value!r})"
                chosen: dict[str, Any] = {option.name: value}
                found[name] = functools.partial(cls, **chosen)
    return found


class Draw:
    """Random inputs from a generator of its own."""

    def __init__(self, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
        """Standard normal numbers, drawn in float64."""
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64).to(dtype)

    def qkv(
        self,
        sizes: Sizes,
        *,
        keys: int | None = None,
        groups: int | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values; as many keys as queries unless said."""
        keys = sizes.tokens if keys is None else keys
        groups = sizes.heads if groups is None else groups
        q = self.normal(sizes.batch, sizes.heads, sizes.tokens, sizes.head_dim, dtype=dtype)
        k = self.normal(sizes.batch, groups, keys, sizes.head_dim, dtype=dtype)
        return q, k, self.normal(sizes.batch, groups, keys, sizes.head_dim, dtype=dtype)

    def mask(self, batch: int, keys: int, keep: float = 0.6) -> Tensor:
        """A random key mask (B, M)."""
        return torch.rand(batch, keys, generator=self.generator) < keep


def build(factory: AttentionFactory, sizes: Sizes, dtype: torch.dtype = torch.float64) -> Attention:
    """The attention in evaluation mode, its parameters moved off their initial values.

    Equal initial values of all heads would hide a mix-up of heads.
    """
    module = factory(sizes.heads, sizes.head_dim).to(dtype).eval()
    draw = Draw(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1.0 + 0.2 * draw.normal(*parameter.shape, dtype=dtype).tanh())
    return module


def gates(module: Attention, k: Tensor) -> dict[str, Tensor]:
    """The gates an attention takes, as functions of the keys: they move, hide and share with them.

    Without numbers of their own every law holds for gates too, their gradients (in that of k)
    included, and where k is NaN in a padded token so are they.
    """
    found = {}
    k = k.to(torch.promote_types(k.dtype, torch.float32))  # half would round the gates themselves
    lost = k.isnan()
    # Filled before and after: a padded gate is NaN, and what drops it gives no NaN back to k.
    k = k.masked_fill(lost, 0.0)
    if module.capability.log_decay != "none":
        channel = module.capability.log_decay == "channel"
        x = -torch.nn.functional.softplus(k if channel else k.mean(-1))
        found["log_decay"] = x.masked_fill(lost if channel else lost.any(-1), torch.nan)
    if module.capability.in_gate:
        x = 2.0 * k.mean(-1) - 1.0
        found["in_gate"] = x.masked_fill(lost.any(-1), torch.nan)
    return found


def attend(module: Attention, q: Tensor, k: Tensor, v: Tensor, **form: Any) -> Tensor:
    """The output, with gates where the attention takes them."""
    out: Tensor = module(q, k, v, **form, **gates(module, k))
    return out


def reference(module: Attention, q: Tensor, k: Tensor, v: Tensor, **form: Any) -> Tensor:
    """The oracle, with the same gates."""
    call: Callable[..., Tensor] = module.reference
    return call(q, k, v, **form, **gates(module, k))


def mixing_matrix(module: Attention, q: Tensor, k: Tensor, **form: Any) -> Tensor:
    """The matrix over tokens, with the same gates."""
    call: Callable[..., Tensor] = module.matrix
    return call(q, k, **form, **gates(module, k))


def extend(
    module: Attention,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    state: State | None = None,
    **form: Any,
) -> tuple[Tensor, State]:
    """The causal form continued from a state, with the same gates."""
    call: Callable[..., tuple[Tensor, State]] = module.extend
    return call(q, k, v, state, **form, **gates(module, k))


def leaves(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Copies that collect gradients."""
    return tuple(x.detach().clone().requires_grad_() for x in tensors)


def forms(module: Attention) -> list[bool]:
    """The values of ``causal`` the attention is defined for."""
    capability = module.capability
    return [c for c in (False, True) if (capability.causal if c else capability.bidirectional)]


def assert_close(got: Tensor, want: Tensor, tolerance: float, what: str) -> None:
    """The largest difference, relative to the largest wanted value where that is above 1."""
    assert got.shape == want.shape, f"{what}: shape {tuple(got.shape)}, not {tuple(want.shape)}"
    if not want.numel():
        return
    difference = (got.double() - want.double()).abs().max().item()
    bound = tolerance * max(1.0, want.double().abs().max().item())
    assert difference <= bound, f"{what}: off by {difference:.2e}, allowed {bound:.2e}"
