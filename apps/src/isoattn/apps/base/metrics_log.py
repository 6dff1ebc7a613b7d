"""``metrics.csv``: every logged number, on disk the moment it is known."""

from __future__ import annotations

import csv
import io
import os
import time
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities import rank_zero_only

from isoattn.apps.base.files import write_atomic

_SYNC_SECONDS = 1.0


class MetricsLog(Logger):
    """Writes rows to ``metrics.csv`` in the run folder.

    Each row is flushed at once (a killed process loses none) and synced to the disk at least every
    second (a lost machine loses a second's). A metric that appears later becomes a new column.
    Taking a run up again drops the rows behind the checkpoint, so no step is in the file twice.

    Args:
        folder: the run folder.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.file = folder / "metrics.csv"
        self._columns: list[str] = ["epoch", "step"]
        self._stream: TextIO | None = None
        self._synced = 0.0
        if self.file.is_file():
            rows = read_metrics(self.file)
            for row in rows:
                self._columns += [key for key in row if key not in self._columns]

    @property
    def name(self) -> str:
        """Lightning's name of the logger."""
        return "metrics"

    @property
    def version(self) -> str:
        """Lightning's version of the logger: there is one file."""
        return ""

    @rank_zero_only
    def log_hyperparams(
        self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any
    ) -> None:
        """Nothing: ``config.yaml`` holds them."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Append one row."""
        row = {"step": step, **metrics}
        new = [key for key in row if key not in self._columns]
        if new:
            self._columns += new
            self._rewrite(read_metrics(self.file) if self.file.is_file() else [])
        if self._stream is None:
            if not self.file.is_file():
                self._rewrite([])
            elif not self.file.read_bytes().endswith(b"\n"):  # torn by a kill: not to be added to
                self._rewrite(read_metrics(self.file))
            self._stream = self.file.open("a", newline="", encoding="utf-8")
        self._stream.write(self._lines([row]))
        self._stream.flush()
        if time.monotonic() - self._synced > _SYNC_SECONDS:
            os.fsync(self._stream.fileno())
            self._synced = time.monotonic()

    def keep_before(self, step: int) -> None:
        """Drop the rows of ``step`` (steps count from 0) and after it: they are made again."""
        if self.file.is_file():
            rows = read_metrics(self.file)
            self._rewrite([row for row in rows if int(float(row.get("step") or 0)) < step])

    @rank_zero_only
    def save(self) -> None:
        """Sync to the disk."""
        if self._stream is not None:
            self._stream.flush()
            os.fsync(self._stream.fileno())

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Sync and close."""
        self.save()
        self._close()

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _rewrite(self, rows: list[dict[str, str]]) -> None:
        self._close()
        header = io.StringIO()
        csv.writer(header, lineterminator="\n").writerow(self._columns)
        write_atomic(self.file, header.getvalue() + self._lines(rows))

    def _lines(self, rows: list[Any]) -> str:
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns, restval="", lineterminator="\n")
        writer.writerows(rows)
        return text.getvalue()


def read_metrics(file: Path) -> list[dict[str, str]]:
    """The rows of a ``metrics.csv``, empty cells left out; a torn last line is ignored."""
    text = file.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    reader = csv.DictReader(io.StringIO(whole))
    return [{k: v for k, v in row.items() if k and v not in ("", None)} for row in reader]
