"""Names of weights: files of the XCiT authors, of timm and of our own runs, in one layout.

Ours is timm's layout. The authors' files differ in three points: the dict lies under ``model``,
the position encoding is spelt ``pos_embeder``, and the class attention has a fused ``qkv``.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from torch import Tensor

from isoattn.core.training.checkpoint import read_checkpoint
from isoattn.vision.models.grid import Grid
from isoattn.vision.models.positions import resize_positions

Weights = dict[str, Tensor]

_CLASS_QKV = re.compile(r"(cls_attn_blocks\.\d+\.attn\.)qkv\.(weight|bias)")


class WeightsError(ValueError):
    """Weights that cannot be loaded; says which keys, and what to do."""


@dataclass
class WeightFile:
    """What a file of weights holds.

    Args:
        weights: tensors by name.
        attention: class path of the attention it was trained with, where the file says so.
        sha256: of the file, None for weights that came from memory.
        source: how to call it in messages.
    """

    weights: Weights
    attention: str | None = None
    sha256: str | None = None
    source: str = "state dict"


@dataclass
class Renamed:
    """Weights in our layout.

    Args:
        weights: tensors by name.
        reshaped: what was split or resized, one readable entry each.
    """

    weights: Weights
    reshaped: list[str] = field(default_factory=list)


def read_weights(source: str | Path | Mapping[str, Any]) -> WeightFile:
    """The tensors of a safetensors or torch file, or of a dict; nothing in a file is executed.

    Args:
        source: path ending in ``.safetensors``, or of a torch file (``weights_only=True``): a
            plain state dict, one under ``model`` (the XCiT authors), or a Lightning checkpoint
            whose network lies under ``network.``; or such a dict itself.

    Raises:
        WeightsError: not a file of weights.
        CheckpointError: a torch file that is missing, damaged, or holds code.
    """
    if isinstance(source, Mapping):
        return _unwrap(source, None, "state dict")
    path = Path(source)
    if path.suffix != ".safetensors":
        content: Mapping[str, Any] = read_checkpoint(path, require_checksum=False)
        return _unwrap(content, hashlib.sha256(path.read_bytes()).hexdigest(), path.name)
    try:
        data = path.read_bytes()
        content = load_safetensors(data)
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{path.name} cannot be read as safetensors: {error}") from error
    return _unwrap(content, hashlib.sha256(data).hexdigest(), path.name)


def rename_weights(weights: Weights) -> Renamed:
    """Official, timm's or our own names -> ours."""
    renamed = Renamed({})
    for name, tensor in weights.items():
        name = name.replace("pos_embeder.", "pos_embed.")
        fused = _CLASS_QKV.fullmatch(name)
        if fused is None:
            renamed.weights[name] = tensor
            continue
        prefix, kind = fused.groups()
        for part, third in zip("qkv", tensor.chunk(3), strict=True):
            renamed.weights[f"{prefix}{part}.{kind}"] = third.clone()
        renamed.reshaped.append(f"{name} -> q, k, v")
    return renamed


def resize_learned_positions(renamed: Renamed, name: str, like: Tensor, grid: Grid) -> None:
    """Resize a table of learned positions to a model's grid, in place of the old entry.

    Args:
        renamed: weights to change.
        name: key of the table, (1, places, C) or (1, 1 + places, C) with a class token.
        like: the model's table.
        grid: the model's rows and columns.

    Raises:
        WeightsError: the file's grid is not a square, so its rows and columns are not known.
    """
    table = renamed.weights.get(name)
    if table is None or table.ndim != 3 or table.shape == like.shape:
        return
    extra = like.shape[1] - grid[0] * grid[1]
    places = table.shape[1] - extra
    side = math.isqrt(places)
    if table.shape[2] != like.shape[2] or side * side != places:
        raise WeightsError(
            f"{name} {tuple(table.shape)} cannot be resized to {tuple(like.shape)}: only square "
            "tables of the same width can. Build the model with the image_size it was trained at."
        )
    resized = resize_positions(table[:, extra:], (side, side), grid)
    renamed.weights[name] = resized.new_empty(like.shape)
    renamed.weights[name][:, :extra] = table[:, :extra]
    renamed.weights[name][:, extra:] = resized
    renamed.reshaped.append(f"{name} {side}x{side} -> {grid[0]}x{grid[1]}")


def _unwrap(content: Mapping[str, Any], sha256: str | None, source: str) -> WeightFile:
    attention = None
    if "state_dict" in content:
        hyper = content.get("hyper_parameters") or {}
        attention = (hyper.get("attention") or {}).get("class_path")
        content = content["state_dict"]
    elif "model" in content:
        content = content["model"]
    ours = {k.removeprefix("network."): v for k, v in content.items() if k.startswith("network.")}
    weights = ours or dict(content)
    wrong = sorted(k for k, v in weights.items() if not isinstance(v, Tensor))
    if wrong or not weights:
        holds = f"holds {wrong[:3]} that are no tensors" if wrong else "holds no tensors"
        raise WeightsError(
            f"{source} {holds}. Expected a state dict, one under 'model' or 'state_dict', or a "
            "safetensors file."
        )
    return WeightFile(weights, attention, sha256, source)
