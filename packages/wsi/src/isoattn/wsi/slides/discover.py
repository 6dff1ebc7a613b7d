"""The slides of a folder; a DICOM series, which is several files, counts once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from isoattn.wsi.slides.errors import UnreadableSlide
from isoattn.wsi.slides.reader import slide_name

SUFFIXES = frozenset(
    [".bif", ".czi", ".dcm", ".mrxs", ".ndpi", ".scn", ".svs", ".svslide", ".tif", ".tiff"]
    + [".vms", ".vmu"]
)


def find_slides(source: str | Path | Sequence[str | Path]) -> list[Path]:
    """Files of slides, sorted; one file of each DICOM series.

    Args:
        source: a folder (searched with its subfolders), a file, or several of them.

    Raises:
        UnreadableSlide: a source does not exist, a folder has no slide, or two slides have the same
            name, under which their features would overwrite each other.
    """
    sources = [source] if isinstance(source, (str, Path)) else list(source)
    found: list[Path] = []
    for entry in map(Path, sources):
        found.extend(_within(entry))
    slides = _one_a_series(found)
    _check_names(slides)
    return slides


def _within(entry: Path) -> list[Path]:
    if entry.is_file():
        return [entry]
    if not entry.is_dir():
        raise UnreadableSlide(f"There is no slide or folder {entry}.")
    files = sorted(
        path
        for path in entry.rglob("*")
        if path.suffix.lower() in SUFFIXES and not _hidden(path.relative_to(entry))
    )
    # MRXS and VMS slides keep their parts in a folder of their own name.
    companions = {
        path.with_suffix("") for path in files if path.suffix.lower() in (".mrxs", ".vms")
    }
    files = [path for path in files if path.is_file() and path.parent not in companions]
    if not files:
        raise UnreadableSlide(
            f"The folder {entry} has no slide; slides are told by their suffix: "
            f"{' '.join(sorted(SUFFIXES))}. Name files with other suffixes one by one."
        )
    return files


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _one_a_series(files: Iterable[Path]) -> list[Path]:
    """The first file of each DICOM series, and all other files."""
    kept: list[Path] = []
    seen: set[str] = set()
    for path in files:
        series = _series(path) if path.suffix.lower() == ".dcm" else ""
        if not series or series not in seen:
            kept.append(path)
        seen.add(series)
    return kept


def _series(path: Path) -> str:
    from pydicom import dcmread
    from pydicom.errors import InvalidDicomError

    try:
        header = dcmread(path, specific_tags=["SeriesInstanceUID"], stop_before_pixels=True)
    except (InvalidDicomError, OSError):
        return ""  # OpenSlide will say what is wrong with it
    return str(header.get("SeriesInstanceUID", ""))


def _check_names(slides: Iterable[Path]) -> None:
    first: dict[str, Path] = {}
    for path in slides:
        other = first.setdefault(slide_name(path), path)
        if other != path:
            raise UnreadableSlide(
                f"Two slides have the name {slide_name(path)!r}: {other} and {path}. Features are "
                "stored under the name, so rename one (a DICOM slide has the name of its folder: "
                "one folder a slide), or extract them apart."
            )
