"""What one call really costs: FLOPs by torch's counter, bytes by autograd's hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable

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

    Every tensor that passes ``torch.autograd.graph.saved_tensors_hooks`` counts, inputs included,
    each memory once however many views of it are kept.

    Args:
        call: runs the forward pass and returns its output.
        exclude: tensors that do not count, such as the parameters of the module.
    """
    hidden = {x.untyped_storage().data_ptr() for x in exclude}
    kept: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        where = x.untyped_storage().data_ptr()
        if where not in hidden:
            size = min(x.numel() * x.element_size(), x.untyped_storage().nbytes())
            kept[where] = max(kept.get(where, 0), size)
        return x

    with saved_tensors_hooks(pack, lambda x: x):
        out = call()  # held, so that no memory is freed and used again
    assert out.requires_grad, "the output needs no gradient, so nothing is kept"
    return sum(kept.values())
