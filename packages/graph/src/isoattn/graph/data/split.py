"""Splits of the nodes into train, val and test: functions of labels, options and a seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from isoattn.core.training import derive_seed
from isoattn.graph.task import Kind, Split

SplitKind = Literal["public", "full", "geom-gcn", "random", "stratified", "per_class"]
DRAWN: tuple[SplitKind, ...] = ("random", "stratified", "per_class")


@dataclass(frozen=True)
class SplitOptions:
    """Which split, and its size.

    Args:
        kind: ``public``: the one that comes with the data; ``full`` (Planetoid): its val and test,
            all other nodes train; ``geom-gcn`` (Planetoid): the 48/32/20 files of Geom-GCN;
            ``random``: fractions of all labelled nodes; ``stratified``: fractions of each class;
            ``per_class``: a number of train nodes per class, then val and test from the rest.
        fractions: train, val, test of ``random`` and ``stratified``; 0.5, 0.25, 0.25 if not given.
        per_class: train nodes per class; 20 if not given.
        val, test: numbers of nodes of ``per_class``; 500 and 1000 if not given.
        index: which of several splits: a mask of the file, or the index-th draw of a seed.
        seed: of drawn splits; apart from the seed of training, so that runs share a split.

    Raises:
        ValueError: values out of range, or an option that the kind does not have.
    """

    kind: SplitKind = "public"
    fractions: tuple[float, float, float] | None = None
    per_class: int | None = None
    val: int | None = None
    test: int | None = None
    index: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in get_args(SplitKind):
            raise ValueError(
                f"split kind must be one of {', '.join(get_args(SplitKind))}, got {self.kind!r}"
            )
        if self.fractions is not None:
            if self.kind not in ("random", "stratified"):
                raise ValueError(
                    f"split fractions belong to kind random or stratified, got kind {self.kind}"
                )
            if (
                len(self.fractions) != 3
                or min(self.fractions) < 0
                or sum(self.fractions) > 1 + 1e-9
            ):
                raise ValueError(
                    "split fractions are train, val, test, each 0 or more, together at most 1; got "
                    f"{list(self.fractions)}"
                )
        for name in ("per_class", "val", "test"):
            value = getattr(self, name)
            if value is not None and self.kind != "per_class":
                raise ValueError(f"split {name} belongs to kind per_class, got kind {self.kind}")
            if value is not None and value < (1 if name == "per_class" else 0):
                raise ValueError(f"split {name} is too small: {value}")
        if self.index < 0:
            raise ValueError(f"split index must be 0 or more, got {self.index}")

    def only(self, name: str, *allowed: SplitKind) -> SplitOptions:
        """Itself, if the data called ``name`` know its kind."""
        if self.kind not in (*allowed, *DRAWN):
            raise ValueError(
                f"{name} has no split {self.kind!r}: use {', '.join((*allowed, *DRAWN))}"
            )
        return self

    def single(self, name: str) -> None:
        """Refuse an index where the data have one split of this kind."""
        if self.index:
            raise ValueError(f"{name} has one {self.kind} split: index must be 0, got {self.index}")


def draw_split(y: Tensor, kind: Kind, options: SplitOptions) -> Split:
    """A drawn split of the labelled nodes.

    Args:
        y: labels as in :class:`~isoattn.graph.task.NodeTask`.
        kind: of the labels.
        options: of a drawn kind.

    Returns:
        Node numbers, ascending in each part; a function of y and options alone.

    Raises:
        ValueError: too few nodes, or classes asked of multilabel data.
    """
    if options.kind not in DRAWN:
        raise ValueError(f"{options.kind!r} is no drawn split: use {', '.join(DRAWN)}")
    if kind == "multilabel" and options.kind != "random":
        raise ValueError(f"a {options.kind} split needs one class a node; multilabel: use random")
    seed = derive_seed(options.seed, options.index, "split")
    generator = torch.Generator().manual_seed(seed)
    labelled = (y >= 0) if kind == "multiclass" else ~y.isnan().all(1)
    nodes = labelled.nonzero()[:, 0]
    if options.kind == "per_class":
        return _per_class(y, nodes, options, generator)
    fractions = options.fractions or (0.5, 0.25, 0.25)
    if options.kind == "random":
        return _sorted(_cut(nodes, fractions, generator))
    if not len(nodes):
        raise ValueError("a stratified split needs labelled nodes, got none")
    parts = [_cut(nodes[y[nodes] == c], fractions, generator) for c in torch.unique(y[nodes])]
    return _sorted([torch.cat(pieces) for pieces in zip(*parts, strict=True)])


def _cut(
    nodes: Tensor, fractions: tuple[float, float, float], generator: torch.Generator
) -> list[Tensor]:
    """Train and val rounded down; test is the rest where the fractions sum to one."""
    order = nodes[torch.randperm(len(nodes), generator=generator)]
    train, val, test = (int(fraction * len(nodes) + 1e-9) for fraction in fractions)
    if abs(sum(fractions) - 1) < 1e-9:
        test = len(nodes) - train - val
    return [order[:train], order[train : train + val], order[train + val : train + val + test]]


def _per_class(
    y: Tensor, nodes: Tensor, options: SplitOptions, generator: torch.Generator
) -> Split:
    each = 20 if options.per_class is None else options.per_class
    val = 500 if options.val is None else options.val
    test = 1000 if options.test is None else options.test
    order = nodes[torch.randperm(len(nodes), generator=generator)]
    taken = torch.zeros(len(y), dtype=torch.bool)
    for label in torch.unique(y[nodes]).tolist():
        members = order[y[order] == label]
        if len(members) < each:
            raise ValueError(
                f"class {label} has {len(members)} labelled nodes, per_class asks for {each}: "
                "lower per_class, or use fractions"
            )
        taken[members[:each]] = True
    rest = order[~taken[order]]
    if len(rest) < val + test:
        raise ValueError(
            f"{len(rest)} nodes are left after {int(taken.sum())} train nodes; val={val} and "
            f"test={test} ask for {val + test}: lower them"
        )
    return _sorted([taken.nonzero()[:, 0], rest[:val], rest[val : val + test]])


def _sorted(parts: list[Tensor]) -> Split:
    train, val, test = (part.sort().values for part in parts)
    return Split(train, val, test)


def split_from_masks(train: Tensor, val: Tensor, test: Tensor) -> Split:
    """Three bool (N,) masks as node numbers; an overlap is refused by name."""
    return Split(*(mask.nonzero()[:, 0] for mask in (train, val, test)))
