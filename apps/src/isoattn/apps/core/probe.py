"""``isoattn probe``: the meter on synthetic tokens, or on the layers of a trained model."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isoattn.apps.base.checkpoints import read_run_checkpoint
from isoattn.apps.base.errors import UserError
from isoattn.apps.base.run_folder import environment, run_of_checkpoint
from isoattn.apps.core.arguments import (
    Chosen,
    Parser,
    add_shared,
    at_least_one,
    choose,
    import_modules,
    new_folder,
    own_attentions,
)
from isoattn.apps.core.methods import gates
from isoattn.apps.core.progress import Advance, progress
from isoattn.core import UnsupportedAttention
from isoattn.core.meter import Reading, measure
from isoattn.core.training import derive_seed
from isoattn.core.training.checkpoint import CheckpointError

DATA = ("iid", "smooth")

_DESCRIPTION = """\
How far an attention is from exact softmax, and from the mean of all values, at sampled queries.

  isoattn probe Linear
  isoattn probe Linear CosineSoftmax --data iid smooth --std 0.5 1 2 --tokens 256 1024 4096
  isoattn probe all --tokens 512
  isoattn probe --ckpt_path RUN/checkpoints/best.ckpt --batches 2

Synthetic tokens x are q, k and v at once: iid is standard normal, smooth a random walk along the
tokens with every channel scaled to mean 0 and variance 1; q and k are then multiplied by --std. A
checkpoint is run on validation batches of its own data, and every attention in it is measured;
further options go to its app (--data.root FOLDER).

skill is 1 - (error / error of mean pooling)^2: 1 is softmax, 0 no better than the mean. Errors are
standard errors of the sample of queries.
"""


@dataclass(frozen=True)
class Probed:
    """One reading with where it was taken.

    Args:
        label: the attention, or the layer.
        where: what else tells it from others (data, std, batch).
        reading: what the meter says.
    """

    label: str
    where: dict[str, Any]
    reading: Reading


def run_probe(argv: list[str]) -> int:
    """Run ``isoattn probe``; returns the exit status."""
    options, rest = _parser().parse_known_args(argv)
    import_modules(options.imports)
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.ckpt_path is not None:
        if options.attentions:
            raise UserError("Give names of attentions or --ckpt_path, not both.")
        return _probe_checkpoint(options, rest)
    if rest:
        _parser().parse_args(argv)  # names what is wrong
    chosen = _chosen(options)
    folder = new_folder(options.out, "probe", "-".join(options.attentions[:4]))
    total = len(chosen) * len(options.data) * len(options.std) * len(options.tokens)
    with progress(total) as advance:
        probed = _synthetic(chosen, options, advance)
    settings = {k: v for k, v in vars(options).items() if k not in ("out", "ckpt_path", "batches")}
    _finish(probed, {**settings, "environment": environment()}, folder)
    return 0


def _parser() -> Parser:
    parser = Parser("isoattn probe", description=_DESCRIPTION)
    parser.add_argument(
        "attentions", nargs="*", metavar="NAME", help="Name, 'Name(option=value)', JSON, or all"
    )
    parser.add_argument("--ckpt_path", type=Path, help="measure a trained model instead")
    parser.add_argument(
        "--batches", type=at_least_one, default=1, help="validation batches of it (default 1)"
    )
    parser.add_argument(
        "--tokens", nargs="+", type=at_least_one, default=[64, 256, 1024], metavar="N"
    )
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    parser.add_argument("--std", nargs="+", type=float, default=[1.0], help="of q and k")
    parser.add_argument(
        "--queries", type=int, default=64, help="looked at in every head (default 64)"
    )
    add_shared(parser)
    return parser


def _chosen(options: argparse.Namespace) -> list[Chosen]:
    """The attentions, without those of ``all`` that lack the form."""
    if not options.attentions:
        raise UserError("Say what to probe: names of attentions, all, or --ckpt_path FILE.")
    named = options.attentions != ["all"]
    found = []
    for text in options.attentions if named else own_attentions():
        chosen = choose(text)
        try:
            capability = chosen.factory(options.heads, options.head_dim).capability
        except ValueError as error:
            raise UserError(f"{chosen.label}: {error}") from error
        has = capability.causal if options.causal else capability.bidirectional
        if named and not has:
            form = "causal" if options.causal else "bidirectional"
            raise UserError(
                f"{chosen.label} has no {form} form. "
                f"{'Leave out --causal' if options.causal else 'Add --causal'}."
            )
        if has:
            found.append(chosen)
    return found


def synthetic(
    kind: str, std: float, shape: Sequence[int], seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v (B, H, N, D) in float64: std x, std x, x for tokens x that are iid or smooth."""
    generator = torch.Generator().manual_seed(derive_seed(seed, kind, *shape))
    x = torch.randn(*shape, generator=generator, dtype=torch.float64)
    if kind == "smooth" and shape[2] > 1:
        x = x.cumsum(2)
        x = (x - x.mean(2, keepdim=True)) / x.std(2, keepdim=True)
    return std * x, std * x, x


def _synthetic(chosen: list[Chosen], options: argparse.Namespace, advance: Advance) -> list[Probed]:
    probed = []
    dtype = getattr(torch, options.dtype)
    for attention in chosen:
        torch.manual_seed(options.seed)
        module = attention.factory(options.heads, options.head_dim)
        module = module.to(options.device, dtype).eval()
        for kind in options.data:
            for std in options.std:
                for tokens in sorted(set(options.tokens)):
                    shape = (options.batch, options.heads, tokens, options.head_dim)
                    q, k, v = (
                        x.to(options.device, dtype)
                        for x in synthetic(kind, std, shape, options.seed)
                    )
                    try:
                        reading = measure(
                            module,
                            q,
                            k,
                            v,
                            causal=options.causal,
                            queries=options.queries,
                            seed=options.seed,
                            more=gates(module, k),
                        )
                    except (ValueError, UnsupportedAttention) as error:
                        raise UserError(f"{attention.label}, {tokens} tokens: {error}") from error
                    probed.append(Probed(attention.label, {"data": kind, "std": std}, reading))
                    advance(f"{attention.label}, {kind}, {tokens} tokens")
    return probed


def _probe_checkpoint(options: argparse.Namespace, rest: list[str]) -> int:
    try:
        app = read_run_checkpoint(options.ckpt_path)["isoattn"]["app"]
    except CheckpointError as error:
        raise UserError(f"--ckpt_path: {error}") from error
    from isoattn.apps.core.probe_model import probe_model  # Lightning is slow to import

    run = run_of_checkpoint(options.ckpt_path)
    folder = options.out or (run.path / "probe" if run is not None else None)
    folder = new_folder(folder, "probe", options.ckpt_path.stem)
    readings = probe_model(
        app,
        options.ckpt_path,
        folder,
        batches=options.batches,
        queries=options.queries,
        seed=options.seed,
        rest=rest,
    )
    probed = [
        Probed(name, {"batch": number}, reading)
        for number, batch in enumerate(readings)
        for name, reading in batch.items()
    ]
    if not probed:
        raise UserError(f"{options.ckpt_path}: its model called no attention of isoattn.core.")
    settings = {
        "checkpoint": str(options.ckpt_path),
        "batches": options.batches,
        "queries": options.queries,
        "seed": options.seed,
        "environment": environment(),
    }
    _finish(probed, settings, folder)
    return 0


def _finish(probed: list[Probed], settings: dict[str, Any], folder: Path) -> None:
    from isoattn.apps.core.probe_report import print_probe, write_probe  # matplotlib is slow

    write_probe(probed, settings, folder)
    print_probe(probed, folder)
