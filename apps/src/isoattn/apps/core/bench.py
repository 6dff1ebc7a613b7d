"""``isoattn bench``: time and memory of attentions over the number of tokens."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Literal

import torch

from isoattn.apps.base.errors import UserError, near
from isoattn.apps.base.run_folder import environment
from isoattn.apps.core.arguments import (
    Chosen,
    Parser,
    add_shared,
    at_least_one,
    choose,
    import_modules,
    new_folder,
    own_attentions,
    own_mixers,
)
from isoattn.apps.core.bench_records import BASELINE, Bench, Row
from isoattn.apps.core.memory import ChildDiedError, peak_bytes
from isoattn.apps.core.methods import PEERS, Method, Run, Sizes
from isoattn.apps.core.progress import Advance, progress
from isoattn.apps.core.timing import (
    Timed,
    forward_only,
    machine_peaks,
    one_round,
    spread,
    train_step,
    warm_up,
)
from isoattn.core import Capability, UnsupportedAttention
from isoattn.core.factories import build_factory
from isoattn.core.mixers import Mixer

MATH = Method(
    "Softmax(path='math')",
    "attention",
    {"class_path": "isoattn.core.Softmax", "init_args": {"path": "math"}},
)

_DESCRIPTION = """\
Time, memory, FLOPs and crossover of attentions against fused softmax, in one run.

  isoattn bench
  isoattn bench --attentions Linear "Linear(feature_map=relu)" --tokens 256 1024 4096
  isoattn bench --layers --dim 256 --heads 4 --head_dim 64
  isoattn bench --causal --peers none

