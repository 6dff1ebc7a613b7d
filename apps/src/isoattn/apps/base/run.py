"""Running an app's command line: build, run, and turn what goes wrong into a status and a line."""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.exceptions import SIGTERMException

from isoattn.apps.base.arguments import Arguments
from isoattn.apps.base.cli import AppCLI
from isoattn.apps.base.errors import UserError, near
from isoattn.apps.base.guard import NonFiniteError
from isoattn.core import UnsupportedAttention
from isoattn.core.training.checkpoint import CheckpointError

DIVERGED = 3
TERMINATED = 143
INTERRUPTED = 130


def run_app(cli: type[AppCLI], argv: list[str], verbs: tuple[str, ...] = ()) -> int:
    """Run one subcommand of an app; returns the exit status.

    Args:
        cli: of the app.
        argv: subcommand first.
        verbs: what the app has beside, for the message about an unknown one.
    """
    known = [*cli.subcommands(), *verbs]
    if argv[0] not in known:
        raise UserError(f"isoattn {cli.app} has no {argv[0]!r}. {near(argv[0], known)}")
    try:
        return execute(cli, argv)
    except CheckpointError as error:
        raise UserError(str(error)) from error
    except UnsupportedAttention as error:
        raise UserError(str(error)) from error
    except MisconfigurationException as error:
        raise UserError(" ".join(str(error).split())) from error


def execute(cli: type[AppCLI], argv: list[str]) -> int:
    """Prepare, build and run a command line; returns the exit status."""
    return run_prepared(cli, cli.prepared(cli.rewrite(argv)))


def run_prepared(cli: type[AppCLI], arguments: Arguments) -> int:
    """Build and run; the outcome of a run that fails is recorded in its folder."""
    try:
        with _process_left_as_it_was():
            cli(arguments)
    except NonFiniteError as error:
        arguments.app.fail("diverged", error)
        sys.stderr.write(f"isoattn: {error}\n")
        return DIVERGED
    except SIGTERMException as error:
        arguments.app.fail("interrupted", error)
        sys.stderr.write(
            f"isoattn: asked to end; saved {arguments.app.run.checkpoints / 'last.ckpt'}\n"
        )
        return TERMINATED
    except KeyboardInterrupt as error:
        return _interrupted(arguments.app, error)
    except SystemExit as error:
        if error.code == 1 and isinstance(error.__context__, KeyboardInterrupt):
            return _interrupted(arguments.app, error.__context__)  # Lightning exits on Ctrl-C
        if isinstance(error.code, int) and error.code:
            arguments.app.fail("interrupted", error)
        return int(error.code or 0)
    except UserError as error:
        arguments.app.fail("failed", error)
        raise
    except Exception as error:
        arguments.app.fail("failed", error)
        if os.environ.get("ISOATTN_DEBUG") or not isinstance(error, cli.user_errors):
            raise
        raise UserError(cli.explain(error)) from error
    return 0


def _interrupted(app: AppCLI, error: BaseException) -> int:
    app.fail("interrupted", error)
    last = app.run.checkpoints / "last.ckpt" if hasattr(app, "run") else None
    saved = last is not None and last.is_file()
    hint = f" Go on with: isoattn {app.app} fit --ckpt_path {last}" if saved else ""
    sys.stderr.write(f"isoattn: interrupted.{hint}\n")
    return INTERRUPTED


@contextmanager
def _process_left_as_it_was() -> Iterator[None]:
    """Undo what Lightning sets for the whole process, so that runs in one process are alike."""
    variables = dict(os.environ)
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        with warnings.catch_warnings():
            yield
    finally:
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
        for name in os.environ.keys() - variables.keys():
            del os.environ[name]
        os.environ.update(variables)
