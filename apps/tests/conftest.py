"""Running the command in this process, and finished runs that many tests read."""

import contextlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

# Read when torch is first imported: more threads than cores would be many times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")

DIGITS = ("--config", "xcit_digits")
QUICK = (
    *DIGITS,
    "--trainer.max_epochs=1",
    "--trainer.limit_train_batches=2",
    "--trainer.limit_val_batches=1",
)


@dataclass
class Outcome:
    """What a command came to."""

    code: int
    out: str
    err: str

    @property
    def short(self) -> bool:
        """Whether the error is one a user can read: under ten lines and no traceback."""
        return "Traceback" not in self.err and 0 < len(self.err.splitlines()) < 10


def run_command(*argv: str) -> Outcome:
    from isoattn.apps.main import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(argv))
    return Outcome(code, out.getvalue(), err.getvalue())


Command = Callable[..., Outcome]


@pytest.fixture(autouse=False)
def no_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No W&B account, whatever the machine has."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, no_key: None) -> Command:
    """``isoattn vision ARGUMENTS`` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *argv: run_command("vision", *argv)


@pytest.fixture
def fit(command: Command) -> Command:
    """A quick ``isoattn vision fit``: two steps on digits."""
    return lambda *argv: command("fit", *QUICK, *argv)


@pytest.fixture(scope="session")
def xca_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished one-epoch run with XCA. Not to be changed."""
    root = tmp_path_factory.mktemp("finished")
    result = run_command(
        "vision",
        "fit",
        *DIGITS,
        "--trainer.max_epochs=1",
        "--tracker=none",
        f"--run.root={root}",
        "--run.name=xca",
    )
    assert result.code == 0, result.err
    return root / "vision" / "xca"


@pytest.fixture(scope="session")
def start_process() -> Callable[..., subprocess.Popen[str]]:
    """The command as a process of its own, for tests in which it has to die."""

    def start(*argv: str, cwd: Path, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "isoattn.apps.main", *argv],
            cwd=cwd,
            env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=answer_ctrl_c,
        )

    return start


def answer_ctrl_c() -> None:
    """In a process to be: heed SIGINT, which what is started in the background ignores."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
