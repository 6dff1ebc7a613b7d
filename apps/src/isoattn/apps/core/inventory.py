"""What isoattn.core holds, read from the classes: equation, forms, cost, source, test."""

from __future__ import annotations

import inspect
import math
import re
from dataclasses import dataclass
from pathlib import Path

from isoattn.core import Attention, Capability, Shape, UnsupportedAttention, attentions
from isoattn.core.factories import concrete
from isoattn.core.mixers import Mixer, MultiHead

ROOT = Path(__file__).parents[5]
"""The source tree, where this runs from one."""

HEADS, HEAD_DIM, DIM = 4, 64, 256
TOKENS = (1024, 16384)
"""Sizes at which costs are shown."""


@dataclass(frozen=True)
class Costs:
    """Closed forms at batch 1, 4 heads of 64 or 256 channels, float32.

    Args:
        order: exponent of N in the forward FLOPs, from N to 4 N at the larger size.
        gflop: forward, at each of :data:`TOKENS`.
        saved: bytes kept for the backward pass a token, at the larger size.
        state: bytes of the state, at each of :data:`TOKENS`; 0 without one.
    """

    order: float
    gflop: tuple[float, ...]
    saved: int
    state: tuple[int, ...]

    @property
    def text(self) -> str:
        """``O(N)``, ``O(N^2)``, ``0`` where there is no matrix product."""
        if not self.gflop[-1]:
            return "0"
        power = round(self.order, 1)
        return "O(N)" if power == 1 else f"O(N^{power:g})"


@dataclass(frozen=True)
class Entry:
    """One class.

    Args:
        name: short name.
        kind: ``"attention"`` or ``"mixer"``.
        summary: the first paragraph of the docstring: the equation.
        details: the paragraphs after it, up to the arguments.
        source: paper, from the docstring; empty where it names none.
        released: what released code does differently, from the docstring.
        capability: of an instance with default options; None where it depends on the options.
        unsupported: reasons by form, for the forms it lacks.
        options: with defaults, as in the signature.
        segments: packed samples are taken.
        costs: None where they depend on the options.
        module: source file from the root of the repository.
        test: its test file, from the root; empty where none was found.
    """

    name: str
    kind: str
    summary: str
    details: tuple[str, ...]
    source: str
    released: str
    capability: Capability | None
    unsupported: dict[str, str]
    options: tuple[str, ...]
    segments: bool
    costs: Costs | None
    module: str
    test: str

    @property
    def forms(self) -> str:
        """``bidirectional, causal, cross`` and how the causal form continues."""
        c = self.capability
        if c is None:
            return "those of its attention"
        found = [n for n in ("bidirectional", "causal", "cross") if getattr(c, n)]
        if c.state != "none":
            found.append(f"{c.state} state: chunks, steps")
        return ", ".join(found)

    @property
    def masks(self) -> str:
        """Key mask and segments."""
        c = self.capability
        found = ["key mask"] if c is None or c.key_mask else []
        return ", ".join([*found, *(["segments"] if self.segments else [])]) or "none"


def entries() -> list[Entry]:
    """Every attention of isoattn.core, then every mixer, by name."""
    own = [c for c in attentions().values() if c.__module__.startswith("isoattn.core.")]
    mixers = [c for c in concrete(Mixer).values() if c.__module__.startswith("isoattn.core.")]
    return [_attention(c) for c in own] + [_mixer(c) for c in mixers]


def _attention(cls: type[Attention]) -> Entry:
    module = cls(HEADS, HEAD_DIM)
    return _entry(cls, "attention", 2, module.capability, dict(module.unsupported), _costs(module))


def _mixer(cls: type[Mixer]) -> Entry:
    if cls is MultiHead:  # it takes an attention, whose forms are its own
        return _entry(cls, "mixer", 1, None, {}, None)
    heads = {"heads": HEADS} if "heads" in _required(cls) else {}
    module = cls(DIM, **heads)
    return _entry(cls, "mixer", 1, module.capability, dict(module.unsupported), _costs(module))


def _required(cls: type) -> list[str]:
    parameters = inspect.signature(cls).parameters
    return [n for n, p in parameters.items() if p.default is inspect.Parameter.empty]


