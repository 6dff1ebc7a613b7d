"""Loading weights into a network, with a report of every key that was not simply copied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from isoattn.core.factories import class_path
from isoattn.vision.models.network import ImageNetwork
from isoattn.vision.models.positions import LearnedPositions
from isoattn.vision.models.self_attention import SelfAttention
from isoattn.vision.models.vit import ViT
from isoattn.vision.models.weight_names import (
    Renamed,
    WeightFile,
    WeightsError,
    read_weights,
    rename_weights,
    resize_learned_positions,
)

_HEAD = ("head.weight", "head.bias")
_COUNTER = ".num_batches_tracked"


@dataclass
class KeyReport:
    """What a load did, key by key.

    Args:
        missing: in the model, not in the file: left at their initial values.
        unexpected: in the file, not used.
        reshaped: split or resized on the way, one readable entry each.
        loaded: copied, by the model's names.
        fresh: of ``missing``, the head that was left fresh, with the shapes in file and model.
        sha256: of the file; None for weights from memory.
        source: the file's name.
    """

    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    reshaped: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    fresh: list[str] = field(default_factory=list)
    sha256: str | None = None
    source: str = "state dict"

    def __str__(self) -> str:
        total = len(self.loaded) + len(self.missing)
        lines = [f"loaded {len(self.loaded)} of {total} tensors from {self.source}"]
        if self.sha256 is not None:
            lines.append(f"  sha256      {self.sha256}")
        for title in ("fresh", "missing", "unexpected", "reshaped"):
            entries = getattr(self, title)
            if title == "missing":
                entries = [name for name in entries if name not in _HEAD]
            if entries:
                lines.append(f"  {title:<11} {_short(entries)}")
        return "\n".join(lines)


def load_weights(
    model: ImageNetwork,
    source: str | Path | Mapping[str, Any],
    *,
    allow_attention_change: bool = False,
    fresh_head: bool = False,
) -> KeyReport:
    """Load weights into a network of this package; nothing is changed unless all of it fits.

    Reads safetensors and torch files (``weights_only=True``) with the names of the XCiT authors,
    of timm, or of our own Lightning checkpoints. Tolerated and reported: another number of
    classes or no head at all (the model's fresh head stays), learned positions of another grid
    (resized), absent BatchNorm counters. The attention's own parameters may be missing or left
    over with ``allow_attention_change`` only.

    ``tokens_norm`` of XCiT has no parameters: no key tells a wrong setting.

    Args:
        model: an XCiT or ViT.
        source: path, or a dict of tensors.
        allow_attention_change: the weights were trained with another attention than the model's.
        fresh_head: leave the head fresh even where it would fit.

    Returns:
        What was loaded and what was not; print it.

    Raises:
        WeightsError: keys or shapes that do not fit, or another attention; lists them and says
            what to do.
        CheckpointError: a torch file that is missing, damaged, or holds code.

    Example:
        >>> print(load_weights(xcit("nano_12_p16", num_classes=5), "xcit_nano_12_p16.pth"))
        loaded 385 of 387 tensors from xcit_nano_12_p16.pth
          ...
    """
    file = read_weights(source)
    if not allow_attention_change:
        _check_attention(model, file)
    target = model.state_dict()
    renamed = rename_weights(file.weights)
    _resize_positions(model, renamed, target)
    weights = renamed.weights
    report = KeyReport(reshaped=renamed.reshaped, sha256=file.sha256, source=file.source)
    _take_fresh_head(weights, target, report, fresh_head)
    owned = _attention_keys(model, {*target, *weights})
    if allow_attention_change:
        _drop_other_shapes(weights, target, owned, report)
    report.missing += [n for n in target if n not in weights and n not in report.missing]
    report.unexpected += [n for n in weights if n not in target]
    report.loaded = [n for n in target if n in weights]
    _check_keys(report, weights, target, owned, allow_attention_change)
    model.load_state_dict({name: weights[name] for name in report.loaded}, strict=False)
    return report


def _resize_positions(model: ImageNetwork, renamed: Renamed, target: Mapping[str, Tensor]) -> None:
    if isinstance(model, ViT):
        name, grid = "pos_embed", model.position_grid
    elif isinstance(positions := getattr(model, "pos_embed", None), LearnedPositions):
        name, grid = "pos_embed.table", positions.grid
    else:
        return
    resize_learned_positions(renamed, name, target[name], grid)


def _take_fresh_head(
    weights: dict[str, Tensor], target: Mapping[str, Tensor], report: KeyReport, always: bool
) -> None:
    """Decide for weight and bias together: half a head is no head."""
    fits = all(n in weights and weights[n].shape == target[n].shape for n in _HEAD)
    if fits and not always:
        return
    for name in _HEAD:
        old = weights.pop(name, None)
        was = "absent" if old is None else tuple(old.shape)
        report.fresh.append(f"{name} {was} -> {tuple(target[name].shape)}")
        report.missing.append(name)
        report.unexpected += [name] if old is not None else []


def _attention_keys(model: ImageNetwork, names: set[str]) -> set[str]:
    """Of these names, those that belong to an attention core."""
    layers = tuple(f"{n}." for n, m in model.named_modules() if isinstance(m, SelfAttention))
    projections = tuple(f"{layer}{part}." for layer in layers for part in ("qkv", "proj"))
    return {n for n in names if n.startswith(layers) and not n.startswith(projections)}


def _drop_other_shapes(
    weights: dict[str, Tensor], target: Mapping[str, Tensor], owned: set[str], report: KeyReport
) -> None:
    for name in sorted(owned & set(weights) & set(target)):
        if weights[name].shape != target[name].shape:
            del weights[name]
            report.unexpected.append(name)


def _check_attention(model: ImageNetwork, file: WeightFile) -> None:
    cores = {class_path(type(m.core)) for m in model.modules() if isinstance(m, SelfAttention)}
    if file.attention is not None and cores and file.attention not in cores:
        raise WeightsError(
            f"{file.source} was trained with {file.attention}, the model has "
            f"{' and '.join(sorted(cores))}. Build the model with that attention, or set "
            "allow_attention_change=True to go on from these weights with another one."
        )


def _check_keys(
    report: KeyReport,
    weights: Mapping[str, Tensor],
    target: Mapping[str, Tensor],
    owned: set[str],
    allow_attention_change: bool,
) -> None:
    tolerated = {*_HEAD, *(owned if allow_attention_change else ())}
    tolerated |= {name for name in report.missing if name.endswith(_COUNTER)}
    problems = {
        "missing": [n for n in report.missing if n not in tolerated],
        "unexpected": [n for n in report.unexpected if n not in tolerated],
        "other shape": [n for n in report.loaded if weights[n].shape != target[n].shape],
    }
    wrong = {name for names in problems.values() for name in names}
    if not wrong:
        return
    problems["other shape"] = [
        f"{n} {tuple(weights[n].shape)} for {tuple(target[n].shape)}"
        for n in problems["other shape"]
    ]
    listing = "; ".join(f"{title}: {_short(names)}" for title, names in problems.items() if names)
    if wrong <= owned:
        remedy = (
            "These belong to the attention. Build the model with the attention of the weights, or "
            "set allow_attention_change=True: what the new attention lacks starts fresh."
        )
    else:
        remedy = (
            "Only the head may differ. Build the model with the options of the weights "
            "(embed_dim, depth, heads, patch_size, in_chans, lpi, cls_layers, positions, ...)."
        )
    raise WeightsError(f"{report.source} does not fit the model. {listing}. {remedy}")


def _short(names: list[str], limit: int = 6) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
