"""Recurrences block by block: the backward pass keeps inputs and states and runs each block again.

A form maps the tokens of one block and a state to outputs and the next state. Over the whole
sequence only its inputs and the states between blocks stay in memory; everything else lives as long
as one block, which a CPU core holds in its cache. Gradients flow through the states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isoattn.core.ops.masking import no_autocast

Form = Callable[
    [Sequence[Tensor | None], Sequence[Tensor | None], Sequence[Tensor]],
    tuple[Tensor, tuple[Tensor, ...]],
]
"""(tokens, shared, state) -> (outputs, next state). Linear in time; calls nothing random."""


@dataclass(frozen=True)
class Plan:
    """How a recurrence is run.

    Args:
        form: of one block.
        tokens: how many of the inputs have a token axis; the first one is not ``None``.
        shared: how many follow that every block sees whole, such as parameters; the rest is state.
        axis: of the tokens, in inputs and output.
        size: tokens in one block; the last one may be shorter.
        fixed: which tensors of the next state carry no gradient.
    """

    form: Form
    tokens: int
    shared: int
    axis: int
    size: int
    fixed: frozenset[int] = frozenset()

    def split(self, inputs: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        """Inputs as tokens, shared ones and state."""
        end = self.tokens + self.shared
        return inputs[: self.tokens], inputs[self.tokens : end], inputs[end:]

    def blocks(self, length: int) -> Iterator[tuple[int, int]]:
        """Start and length of every block."""
        for start in range(0, max(1, length), self.size):
            yield start, min(self.size, length - start)

    def cut(self, tensors: Sequence[Tensor | None], start: int, length: int) -> list[Any]:
        """The tokens of one block."""
        return [x if x is None else x.narrow(self.axis, start, length) for x in tensors]


@dataclass(frozen=True)
class Recurrence:
    """A family of plans under a name, so that the compiler can take any of them as one operator.

    Args:
        states: how many of the inputs, the last ones, are the state.
        plan: for given inputs and options.
        empty: a contiguous output for given inputs.
    """

    states: int
    plan: Callable[[Sequence[Tensor | None], Sequence[float]], Plan]
    empty: Callable[[Sequence[Any]], Tensor]


RECURRENCES: dict[str, Recurrence] = {}
"""Every recurrence by its name."""


def by_blocks(
    name: str, inputs: Sequence[Tensor | None], options: Sequence[float]
) -> tuple[Tensor, ...]:
    """Run a recurrence of :data:`RECURRENCES` over consecutive blocks of tokens.

    Args:
        name: of the recurrence.
        inputs: tensors with tokens, shared ones, and the state before the first token.
        options: of the recurrence.

    Returns:
        The outputs, then the state after the last token.
    """
    if torch.compiler.is_compiling():
        present = [x for x in inputs if x is not None]
        given = [x is not None for x in inputs]
        whole: list[Tensor] = _operator(name, present, given, [float(x) for x in options])
        return tuple(whole)
    function: Any = _Recomputed
    found: tuple[Tensor, ...] = function.apply(RECURRENCES[name].plan(inputs, options), *inputs)
    return found


def _room(block: Tensor, length: int, axis: int) -> Tensor:
    """An empty tensor for all tokens; heads before tokens are laid out after them."""
    shape = list(block.shape)
    shape[axis] = length
    if axis != 2 or len(shape) != 4:
        return block.new_empty(shape)
    return block.new_empty(shape[0], shape[2], shape[1], shape[3]).transpose(1, 2)


def _run(plan: Plan, inputs: Sequence[Any]) -> tuple[Tensor, list[Sequence[Tensor]]]:
    """Outputs, and the states before each block and after the last one."""
    tokens, shared, state = plan.split(inputs)
    length = tokens[0].shape[plan.axis]
    states, out = [state], None
    for start, count in plan.blocks(length):
        part, state = plan.form(plan.cut(tokens, start, count), shared, state)
        states.append(state)
        if out is None:
            out = part if count == length else _room(part, length, plan.axis)
        if count != length:
            out.narrow(plan.axis, start, count).copy_(part)
    assert out is not None
    return out, states


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: Plan, *inputs: Any) -> tuple[Tensor, ...]:
        out, states = _run(plan, inputs)
        ctx.plan = plan
        between = [x for state in states[1:-1] for x in state]
        ctx.save_for_backward(*inputs, *between)
        last = states[-1]
        ctx.mark_non_differentiable(*(last[i] for i in sorted(plan.fixed)))
        return out, *last

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        again = torch.is_grad_enabled()  # the caller wants second derivatives
        plan, needed = ctx.plan, ctx.needs_input_grad[1:]
        inputs, between = ctx.saved_tensors[: len(needed)], ctx.saved_tensors[len(needed) :]
        with torch.enable_grad(), no_autocast(grads[0].device.type):
            if again:
                return None, *_whole(plan, inputs, needed, grads)
            return None, *_reversed(plan, inputs, between, needed, grads)


def _pull(
    results: Sequence[Tensor],
    grads: Sequence[Tensor | None],
    leaves: Sequence[Any],
    graph: bool = False,
) -> list[Tensor | None]:
    """Gradients of the leaves that ask for one; ``None`` for the others."""
    pairs = [
        (x, g) for x, g in zip(results, grads, strict=True) if g is not None and x.requires_grad
    ]
    used = [x for x in leaves if x is not None and x.requires_grad]
    if not pairs or not used:
        return [None] * len(leaves)
    outputs, weights = zip(*pairs, strict=True)
    found = iter(torch.autograd.grad(outputs, used, weights, create_graph=graph, allow_unused=True))
    return [None if x is None or not x.requires_grad else next(found) for x in leaves]


def _whole(
    plan: Plan, inputs: Sequence[Any], needed: Sequence[bool], grads: Sequence[Tensor]
) -> list[Tensor | None]:
    """Gradients that can be differentiated again."""
    # views, because a tensor given twice must not collect the sum of both gradients twice
    views = [x.view_as(x) if need else x for x, need in zip(inputs, needed, strict=True)]
    out, states = _run(plan, views)
    found = _pull((out, *states[-1]), grads, views, graph=True)
    return [g if need else None for g, need in zip(found, needed, strict=True)]


def _reversed(
    plan: Plan,
    inputs: Sequence[Any],
    between: Sequence[Tensor],
    needed: Sequence[bool],
    grads: Sequence[Tensor],
) -> list[Tensor | None]:
    """Gradients block by block, from the last one to the first."""
    tokens, shared, first = plan.split(inputs)
    need_tokens, need_shared, need_state = plan.split(needed)
    width, length = len(first), tokens[0].shape[plan.axis]
    states = [*first, *between]
    blocks = list(plan.blocks(length))
    grad, dstate = grads[0], _without(plan, grads[1:])
    dtokens = [
        torch.empty_like(x) if need and len(blocks) > 1 else None
        for x, need in zip(tokens, need_tokens, strict=True)
    ]
    dshared: list[Tensor | None] = [None] * len(shared)
    for b in reversed(range(len(blocks))):
        start, count = blocks[b]
        leaves = [
            *_leaves(plan.cut(tokens, start, count), need_tokens),
            *_leaves(shared, need_shared),
            *_leaves(states[b * width : (b + 1) * width], [True] * width),
        ]
        out, state = plan.form(*plan.split(leaves))
        found = _pull((out, *state), (grad.narrow(plan.axis, start, count), *dstate), leaves)
        now, of_shared, before = plan.split(found)
        dstate = list(before) if b == 0 else _without(plan, before)
        dshared = [
            x if y is None else y if x is None else x + y
            for x, y in zip(dshared, of_shared, strict=True)
        ]
        if len(blocks) == 1:
            dtokens = list(now)
            continue
        for x, y in zip(dtokens, now, strict=True):
            if x is not None:
                part = x.narrow(plan.axis, start, count)
                part.zero_() if y is None else part.copy_(y)
    first_state = [g if need else None for g, need in zip(dstate, need_state, strict=True)]
    return [*dtokens, *dshared, *first_state]


def _without(plan: Plan, dstate: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Gradients of a state without those that its fixed tensors do not carry."""
    return [None if i in plan.fixed else g for i, g in enumerate(dstate)]


