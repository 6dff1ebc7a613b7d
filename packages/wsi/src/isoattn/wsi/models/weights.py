"""Weights of bag networks: the released names of TransMIL, and loading with a report.

All projections are in the layers, not in the attention, so every arm has the same parameters. What
an attention adds lies under ``layers.<i>.core.``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from torch import Tensor

from isoattn.core.training.checkpoint import read_checkpoint
from isoattn.wsi.models.network import BagNetwork

_PUBLISHED = (
    (r"cls_token", r"cls"),
    (r"_fc1\.0\.(weight|bias)", r"input.\1"),
    (r"_fc2\.(weight|bias)", r"head.\1"),
    (r"pos_layer\.proj\.(weight|bias)", r"ppeg.conv7.\1"),
    (r"pos_layer\.proj1\.(weight|bias)", r"ppeg.conv5.\1"),
    (r"pos_layer\.proj2\.(weight|bias)", r"ppeg.conv3.\1"),
    (r"layer(\d+)\.norm\.(weight|bias)", r"layers.\1.norm.\2"),
    (r"layer(\d+)\.attn\.to_qkv\.weight", r"layers.\1.qkv.weight"),
    (r"layer(\d+)\.attn\.to_out\.0\.(weight|bias)", r"layers.\1.out.\2"),
    (r"layer(\d+)\.attn\.res_conv\.weight", r"layers.\1.value_conv.weight"),
)
_PREFIXES = ("model.", "network.")
_CORE = re.compile(r"layers\.\d+\.core\.")


class WeightsError(ValueError):
    """Weights that do not fit; says which names, and what to do."""


@dataclass(frozen=True)
class KeyReport:
    """What a load did, by the network's names.

    Args:
        source: the file's name.
        loaded: copied.
        fresh: of the attention or of a head of another size: left as they were.
        unused: of another attention or head: left over.
    """

    source: str
    loaded: tuple[str, ...]
    fresh: tuple[str, ...]
    unused: tuple[str, ...]

    def __str__(self) -> str:
        total = len(self.loaded) + len(self.fresh)
        lines = [f"loaded {len(self.loaded)} of {total} tensors from {self.source}"]
        for title in ("fresh", "unused"):
            if names := list(getattr(self, title)):
                lines.append(f"  {title:<7} {_short(names)}")
        return "\n".join(lines)


def from_published(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names of szc19990412/TransMIL, also under ``model.`` -> ours; others stay."""
    return {_renamed(name): tensor for name, tensor in weights.items()}


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a local file; nothing in it is executed (``weights_only=True``).

    Args:
        path: a ``.safetensors`` file, or a torch file with a state dict or a Lightning checkpoint.

    Raises:
        WeightsError: no file of weights.
        CheckpointError: a torch file that is missing, damaged, or holds code.
    """
    path = Path(path)
    if path.suffix == ".safetensors":
        try:
            return load_safetensors(path.read_bytes())
        except (OSError, SafetensorError) as error:
            raise WeightsError(f"{path.name} cannot be read as safetensors: {error}") from error
    content: Mapping[str, Any] = read_checkpoint(path, require_checksum=False)
    content = content.get("state_dict", content)
    tensors = {name: x for name, x in content.items() if isinstance(x, Tensor)}
    if not tensors:
        raise WeightsError(f"{path.name} holds no tensors: give a state dict or a checkpoint")
    return tensors


def load_weights(
    network: BagNetwork,
    source: str | Path | Mapping[str, Tensor],
    *,
    allow_attention_change: bool = False,
    fresh_head: bool = False,
) -> KeyReport:
    """Load the released weights, or ours; all of it or nothing.

    Args:
        network: built with the options of the weights.
        source: a local file, or tensors by name.
        allow_attention_change: the weights may be those of another attention: what it has of its
            own is left over, what the network's attention has stays as it is.
        fresh_head: leave the head as it is, for another number of classes.

    Returns:
        What was loaded and what was not; print it.

    Raises:
        WeightsError: names or shapes that do not fit; lists them and says what to do.
        CheckpointError: a torch file that is missing, damaged, or holds code.
    """
    given = source if isinstance(source, Mapping) else read_weights(source)
    name = "tensors" if isinstance(source, Mapping) else Path(source).name
    weights = from_published(given)
    target = network.state_dict()
    left = {n for n in (*weights, *target) if fresh_head and n.startswith("head.")}
    if allow_attention_change:
        shared = {n for n in target if n in weights and weights[n].shape == target[n].shape}
        left |= {n for n in (*weights, *target) if _CORE.match(n) and n not in shared}
    problems = {
        "missing": [n for n in target if n not in weights and n not in left],
        "unexpected": [n for n in weights if n not in target and n not in left],
        "other shape": [
            f"{n} {tuple(weights[n].shape)} for {tuple(x.shape)}"
            for n, x in target.items()
            if n in weights and n not in left and weights[n].shape != x.shape
        ],
    }
    if any(problems.values()):
        raise WeightsError(_complaint(name, problems))
    loaded = [n for n in target if n in weights and n not in left]
    network.load_state_dict({n: weights[n] for n in loaded}, strict=False)
    return KeyReport(
        name,
        tuple(loaded),
        tuple(n for n in target if n in left),
        tuple(n for n in weights if n in left),
    )


def _complaint(source: str, problems: Mapping[str, list[str]]) -> str:
    listing = "; ".join(f"{t}: {_short(names)}" for t, names in problems.items() if names)
    wrong = [n.split(" ")[0] for names in problems.values() for n in names]
    if all(_CORE.match(n) for n in wrong):
        remedy = (
            "These belong to the attention: build the network with the attention of the weights, "
            "or set allow_attention_change=True to go on with another one"
        )
    elif all(n.startswith("head.") for n in wrong):
        remedy = "Only the head differs: set fresh_head=True for another number of classes"
    else:
        remedy = (
            "Build the network with the options of the weights (in_dim, dim, heads, depth, ppeg, "
            "value_conv, norm)"
        )
    return f"{source} does not fit the network. {listing}. {remedy}."


def _renamed(name: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    for pattern, ours in _PUBLISHED:
        match = re.fullmatch(pattern, name)
        if match is None:
            continue
        if name.startswith("layer"):  # released layers count from 1
            ours = ours.replace(r"\1", str(int(match[1]) - 1))
        return match.expand(ours)
    return name


def _short(names: list[str], limit: int = 6) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
