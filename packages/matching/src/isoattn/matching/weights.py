"""Loading weights into a matcher: published LoFTR checkpoints, kornia's, our own; local files.

A published file holds its tensors under ``state_dict`` with the prefix ``matcher.``; kornia's
model has the same names without it, ours lie under ``network.``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from torch import Tensor

from isoattn.core import Attention
from isoattn.core.training.checkpoint import read_checkpoint
from isoattn.matching.models.matcher import Matcher
from isoattn.matching.models.positions import PositionEncoding

_COUNTER = ".num_batches_tracked"
_TABLE = "pos_encoding.pe"
_FINE = ("backbone.layer1_outconv", "backbone.layer2_outconv", "fine_preprocess.", "loftr_fine.")


class WeightsError(ValueError):
    """Weights that cannot be loaded; says which names, and what to do."""


@dataclass(frozen=True)
class KeyReport:
    """What a load did, by the matcher's names.

    Args:
        loaded: copied.
        fresh: entries of the attention that the weights lack: left as they were.
        unused: in the weights, not taken: the fine part for a matcher without one, entries of
            another attention.
        sha256: of the file; ``None`` for weights from memory.
        source: the file's name.
    """

    loaded: tuple[str, ...]
    fresh: tuple[str, ...]
    unused: tuple[str, ...]
    sha256: str | None = None
    source: str = "state dict"

    def __str__(self) -> str:
        lines = [f"loaded {len(self.loaded)} tensors from {self.source}"]
        if self.sha256 is not None:
            lines.append(f"  sha256  {self.sha256}")
        lines += [
            f"  {title:<7} {_short(names)}"
            for title, names in (("fresh", self.fresh), ("unused", self.unused))
            if names
        ]
        return "\n".join(lines)


@dataclass(frozen=True)
class _File:
    weights: dict[str, Tensor]
    source: str
    sha256: str | None = None
    pe: str | None = None


def load_weights(
    matcher: Matcher,
    source: str | Path | Mapping[str, Any],
    *,
    pe: PositionEncoding | None = None,
    allow_attention_change: bool = False,
) -> KeyReport:
    """Load weights; nothing is changed unless all of it fits, and nothing in a file is executed.

    Every attention has the same parameters in the projections around it, so the published weights
    load into a matcher of any attention.

    Args:
        matcher: built with the options of the weights.
        source: a ``*.ckpt`` or ``*.safetensors`` file, or a dict of tensors.
        pe: the position encoding that the weights were trained with. A published file does not
            say it: ``"fixed"`` for indoor_ds_new, ``"released"`` for outdoor_ds, indoor_ds and
            both ``_ot``. A checkpoint of ours does, so it may be left out there.
        allow_attention_change: leave entries of another attention over, and those of the matcher's
            own as they are.

    Returns:
        What was loaded and what was not; print it.

    Raises:
        WeightsError: names or shapes that do not fit, or a position encoding that is unknown or
            not the matcher's; says what to do.
        CheckpointError: a file that is missing, damaged, or holds code.

    Example:
        >>> model = make_matcher("loftr", Linear, pe="released")
        >>> print(load_weights(model, "outdoor_ds.ckpt", pe="released"))
        loaded 211 tensors from outdoor_ds.ckpt
          ...
    """
    file = _read(source)
    _check_positions(matcher, file, pe)
    target = matcher.state_dict()
    given = file.weights
    of_core = _core_names(matcher, {*target, *given})
    fits = {n for n in target if n in given and given[n].shape == target[n].shape}
    missing = [n for n in target if n not in given and not n.endswith(_COUNTER)]
    extra = [n for n in given if n not in target]
    reshaped = [n for n in target if n in given and n not in fits]
    allowed = set(of_core) if allow_attention_change else set()
    if not matcher.has_fine:
        allowed |= {name for name in extra if name.startswith(_FINE)}
    problems = {
        "missing": [n for n in missing if n not in allowed],
        "unexpected": [n for n in extra if n not in allowed],
        "other shape": [
            f"{n} {tuple(given[n].shape)} for {tuple(target[n].shape)}"
            for n in reshaped
            if n not in allowed
        ],
    }
    if any(problems.values()):
        raise WeightsError(_complaint(file.source, problems, of_core))
    loaded = [n for n in target if n in fits]
    matcher.load_state_dict({name: given[name] for name in loaded}, strict=False)
    fresh, unused = (*missing, *reshaped), (*extra, *reshaped)
    return KeyReport(tuple(loaded), fresh, unused, file.sha256, file.source)


def _read(source: str | Path | Mapping[str, Any]) -> _File:
    if isinstance(source, Mapping):
        return _unwrapped(source, "state dict", None)
    path = Path(source)
    if path.suffix != ".safetensors":
        content: Mapping[str, Any] = read_checkpoint(path, require_checksum=False)
        return _unwrapped(content, path.name, hashlib.sha256(path.read_bytes()).hexdigest())
    try:
        data = path.read_bytes()
        content = load_safetensors(data)
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{path.name} cannot be read as safetensors: {error}") from error
    return _unwrapped(content, path.name, hashlib.sha256(data).hexdigest())


def _unwrapped(content: Mapping[str, Any], source: str, sha256: str | None) -> _File:
    pe = None
    if "state_dict" in content:
        network = (content.get("hyper_parameters") or {}).get("network") or {}
        if network:
            pe = (network.get("init_args") or {}).get("pe", "fixed")
        content = content["state_dict"]
    found: dict[str, Tensor] = {}
    for name, tensor in content.items():
        if not isinstance(tensor, Tensor):
            raise WeightsError(
                f"{source} holds {name!r}, a {type(tensor).__name__}, where tensors are expected: "
                "give a state dict, or a file with one under 'state_dict'"
            )
        name = name.removeprefix("matcher.").removeprefix("network.")
        if name != _TABLE:  # a function of the grid, which some files carry along
            found[name] = tensor
    if not found:
        raise WeightsError(f"{source} holds no tensors")
    return _File(found, source, sha256, pe)


def _check_positions(matcher: Matcher, file: _File, pe: PositionEncoding | None) -> None:
    known = file.pe or pe
    if known is None:
        raise WeightsError(
            f"{file.source} does not say which position encoding it was trained with, and with the "
            "wrong one it loads without error and matches badly. Give pe='fixed' (indoor_ds_new) "
            "or pe='released' (outdoor_ds, indoor_ds, outdoor_ot, indoor_ot)."
        )
    if pe is not None and pe != known:
        raise WeightsError(f"{file.source} was trained with pe={known!r}, but pe={pe!r} is given")
    if matcher.pe != known:
        raise WeightsError(
            f"{file.source} was trained with pe={known!r}, the matcher has pe={matcher.pe!r}: "
            f"build it with pe={known!r}"
        )


def _core_names(matcher: Matcher, names: set[str]) -> set[str]:
    """Of these names, those that belong to an attention."""
    cores = tuple(f"{n}." for n, m in matcher.named_modules() if isinstance(m, Attention))
    return {name for name in names if name.startswith(cores)}


def _complaint(source: str, problems: Mapping[str, list[str]], of_core: set[str]) -> str:
    listing = "; ".join(f"{title}: {_short(names)}" for title, names in problems.items() if names)
    wrong = {name.split(" ")[0] for names in problems.values() for name in names}
    if wrong <= of_core:
        remedy = (
            "These belong to the attention: build the matcher with that of the weights, or set "
            "allow_attention_change=True to go on with another one"
        )
    elif any(name.startswith("coarse_matching.") for name in wrong):
        remedy = "The match kind differs: build the matcher with match='sinkhorn' for _ot weights"
    else:
        remedy = (
            "Build the matcher with the options of the weights (backbone, widths, layers, fine, "
            "match)"
        )
    return f"{source} does not fit the matcher. {listing}. {remedy}."


def _short(names: tuple[str, ...] | list[str], limit: int = 6) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
