"""The ``isoattn`` command."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from isoattn.apps.base.errors import UserError, near

_HELP = """\
usage: isoattn COMMAND ...

Train, swap, ablate and measure the attention of real models, all else equal.

  isoattn vision fit|validate|test|predict    image classifiers (XCiT, ViT)
  isoattn graph fit|test|predict|inspect|...  node classifiers (NodeFormer, GCN)
  isoattn matching fit|test|predict|match     matchers of image pairs (LoFTR)
  isoattn wsi demo|fit|test|heatmap|...       slide classifiers (TransMIL), slides to heat maps
  isoattn ablate plan|diff|run|report|cost    compare attentions in a registered study
  isoattn bench                               time and memory of attentions over tokens
  isoattn probe NAME | --ckpt_path FILE       how far an attention is from softmax
  isoattn attentions [NAME]                   what there is: equation, forms, cost, source

  isoattn vision fit --config xcit_mnist --model.attention=Softmax
  isoattn ablate run xca_vs_softmax --preset smoke
  isoattn bench --attentions Linear CrossCovariance --tokens 256 1024 4096

Add --help to any of them. Attentions: {attentions}.
"""


_APPS = {
    "vision": "isoattn.apps.vision.app:VisionCLI",
    "graph": "isoattn.apps.graph.app:GraphCLI",
    "matching": "isoattn.apps.matching.app:MatchingCLI",
    "wsi": "isoattn.apps.wsi.app:WsiCLI",
}
_VERBS = {
    "graph": {
        "inspect": "isoattn.apps.graph.inspect:run_inspect",
        "latent-graph": "isoattn.apps.graph.latent_graph:run_latent_graph",
    },
    "matching": {
        "match": "isoattn.apps.matching.match:run_match",
        "profile": "isoattn.apps.matching.profile:run_profile",
    },
    "wsi": {
        "synthesize": "isoattn.apps.wsi.synthesize:run_synthesize",
        "tile": "isoattn.apps.wsi.tile:run_tile",
        "encode": "isoattn.apps.wsi.encode:run_encode",
        "heatmap": "isoattn.apps.wsi.heatmap:run_heatmap",
        "demo": "isoattn.apps.wsi.demo:run_demo",
    },
}
"""Verbs of an app beside fit, validate, test and predict."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status.

    0 done, 1 failed, 2 bad command line or input, 3 a non-finite value, 130 interrupted,
    143 asked to end.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(arguments)
    except UserError as error:
        sys.stderr.write(f"isoattn: {error}\n")
        return error.code
    except KeyboardInterrupt:
        sys.stderr.write("isoattn: interrupted\n")
        return 128 + signal.SIGINT
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        from isoattn.core import attentions

        sys.stdout.write(_HELP.format(attentions=", ".join(attentions())))
        return 0
    command, rest = argv[0], argv[1:]
    if command == "--version":
        from importlib.metadata import version

        sys.stdout.write(f"isoattn {version('isoattn')}\n")
        return 0
    if command in _APPS:
        return _run_app(command, rest)
    if command == "ablate":
        from isoattn.ablate.command import run_ablate

        return run_ablate(rest)
    if command == "bench":
        from isoattn.apps.core.bench import run_bench

        return run_bench(rest)
    if command == "probe":
        from isoattn.apps.core.probe import run_probe

        return run_probe(rest)
    if command == "attentions":
        from isoattn.apps.core.attention_table import run_attentions

        return run_attentions(rest)
    known = (*_APPS, "ablate", "bench", "probe", "attentions")
    raise UserError(f"There is no command {command!r}. {near(command, known)}")


def _run_app(app: str, argv: list[str]) -> int:
    """A subcommand of an app: a verb of its own, or one of the four that all have."""
    if not argv or argv[0] in ("-h", "--help"):
        usage: Callable[[], str] = _load(f"isoattn.apps.{app}.usage:usage")
        sys.stdout.write(usage())
        return 0
    verbs = _VERBS.get(app, {})
    if argv[0] in verbs:
        verb: Callable[[list[str]], int] = _load(verbs[argv[0]])
        return verb(argv[1:])
    from isoattn.apps.base.run import run_app

    return run_app(_load(_APPS[app]), argv, tuple(verbs))


def _load(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


if __name__ == "__main__":
    sys.exit(main())
