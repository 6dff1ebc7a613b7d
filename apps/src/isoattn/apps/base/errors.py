"""Errors that are meant for the person at the command line: printed short, without a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something the user can put right; the message says what was got, what is allowed, what to do.

    Args:
        message: under ten lines.
        code: exit status.
    """

    def __init__(self, message: str, code: int = 2) -> None:
        super().__init__(message)
        self.code = code


def near(name: str, known: Iterable[str], *, limit: int = 3) -> str:
    """``Did you mean X?``, or the list of what there is."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=limit, cutoff=0.5)
    if close:
        return f"Did you mean {' or '.join(close)}?"
    shown = ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
    return f"There are: {shown}." if known else ""
