"""A checkpoint file that is whole or absent, and that knows when it has been damaged.

The file is the zip archive that ``torch.save`` writes; its zip comment holds the SHA-256 of the
archive. ``torch.load`` and Lightning read it as usual, :func:`read_checkpoint` verifies it first.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pickle
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

_MARK = b"isoattn-sha256:"
_COMMENT = len(_MARK) + 64
_PARTIAL = ".partial"


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be trusted; names the file, the reason and the remedy."""

    def __init__(self, path: Path, reason: str, remedy: str = "") -> None:
        super().__init__(f"{path}: {reason}." + (f" {remedy}" if remedy else ""))
        self.path = path
        self.reason = reason


def write_checkpoint(
    content: Mapping[str, Any], path: Path, *, previous: Path | None = None
) -> str:
    """Write a checkpoint so that the file is the old one or the new one, whatever happens.

    A temporary file beside the target is filled, synced and renamed; ``TMPDIR`` plays no part.

    Args:
        content: what ``torch.save`` can store and ``weights_only=True`` can load.
        path: the target.
        previous: where an existing target is kept as the last good one.

    Returns:
        the SHA-256 of the archive, as hex.
    """
    buffer = io.BytesIO()
    torch.save(dict(content), buffer)
    archive = buffer.getvalue()
    digest = hashlib.sha256(archive).hexdigest()
    comment = _MARK + digest.encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}{_PARTIAL}")
    try:
        with partial.open("wb") as file:
            file.write(archive[:-2])
            file.write(len(comment).to_bytes(2, "little"))
            file.write(comment)
            file.flush()
            os.fsync(file.fileno())
        if previous is not None and path.exists():
            _keep(path, previous)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)
    return digest


def read_checkpoint(path: Path, *, require_checksum: bool = True) -> dict[str, Any]:
    """Read and verify a checkpoint; nothing in it is executed (``weights_only=True``).

    Args:
        path: the file.
        require_checksum: False accepts files that other programs wrote, which have no checksum.

    Raises:
        CheckpointError: missing, truncated, altered, no checkpoint at all, or holding code.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(path, f"cannot be read ({error.strerror})") from error
    archive = _verified_archive(data)
    if archive is None:
        if _MARK in data[-4096:]:
            raise CheckpointError(path, "is damaged: its bytes do not match their checksum")
        if not data.startswith(b"PK"):
            raise CheckpointError(path, "is no checkpoint, or is damaged at its start")
        if require_checksum:
            raise CheckpointError(path, "has no checksum: it is damaged or not written by isoattn")
        archive = data
    try:
        content = torch.load(io.BytesIO(archive), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(path, "holds objects that are not plain data; refused") from error
    except (RuntimeError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise CheckpointError(path, f"is damaged ({str(error).splitlines()[0]})") from error
    if not isinstance(content, dict):
        raise CheckpointError(path, f"holds a {type(content).__name__}, not a checkpoint")
    return content


def is_valid(path: Path) -> bool:
    """Whether the file is there and matches its checksum."""
    try:
        return _verified_archive(path.read_bytes()) is not None
    except OSError:
        return False


def remove_partial_files(folder: Path) -> list[Path]:
    """Remove what writers that were killed left in ``folder``; returns what was removed.

    A file is a leftover when the process whose id is in its name no longer runs.
    """
    removed = []
    for file in folder.glob(f".*{_PARTIAL}"):
        pid = file.name.removesuffix(_PARTIAL).rsplit(".", 1)[-1]
        if pid.isdigit() and int(pid) != os.getpid() and _runs(int(pid)):
            continue
        with contextlib.suppress(FileNotFoundError):
            file.unlink()
            removed.append(file)
    return removed


def _verified_archive(data: bytes) -> bytes | None:
    comment = data[-_COMMENT:]
    if not comment.startswith(_MARK):
        return None
    archive = data[: -_COMMENT - 2] + b"\0\0"
    length = int.from_bytes(data[-_COMMENT - 2 : -_COMMENT], "little")
    digest = hashlib.sha256(archive).hexdigest().encode()
    return archive if length == _COMMENT and comment[len(_MARK) :] == digest else None


def _keep(path: Path, previous: Path) -> None:
    """Give ``path`` the second name ``previous`` without a moment in which either is missing."""
    link = previous.with_name(f".{previous.name}.{os.getpid()}{_PARTIAL}")
    link.unlink(missing_ok=True)
    try:
        link.hardlink_to(path)
    except OSError:  # a file system without hard links
        shutil.copyfile(path, link)
    link.replace(previous)
    link.unlink(missing_ok=True)  # rename does nothing where both names are one file already


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # not every file system lets a folder be opened
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