def _leaves(tensors: Sequence[Any], needed: Sequence[bool]) -> list[Any]:
    return [
        x if x is None else x.detach().requires_grad_(need)
        for x, need in zip(tensors, needed, strict=True)
    ]


# The operators take what is there and a flag for each input: in a list with a None among its
# tensors torch's operators find no tensor that asks for a gradient, and say nothing.
@torch.library.custom_op("isoattn::by_blocks", mutates_args=())
def _operator(
    name: str, present: Sequence[Tensor], given: Sequence[bool], options: Sequence[float]
) -> list[Tensor]:
    """What :func:`by_blocks` is to the compiler; second derivatives are for eager mode."""
    inputs = _filled(present, given)
    out, states = _run(RECURRENCES[name].plan(inputs, options), inputs)
    return [x.clone(memory_format=torch.contiguous_format) for x in (out, *states[-1])]


@torch.library.custom_op("isoattn::by_blocks_backward", mutates_args=())
def _operator_backward(
    name: str,
    present: Sequence[Tensor],
    given: Sequence[bool],
    options: Sequence[float],
    grads: Sequence[Tensor],
) -> list[Tensor]:
    inputs = _filled(present, given)
    needed = [x is not None and x.is_floating_point() for x in inputs]
    plan = RECURRENCES[name].plan(inputs, options)
    _, states = _run(plan, inputs)
    between = [x for state in states[1:-1] for x in state]
    # An operator runs below autograd; here it must record once more. The law ``compiled`` watches.
    key: Any = torch._C.DispatchKey.AutogradFunctionality
    recording: Any = torch._C._SetExcludeDispatchKeyGuard
    with torch.enable_grad(), recording(key, False):
        found = _reversed(plan, inputs, between, needed, grads)
    return [_like(x, g) for x, g in zip(inputs, found, strict=True) if x is not None]


