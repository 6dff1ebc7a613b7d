"""What is wrong with a study, said in a few lines."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class StudyError(ValueError):
    """A study that cannot be run as it stands; says where and what to do."""


def near_names(name: Any, known: Iterable[Any]) -> str:
    """``Did you mean X?``, or the list of what there is."""
    names = [str(k) for k in known]
    close = difflib.get_close_matches(str(name), names, n=2, cutoff=0.4)
    return f"Did you mean {' or '.join(close)}?" if close else f"Known: {', '.join(names)}."