def _entry(
    cls: type,
    kind: str,
    positional: int,
    capability: Capability | None,
    unsupported: dict[str, str],
    costs: Costs | None,
) -> Entry:
    doc = inspect.getdoc(cls) or ""
    forward: object = cls.forward  # type: ignore[attr-defined]
    parameters = list(inspect.signature(cls).parameters.values())[positional:]
    summary = _joined(doc.split("\n\n")[0])
    module = inspect.getdoc(inspect.getmodule(cls)) or ""
    source = _source(_joined(doc)) or _source(_joined(module))
    test = _test_of(cls)
    return Entry(
        name=cls.__name__,
        kind=kind,
        summary=summary,
        details=_details(doc),
        source=source,
        released=_released(doc),
        capability=capability,
        unsupported={f: why for f, why in unsupported.items() if _lacks(capability, f)},
        options=tuple(_option(p) for p in parameters),
        segments="segments" in inspect.signature(forward).parameters,  # type: ignore[arg-type]
        costs=costs,
        module=_relative(Path(inspect.getfile(cls))),
        test=_relative(test) if test else "",
    )


def _lacks(capability: Capability | None, form: str) -> bool:
    return getattr(capability, form, False) in (False, "none")


def _option(parameter: inspect.Parameter) -> str:
    if parameter.default is inspect.Parameter.empty:
        return parameter.name
    return f"{parameter.name}={parameter.default!r}"


def _joined(text: str) -> str:
    return " ".join(text.split())


_NAMES = r"[A-Z][\w-]+(?: et al\.| and [A-Z][\w-]+)?"


def _source(text: str) -> str:
    """The first paper named: in brackets, or as a sentence that begins with its authors."""
    found = re.search(r"\(([^()]*\b(?:19|20)\d\d\b[^()]*)\)", text)
    found = found or re.search(
        rf"({_NAMES},? (?:19|20)\d\d(?:, (?:eq|sec|fig)\. [\w. -]*\w)?)", text
    )
    return found[1] if found else ""


def _details(doc: str) -> tuple[str, ...]:
    found = []
    for paragraph in doc.split("\n\n")[1:]:
        if re.match(r"(Args|Raises|Returns|Example|Attributes|Yields):", paragraph):
            break
        if not paragraph.lower().startswith("released code:"):
            found.append(_joined(paragraph))
    return tuple(found)


def _released(doc: str) -> str:
    """The paragraph that begins with ``Released code:``, or the sentences that speak of it."""
    paragraphs = [_joined(p) for p in doc.split("\n\n")]
    for paragraph in paragraphs:
        if paragraph.lower().startswith("released code:"):
            rest = paragraph.partition(":")[2].strip()
            return rest[0].upper() + rest[1:]
    sentences = []
    for paragraph in paragraphs:
        for part in re.split(r"(?<=\.)\s+(?=[A-Z\"`])|(?<=[.\]])\s+(?=\w+: )", paragraph):
            if re.search(r"\breleas", part, re.IGNORECASE):
                sentences.append(re.sub(r"^(Args: )?", "", part))
    return " ".join(sentences)


def _costs(module: Attention | Mixer) -> Costs | None:
    causal = not module.capability.bidirectional
    found = []
    for tokens in (*TOKENS, 4 * TOKENS[-1]):
        try:
            if isinstance(module, Mixer):
                found.append(module.cost(1, tokens, causal=causal))
            else:
                shape = Shape.square(1, HEADS, tokens, HEAD_DIM)
                found.append(module.cost(shape, causal=causal))
        except (ValueError, UnsupportedAttention):
            return None
    flops = [x.forward_flops for x in found]
    order = math.log(flops[-1] / flops[-2], 4) if flops[-2] else 0.0
    shown = found[:-1]
    return Costs(
        order,
        tuple(x.forward_flops / 1e9 for x in shown),
        round(shown[-1].saved_bytes / TOKENS[-1]),
        tuple(x.state_bytes for x in shown),
    )


def _test_of(cls: type) -> Path | None:
    """The test file that mirrors the module, or the one that names the class most often."""
    tests = ROOT / "packages/core/tests"
    parts = cls.__module__.split(".")[2:]
    mirror = tests.joinpath(*parts[:-1], f"test_{parts[-1]}.py")
    if mirror.is_file():
        return mirror
    word = re.compile(rf"\b{cls.__name__}\b")
    counts = {
        file: len(word.findall(file.read_text(encoding="utf-8")))
        for folder in ("attention", "mixers")
        for file in sorted((tests / folder).glob("test_*.py"))
    }
    best = max(counts, key=lambda f: counts[f], default=None)
    return best if best is not None and counts[best] else None


def _relative(path: Path) -> str:
    path = path.resolve()
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