def _filled(present: Sequence[Tensor], given: Sequence[bool]) -> list[Tensor | None]:
    """The inputs again, ``None`` where none was given."""
    rest = iter(present)
    return [next(rest) if there else None for there in given]


def _like(x: Tensor, grad: Tensor | None) -> Tensor:
    """A gradient of its own memory; an operator cannot return ``None``."""
    if grad is None:
        return torch.zeros_like(x, memory_format=torch.contiguous_format)
    return grad.clone(memory_format=torch.contiguous_format)


@_operator.register_fake
def _(
    name: str, present: Sequence[Tensor], given: Sequence[bool], options: Sequence[float]
) -> list[Tensor]:
    plan_of, inputs = RECURRENCES[name], _filled(present, given)
    state = inputs[-plan_of.states :]
    return [
        plan_of.empty(inputs),
        *(torch.empty_like(x).contiguous() for x in state if x is not None),
    ]


@_operator_backward.register_fake
def _(
    name: str,
    present: Sequence[Tensor],
    given: Sequence[bool],
    options: Sequence[float],
    grads: Sequence[Tensor],
) -> list[Tensor]:
    return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in present]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.name, present, ctx.given, ctx.options = inputs
    ctx.save_for_backward(*present)


def _backward(ctx: Any, grads: list[Tensor]) -> tuple[None, list[Tensor | None], None, None]:
    present = list(ctx.saved_tensors)
    found = _operator_backward(ctx.name, present, ctx.given, ctx.options, grads)
    kept = [g if x.is_floating_point() else None for x, g in zip(present, found, strict=True)]
    return None, kept, None, None


_operator.register_autograd(_backward, setup_context=_setup)
