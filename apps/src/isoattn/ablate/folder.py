"""The study folder: its files, what is registered in it, and the lock that keeps two runs apart."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from isoattn.ablate.differences import config_differences
from isoattn.ablate.errors import StudyError
from isoattn.ablate.plan import Plan
from isoattn.ablate.study import Study, study_from_dict
from isoattn.apps.base.files import write_json
from isoattn.apps.base.run_folder import environment

T = TypeVar("T")

REGISTERED = "registered.json"
COMPUTED = ("gate.json", "rates.json", "reference_rates.json", "baselines.json", "costs.json")
"""What a run works out besides the cells, and works out anew where it is missing."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Wait for, then hold, the folder; the lock ends with the process, however that ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def read_part(file: Path, parse: Callable[[Any], T], remedy: str | None = None) -> T | None:
    """What a file of the study holds, None where there is none.

    Raises:
        StudyError: the file is damaged; says what to do.
    """
    try:
        return parse(json.loads(file.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        advice = remedy or f"Delete it; isoattn ablate run {file.parent} makes it anew."
        raise StudyError(f"{file} is damaged and cannot be used. {advice}") from error


def registration(folder: Path) -> dict[str, Any] | None:
    """What is registered in a study folder, None where nothing is.

    Raises:
        StudyError: the file is damaged, or was edited.
    """

    def parse(data: Any) -> dict[str, Any]:
        for entry in (data, *data["amendments"]):
            text = json.dumps(entry["study"], sort_keys=True)
            if hashlib.sha256(text.encode()).hexdigest()[:8] != entry["hash"]:
                raise ValueError("not what was registered")
        checked: dict[str, Any] = data
        return checked

    return read_part(
        folder / REGISTERED,
        parse,
        "It says what was registered before the first cell ran: bring back the original, or start "
        "in another folder with --out.",
    )


def registered_study(folder: Path) -> Study | None:
    """The study of a folder, as amended last; None where nothing is registered."""
    data = registration(folder)
    if data is None:
        return None
    latest = [data, *data["amendments"]][-1]
    return study_from_dict(latest["study"], where=str(folder / REGISTERED))


def register(study: Study, plan: Plan, folder: Path, *, amend: bool) -> None:
    """Write the resolved study beside the results before the first cell (P0).

    With the study go the complete configs of its arms: a base config, a default or a class that
    has changed since is a changed study too.

    Raises:
        StudyError: another study is registered here.
    """
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    entry = {
        "study": study.as_dict(),
        "hash": study.hash,
        "registered": now,
        "configs": json.loads(json.dumps(plan.configs)),
    }
    registered = registration(folder)
    if registered is None:
        write_json(folder / REGISTERED, {**entry, "environment": environment(), "amendments": []})
        return
    # A study amended back and forth is compared with what was accepted last.
    latest = [registered, *registered["amendments"]][-1]
    changes = _changes(latest, entry)
    if not changes:
        return
    if not amend:
        raise StudyError(
            f"{folder} holds the study {latest['hash']}, and this one differs:\n  "
            + "\n  ".join(changes[:6])
            + (f"\n  and {len(changes) - 6} more" if len(changes) > 6 else "")
            + "\nUse another --out, or --amend to go on; the report will list the changes."
        )
    registered["amendments"].append({**entry, "changes": changes})
    for name in COMPUTED:  # of the study before: other arms, other sizes
        (folder / name).unlink(missing_ok=True)
    write_json(folder / REGISTERED, registered)


def study_changes(folder: Path, study: Study) -> list[str]:
    """The keys in which a study differs from the one registered in a folder."""
    registered = registered_study(folder)
    if registered is None:
        return []
    return _lines(config_differences(registered.as_dict(), study.as_dict()))


def _changes(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    lines = _lines(config_differences(old["study"], new["study"]))
    before, after = old.get("configs", {}), new["configs"]
    for arm in before.keys() & after.keys():
        found = _lines(config_differences(before[arm], after[arm]))
        lines += [line for f in found if (line := f"resolved config, {f}") not in lines]
    return lines


def _lines(differences: list[tuple[str, Any, Any]]) -> list[str]:
    return [f"{key}: {old} -> {new}" for key, old, new in differences]
