"""State-dict keys of an attention core without the level that the core adds.

The released XCiT weights keep the temperature beside the projections (``attn.temperature``); here
it belongs to the core inside the layer (``attn.core.temperature``). Hooks translate both ways, so
files have the released names whatever the core is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.nn.modules.module import _IncompatibleKeys

CORE = "core"
_TAKEN = ("qkv", "proj", CORE)
"""First parts of a key that are never a core's own name: such a key keeps its full form."""


def hide_core_in_state_dict(layer: Any) -> None:
    """Give a layer with the children qkv, proj and core the released names.

    Args:
        layer: an ``nn.Module``; typed as Any because torch leaves the three methods untyped.
    """
    layer.register_state_dict_post_hook(_hide)
    layer.register_load_state_dict_pre_hook(_restore)
    layer.register_load_state_dict_post_hook(_hide_in_report)


def _hide(layer: nn.Module, state: dict[str, Any], prefix: str, _: dict[str, Any]) -> None:
    for key in [k for k in state if k.startswith(f"{prefix}{CORE}.")]:
        own = key.removeprefix(f"{prefix}{CORE}.")
        if own.split(".")[0] not in _TAKEN:
            state[prefix + own] = state.pop(key)


def _restore(
    layer: Any,
    state: dict[str, Any],
    prefix: str,
    _metadata: Mapping[str, Any],
    _strict: bool,
    _missing: list[str],
    _unexpected: list[str],
    _errors: list[str],
) -> None:
    layer._prefix_of_load = prefix
    for key in [k for k in state if k.startswith(prefix)]:
        own = key.removeprefix(prefix)
        if own.split(".")[0] not in _TAKEN:
            state[f"{prefix}{CORE}.{own}"] = state.pop(key)


def _hide_in_report(layer: Any, keys: _IncompatibleKeys) -> None:
    """Report ``attn.temperature``: the longer name appears in no file."""
    prefix = layer._prefix_of_load
    for names in (keys.missing_keys, keys.unexpected_keys):
        names[:] = [
            prefix + name.removeprefix(f"{prefix}{CORE}.")
            if name.startswith(f"{prefix}{CORE}.")
            else name
            for name in names
        ]
