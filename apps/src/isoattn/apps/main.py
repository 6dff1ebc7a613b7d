"""The ``isoattn`` command."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from isoattn.apps.base.errors import UserError, near

_HELP = """\
usage: isoattn COMMAND ...

Train, swap, ablate and measure the attention of real models, all else equal.

  isoattn vision fit|validate|test|predict    image classifiers (XCiT, ViT)
  isoattn ablate plan|diff|run|report         compare attentions in a registered study
  isoattn bench                               time and memory of attentions over tokens
  isoattn probe NAME | --ckpt_path FILE       how far an attention is from softmax
  isoattn attentions [NAME]                   what there is: equation, forms, cost, source

  isoattn vision fit --config xcit_mnist --model.attention=Softmax
  isoattn ablate run xca_vs_softmax --preset smoke
  isoattn bench --attentions Linear CrossCovariance --tokens 256 1024 4096

Add --help to any of them. Attentions: {attentions}.
"""


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
    if command == "vision":
        if not rest or rest[0] in ("-h", "--help"):
            from isoattn.apps.vision.usage import usage

            sys.stdout.write(usage())
            return 0
        from isoattn.apps.base.run import run_app
        from isoattn.apps.vision.app import VisionCLI

        return run_app(VisionCLI, rest)
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
    known = ("vision", "ablate", "bench", "probe", "attentions")
    raise UserError(f"There is no command {command!r}. {near(command, known)}")


if __name__ == "__main__":
    sys.exit(main())
