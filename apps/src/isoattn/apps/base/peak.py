"""The peak of the resident memory of this process, and starting its count anew."""

from __future__ import annotations

import resource
import sys
from contextlib import suppress
from pathlib import Path


def forget_peak() -> None:
    """Count from what is resident now; where the system cannot (Linux can), the old peak stays."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def resident_peak() -> int:
    """Bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
