"""The npz indices of LoFTR's data: arrays of objects, read without running what a pickle says."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy._core import numeric
from numpy._core.multiarray import _reconstruct, scalar
from numpy.lib import format as npy


class _PlainUnpickler(pickle.Unpickler):
    """Knows arrays and numbers, and refuses everything else."""

    known: dict[tuple[str, str], Any] = {
        (module, name): what
        for package in ("numpy.core", "numpy._core")
        for module, name, what in (
            (f"{package}.multiarray", "_reconstruct", _reconstruct),
            (f"{package}.multiarray", "scalar", scalar),
            (f"{package}.numeric", "_frombuffer", numeric._frombuffer),  # type: ignore[attr-defined]
        )
    } | {
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): lambda text, _: text.encode("latin1"),
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.known:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}")
        return self.known[module, name]


def read_index(path: Path, needed: tuple[str, ...]) -> dict[str, Any]:
    """All arrays of an npz file, arrays of objects too.

    Args:
        path: of the file.
        needed: names that must be there.

    Raises:
        FileNotFoundError: no such file.
        ValueError: damaged, without a needed name, or with objects other than arrays and numbers.
    """
    if not path.is_file():
        raise FileNotFoundError(f"There is no index {path}; nothing is downloaded")
    try:
        with zipfile.ZipFile(path) as archive:
            found = {
                name.removesuffix(".npy"): _read_array(archive.read(name))
                for name in archive.namelist()
            }
    except Exception as error:  # a damaged archive or pickle raises almost anything
        raise ValueError(f"{path} is no npz index, or damaged: {error}") from error
    missing = [name for name in needed if name not in found]
    if missing:
        raise ValueError(f"{path} lacks {', '.join(missing)}; it has {', '.join(sorted(found))}")
    return found


def _read_array(data: bytes) -> Any:
    stream = io.BytesIO(data)
    version = npy.read_magic(stream)
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    _, _, dtype = read_header(stream)
    if dtype.hasobject:
        return _PlainUnpickler(stream, encoding="latin1").load()
    stream.seek(0)
    return npy.read_array(stream, allow_pickle=False)
