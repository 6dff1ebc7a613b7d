"""What one call really costs: FLOPs by torch's counter, bytes by autograd's hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from weakref import WeakSet

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


def count_flops(call: Callable[[], Tensor]) -> tuple[int, int]:
    """FLOPs of a forward pass and of its backward pass.

    Fused softmax kernels run on their math path meanwhile: the counter sees nothing in them on
    the CPU. Matrix products count, a multiply-add as two; elementwise work does not.

    Args:
        call: runs the forward pass and returns its output.
    """
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        out = call()
    with FlopCounterMode(display=False) as backward:
        torch.autograd.backward(out, torch.ones_like(out))
    return counter.get_total_flops(), backward.get_total_flops()


def saved_bytes(call: Callable[[], Tensor], *, exclude: Iterable[Tensor] = ()) -> int:
    """Bytes that autograd keeps between a forward pass and its backward pass.

    Every tensor that passes ``torch.autograd.graph.saved_tensors_hooks`` and is still kept when the
    forward pass has ended counts, inputs included, each number once however many views show it.

    Args:
        call: runs the forward pass and returns its output.
        exclude: tensors that do not count, such as the parameters of the module.
    """
    hidden = {x.untyped_storage().data_ptr() for x in exclude}
    alive: WeakSet[_Kept] = WeakSet()

    def pack(x: Tensor) -> _Kept:
        kept = _Kept(x.detach())  # a node's own output would keep the node
        alive.add(kept)
        return kept

    with saved_tensors_hooks(pack, lambda kept: kept.tensor):
        out = call()
    assert out.requires_grad, "the output needs no gradient, so nothing is kept"
    shown: dict[int, Tensor] = {}
    for x in (kept.tensor for kept in alive):
        memory, size = x.untyped_storage(), x.element_size()
        if memory.data_ptr() in hidden:
            continue
        marks = shown.setdefault(memory.data_ptr(), torch.zeros(memory.nbytes(), dtype=torch.bool))
        strides = [size * stride for stride in x.stride()]
        view = marks.as_strided((*x.shape, size), (*strides, 1), size * x.storage_offset())
        view.fill_(True)
    return sum(int(marks.sum()) for marks in shown.values())


class _Kept:
    """A tensor in the hands of autograd, and gone with its node."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
