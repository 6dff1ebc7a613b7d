"""Files that are whole or absent, however long it takes to fill them."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_SUFFIX = ".partial"


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A path beside ``path`` to write to; renamed when the block ends well, removed when it fails.

    The temporary name tells machine and process, so that two of them never share one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}{_SUFFIX}")
    try:
        yield partial
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def remove_stale(folder: Path) -> int:
    """Remove what processes of this machine that are gone have left behind; returns how many."""
    removed = 0
    for partial in folder.glob(f".*.{platform.node()}.*{_SUFFIX}"):
        number = partial.name.removesuffix(_SUFFIX).rsplit(".", 1)[-1]
        if number.isdigit() and not _alive(int(number)):
            partial.unlink(missing_ok=True)
            removed += 1
    return removed


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
