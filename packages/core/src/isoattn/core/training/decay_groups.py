"""Which parameters weight decay applies to: by rule and by name, none lost, none doubled."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, _NormBase)


def weight_decay_groups(
    module: nn.Module, weight_decay: float, *, exempt: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Two parameter groups for an optimiser: with decay and without.

    Without decay are: biases, all parameters of norm layers, every parameter with fewer than two
    dimensions (LayerScale among them), what a submodule's ``no_weight_decay()`` returns (names
    relative to that submodule), and what ``exempt`` lists. Parameters that do not require a
    gradient are in no group.

    Args:
        module: model whose parameters are grouped. A parameter shared by two submodules is grouped
            once; it is exempt if it is so under any of its names.
        weight_decay: decay of the first group.
        exempt: names without decay: of a parameter (``"blocks.0.temperature"``), of a submodule
            (``"pos_embed"``: everything below it), or a last component (``"temperature"``).

    Returns:
        ``[{"name": "decay", ...}, {"name": "no_decay", "weight_decay": 0.0, ...}]``; each holds
        ``params`` and, in the same order, ``param_names``. A group without parameters is left out.

    Raises:
        ValueError: a name in ``exempt`` or in a ``no_weight_decay()`` that fits no parameter, a
            negative decay, or a model without trainable parameters.
    """
    if weight_decay < 0:
        raise ValueError(f"weight_decay must not be negative, got {weight_decay}")
    free = _exempt_ids(module, exempt)
    groups: dict[str, dict[str, Any]] = {
        "decay": {"name": "decay", "weight_decay": weight_decay, "params": [], "param_names": []},
        "no_decay": {"name": "no_decay", "weight_decay": 0.0, "params": [], "param_names": []},
    }
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            group = groups["no_decay" if id(parameter) in free else "decay"]
            group["params"].append(parameter)
            group["param_names"].append(name)
    filled = [group for group in groups.values() if group["params"]]
    _check_partition(module, filled)
    return filled


def _exempt_ids(module: nn.Module, exempt: Collection[str]) -> set[int]:
    free: set[int] = set()
    for path, child in module.named_modules():
        for name, parameter in child.named_parameters(recurse=False):
            by_rule = isinstance(child, _NORMS) or parameter.ndim < 2
            if by_rule or name == "bias" or name.endswith("_bias"):
                free.add(id(parameter))
        declared = getattr(child, "no_weight_decay", None)
        if declared is not None:  # networks have a method, attentions a class attribute
            source = f"{type(child).__name__}.no_weight_decay" + (f" at {path}" if path else "")
            for name in declared() if callable(declared) else declared:
                free.update(_named(child, name, source))
    for name in exempt:
        free.update(_named(module, name, "exempt"))
    return free


def _named(module: nn.Module, name: str, source: str) -> Iterator[int]:
    found = False
    for full, parameter in module.named_parameters(remove_duplicate=False):
        if full == name or full.startswith(name + ".") or full.endswith("." + name):
            found = True
            yield id(parameter)
    if not found:
        known = [full for full, _ in module.named_parameters()]
        raise ValueError(
            f"{source} names {name!r}, which fits no parameter. "
            f"Parameters are: {', '.join(known[:8])}{', ...' if len(known) > 8 else ''}"
        )


def _check_partition(module: nn.Module, groups: list[dict[str, Any]]) -> None:
    grouped = [id(parameter) for group in groups for parameter in group["params"]]
    trainable = {id(p) for p in module.parameters() if p.requires_grad}
    if not trainable:
        raise ValueError(f"{type(module).__name__} has no parameter that requires a gradient")
    assert len(grouped) == len(set(grouped)), "a parameter is in two groups"
    assert set(grouped) == trainable, "a parameter is in no group"
