"""Weights of NodeFormer: the authors' names, and loading between arms with a report.

All projections are in the layers, not in the attention, so every arm has the same parameters. What
an attention adds are buffers under ``layers.<i>.core.``: GumbelFavor its random rows
``projection.rows`` with the stream they come from, and, as GumbelSoftmax, ``stream`` of the noise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from isoattn.graph.models.network import NodeNetwork

_PUBLISHED = (
    (r"fcs\.0\.(weight|bias)", r"input.\1"),
    (r"fcs\.1\.(weight|bias)", r"output.\1"),
    (r"bns\.(\d+)\.(weight|bias)", r"norms.\1.\2"),
    (r"convs\.(\d+)\.b", r"layers.\1.relational.gate"),
    (r"convs\.(\d+)\.Wq\.(weight|bias)", r"layers.\1.q.\2"),
    (r"convs\.(\d+)\.Wk\.(weight|bias)", r"layers.\1.k.\2"),
    (r"convs\.(\d+)\.Wv\.(weight|bias)", r"layers.\1.v.\2"),
    (r"convs\.(\d+)\.Wo\.(weight|bias)", r"layers.\1.out.\2"),
)
_CORE = re.compile(r"layers\.\d+\.core\.")


class WeightsError(ValueError):
    """Weights that do not fit; says which names, and what to do."""


@dataclass(frozen=True)
class KeyReport:
    """What a load did, by the network's names.

    Args:
        loaded: copied.
        fresh: buffers of the attention that the weights lack: left as they were.
        unused: buffers of another attention that the network lacks.
    """

    loaded: tuple[str, ...]
    fresh: tuple[str, ...]
    unused: tuple[str, ...]


def from_published(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names of qitianwu/NodeFormer (``fcs``, ``bns``, ``convs``) -> ours; others stay."""
    return {_renamed(name): tensor for name, tensor in weights.items()}


def load_weights(
    network: NodeNetwork, weights: Mapping[str, Tensor], *, strict: bool = True
) -> KeyReport:
    """Load a state dict of ours, of a checkpoint or of the authors; all of it or nothing.

    Args:
        network: built with the options of the weights.
        weights: by name.
        strict: False: the weights may be those of another attention; its buffers are left over and
            those of the network's attention stay as they are. Parameters always have to fit.

    Returns:
        What was loaded and what was not.

    Raises:
        WeightsError: names or shapes that do not fit; lists them and says what to do.
    """
    given = from_published({n.removeprefix("network."): x for n, x in weights.items()})
    target = network.state_dict()
    missing = [name for name in target if name not in given]
    extra = [name for name in given if name not in target]
    if not strict:  # another number of features or heads of a projection is another attention
        for name in [n for n in target if n in given and _CORE.match(n)]:
            if given[name].shape != target[name].shape:
                missing.append(name)
                extra.append(name)
    shared = [name for name in target if name in given and name not in missing]
    tolerated = [name for name in (*missing, *extra) if not strict and _CORE.match(name)]
    problems = {
        "missing": [n for n in missing if n not in tolerated],
        "unexpected": [n for n in extra if n not in tolerated],
        "other shape": [
            f"{n} {tuple(given[n].shape)} for {tuple(target[n].shape)}"
            for n in shared
            if given[n].shape != target[n].shape
        ],
    }
    if any(problems.values()):
        raise WeightsError(_complaint(problems))
    network.load_state_dict({name: given[name] for name in shared}, strict=False)
    return KeyReport(tuple(shared), tuple(missing), tuple(extra))


def _complaint(problems: Mapping[str, list[str]]) -> str:
    listing = "; ".join(f"{t}: {_short(names)}" for t, names in problems.items() if names)
    names = [n for names in problems.values() for n in names]
    if all(_CORE.match(n) for n in names):
        remedy = (
            "These are buffers of the attention: build the network with the attention of the "
            "weights, or load with strict=False to go on with another one"
        )
    else:
        remedy = (
            "Build the network with the options of the weights (hidden, layers, heads, jk, norm, "
            "relational_order, in_dim, out_dim)"
        )
    return f"The weights do not fit the network. {listing}. {remedy}."


def _renamed(name: str) -> str:
    for pattern, ours in _PUBLISHED:
        if re.fullmatch(pattern, name):
            return re.sub(pattern, ours, name)
    return name


def _short(names: list[str], limit: int = 6) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