Rounds are interleaved (A B C A B C), so that a slow moment of the machine hits all; a time is the
median of the rounds, a ratio to Softmax the median of the ratios of each round. Memory is the peak
of a process of its own above its inputs. An operator gets q, k, v as views of one projection.
"""


def run_bench(argv: list[str]) -> int:
    """Run ``isoattn bench``; returns the exit status."""
    options = _parser().parse_args(argv)
    import_modules(options.imports)
    sizes = _sizes(options)
    if options.threads:
        torch.set_num_threads(options.threads)
    methods, absent = _methods(options)
    folder = new_folder(options.out, "bench", _folder_name(options))
    steps = len(set(options.tokens)) * len(methods) * (1 if options.no_memory else 3)
    with progress(steps) as advance:
        bench = measure(methods, sizes, options, advance)
    bench.absent = absent
    from isoattn.apps.core.bench_report import print_bench, write_bench  # matplotlib is slow

    write_bench(bench, folder)
    print_bench(bench, folder)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser("isoattn bench", description=_DESCRIPTION)
    parser.add_argument(
        "--attentions",
        nargs="+",
        metavar="NAME",
        help="Name, 'Name(option=value)' or JSON; default: all of isoattn.core that have the form",
    )
    parser.add_argument(
        "--tokens",
        nargs="+",
        type=at_least_one,
        default=[256, 512, 1024, 2048, 4096],
        metavar="N",
        help="default 256 512 1024 2048 4096",
    )
    parser.add_argument("--layers", action="store_true", help="whole layers, mixers too")
    parser.add_argument(
        "--dim", type=at_least_one, help="channels of a layer; default heads x head_dim"
    )
    parser.add_argument(
        "--peers",
        nargs="+",
        default=["all"],
        metavar="PACKAGE",
        help=f"all (default), none, or some of {', '.join(PEERS)}",
    )
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="which time is shown and compared; cpu is the processor time of the process, "
        "steadier on a busy machine (both are recorded)",
    )
    parser.add_argument("--rounds", type=at_least_one, default=7, help="default 7")
    parser.add_argument(
        "--max_seconds",
        type=float,
        default=20.0,
        help="of all rounds of one method at one N (default 20): fewer rounds where it is slow, "
        "none where one call is expected to take longer",
    )
    parser.add_argument(
        "--max_memory", type=float, default=4.0, help="GiB a call may keep (default 4)"
    )
    parser.add_argument("--no_memory", action="store_true", help="leave out the memory")
    add_shared(parser)
    return parser


def _sizes(options: argparse.Namespace) -> Sizes:
    if options.clock == "cpu" and options.device != "cpu":
        raise UserError("--clock cpu says nothing of a device that works on its own: use wall.")
    if options.dim and not options.layers:
        raise UserError("--dim is the width of a whole layer: give --layers with it.")
    try:
        torch.empty(0, device=options.device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"--device {options.device}: {reason}") from error
    return Sizes(
        max(options.tokens),
        options.heads,
        options.head_dim,
        options.batch,
        options.causal,
        options.dtype,
        options.device,
        (options.dim or options.heads * options.head_dim) if options.layers else None,
        options.seed,
    )


def _methods(options: argparse.Namespace) -> tuple[list[Method], list[str]]:
    """Softmax first, then what was asked for, then peers; also what is not there, and why."""
    methods, absent = _own_methods(options)
    for name in _peer_names(options.peers):
        peer = PEERS[name]
        found = peer.method(name)
        if found is None:
            absent.append(f"{name} ({peer.what}): not installed")
        elif options.causal and not peer.causal:
            absent.append(f"{name} ({peer.what}): has no causal form")
        else:
            methods.append(found)
    return methods, absent


def _own_methods(options: argparse.Namespace) -> tuple[list[Method], list[str]]:
    named = options.attentions is not None
    every = own_attentions() + (own_mixers() if options.layers else [])
    asked = [choose(text, mixers=options.layers) for text in options.attentions or every]
    methods = [BASELINE] + ([] if named else [MATH])
    absent: list[str] = []
    for chosen in asked:
        try:
            capability = _capability(chosen, options)
        except ValueError as error:
            if named:
                raise UserError(f"{chosen.label}: {error}") from error
            absent.append(f"{chosen.label}: {error}")
            continue
        has = capability.causal if options.causal else capability.bidirectional
        form = "causal" if options.causal else "bidirectional"
        if not has and named:
            raise UserError(
                f"{chosen.label} has no {form} form. Leave it out, or "
                f"{'leave out --causal' if options.causal else 'add --causal'}."
            )
        if has and chosen.label != BASELINE.label:
            kind: Literal["attention", "mixer"] = "mixer" if chosen.mixer else "attention"
            methods.append(Method(chosen.label, kind, chosen.spec))
    return methods, absent


def _capability(chosen: Chosen, options: argparse.Namespace) -> Capability:
    """What it can do with the options it was given.

    Raises:
        ValueError: sizes or an option it refuses.
    """
    if chosen.mixer:
        width = options.dim or options.heads * options.head_dim
        mixer: Mixer = build_factory(chosen.spec, Mixer, "mixer", 1)(width)
        return mixer.capability
    return chosen.factory(options.heads, options.head_dim).capability


def _peer_names(asked: Sequence[str]) -> list[str]:
    if list(asked) in (["all"], ["none"]):
        return list(PEERS) if asked[0] == "all" else []
    for name in asked:
        if name not in PEERS:
            hint = near(name, [*PEERS, "all", "none"])
            raise UserError(f"--peers: there is no peer {name!r}. {hint}")
    return list(asked)


def _folder_name(options: argparse.Namespace) -> str:
    what = f"layers-{options.dim or options.heads * options.head_dim}" if options.layers else "ops"
    form = "-causal" if options.causal else ""
    return f"{what}-h{options.heads}-d{options.head_dim}{form}-{options.dtype}"


def measure(
    methods: list[Method], sizes: Sizes, options: argparse.Namespace, advance: Advance
) -> Bench:
    """Time every method at every number of tokens, then its memory."""
    warm_up()
    tokens = sorted(set(options.tokens))
    settings = {
        **{k: v for k, v in asdict(sizes).items() if k != "tokens"},
        "tokens": tokens,
        "rounds": options.rounds,
        "clock": options.clock,
        "threads": torch.get_num_threads(),
        "warmed_with": "gelu(tanh), before which float32 exponentials can be slower",
        "environment": environment(),
    }
    bench = Bench(sizes, tokens, settings, machine_peaks(sizes))
    for count in tokens:
        here = sizes.at(count)
        rows = [Row(m.label, m.kind, m.version, count) for m in methods]
        _time(methods, rows, here, bench, options, advance)
        for method, row in zip(methods, rows, strict=True):
            if not options.no_memory:
                _weigh(method, row, here, options, advance)
        bench.rows += rows
    return bench


def _time(
    methods: list[Method],
    rows: list[Row],
    sizes: Sizes,
    bench: Bench,
    options: argparse.Namespace,
    advance: Advance,
) -> None:
    """Fill in times, and ratios to the first method, round by round."""
    x = sizes.x()
    runs: dict[str, Run] = {}
    for method, row in zip(methods, rows, strict=True):
        _closed_forms(method, row, sizes, bench)
        try:
            row.note = _too_large(row, bench, options)
            if row.note:
                continue
            run = method.build(sizes)
            # The first call pays for what the later ones find ready.
            forward_only(run, x)
            train_step(run, x)
        except (ValueError, UnsupportedAttention, RuntimeError, ImportError) as error:
            row.note = str(error).splitlines()[0]
            continue
        runs[method.label] = run
    timed = {label: Timed() for label in runs}
    for number in range(options.rounds):
        for label, run in runs.items():
            spent = timed[label].spent()
            if spent + spent / max(1, number) <= options.max_seconds:
                one_round(run, x, sizes.device, timed[label])
    base = timed.get(methods[0].label)
    for row in rows:
        if row.method in timed:
            _fill(row, timed[row.method], base, options.clock)
        advance(f"{row.method}, {row.tokens} tokens")


def _fill(row: Row, timed: Timed, base: Timed | None, clock: str) -> None:
    row.rounds = len(timed.of("forward", clock))
    for part in ("forward", "train"):
        values = timed.of(part, clock)
        setattr(row, part, statistics.median(values))
        setattr(row, f"{part}_iqr", spread(values))
        setattr(row, f"{part}_wall", statistics.median(timed.of(part, "wall")))
        setattr(row, f"{part}_cpu", statistics.median(timed.of(part, "cpu")))
        if base is not None:
            pairs = zip(values, base.of(part, clock), strict=False)
            setattr(row, f"{part}_ratio", statistics.median(ours / its for ours, its in pairs))


def _closed_forms(method: Method, row: Row, sizes: Sizes, bench: Bench) -> None:
    try:
        cost = method.cost(sizes)
    except (ValueError, UnsupportedAttention):
        return
    if cost is None:
        return
    row.forward_flops, row.train_flops = cost.forward_flops, cost.flops
    row.forward_min_bytes, row.saved_bytes = cost.min_bytes, cost.saved_bytes
    row.forward_bound = bench.peaks.bound(cost.forward_flops, cost.min_bytes)
    row.train_bound = bench.peaks.bound(cost.flops, 2 * cost.min_bytes)


def _too_large(row: Row, bench: Bench, options: argparse.Namespace) -> str:
    """Why this call is not made: expected to take too long, or to keep too much."""
    before = [r for r in bench.of(row.method) if r.train is not None]
    earlier = [r for r in bench.of(row.method) if r.note.startswith("left out")]
    if before and before[-1].train is not None:
        last = before[-1]
        growth = row.tokens / last.tokens
        if row.train_flops and last.train_flops:
            growth = row.train_flops / last.train_flops
        expected = growth * (last.train or 0.0)
        if expected > options.max_seconds:
            return (
                f"left out: about {expected:.0f} s expected, --max_seconds {options.max_seconds:g}"
            )
    if earlier:
        return earlier[-1].note
    if (row.saved_bytes or 0) > options.max_memory * 2**30:
        kept = (row.saved_bytes or 0) / 2**30
        return f"left out: would keep {kept:.1f} GiB, --max_memory {options.max_memory:g}"
    return ""


def _weigh(
    method: Method, row: Row, sizes: Sizes, options: argparse.Namespace, advance: Advance
) -> None:
    for part in ("forward", "train"):
        if row.train is not None:
            try:
                peak = peak_bytes(
                    method,
                    sizes,
                    train=part == "train",
                    threads=torch.get_num_threads(),
                    imports=options.imports,
                )
                setattr(row, f"{part}_peak", peak)
            except ChildDiedError as error:
                row.note = f"memory: {error}"
        advance(f"{row.method}, {row.tokens} tokens, memory")
