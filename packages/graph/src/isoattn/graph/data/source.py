"""What every source of node tasks shares: one method, and errors that name what is missing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isoattn.graph.task import NodeTask

Array = NDArray[np.generic]


class TaskSource(ABC):
    """Builds a :class:`NodeTask`; nothing is read before :meth:`load`, nothing is downloaded."""

    @abstractmethod
    def load(self) -> NodeTask:
        """The task.

        Raises:
            FileNotFoundError: names the folder and the missing files.
            ValueError: names what in the data does not fit.
        """


def find_folder(name: str, candidates: Sequence[Path], files: Sequence[str]) -> Path:
    """The first folder that holds all files.

    Raises:
        FileNotFoundError: names the data, the fullest of the folders, and what it lacks.
    """
    missing = {
        folder: [file for file in files if not (folder / file).is_file()] for folder in candidates
    }
    folder = min(candidates, key=lambda candidate: len(missing[candidate]))
    if missing[folder]:
        others = [str(candidate) for candidate in candidates if candidate != folder]
        raise FileNotFoundError(
            f"{name}: the folder {folder} lacks {', '.join(missing[folder])}. "
            + (f"Looked in {', '.join(others)} too. " if others else "")
            + "Put the files there, or point root to where they are; nothing is downloaded."
        )
    return folder


def read_npz(path: Path, needed: Sequence[str]) -> Mapping[str, Array]:
    """Arrays of an npz file; objects that would be unpickled are refused.

    Raises:
        FileNotFoundError: no such file.
        ValueError: damaged, holding pickles, or without a needed key.
    """
    if not path.is_file():
        raise FileNotFoundError(f"The folder {path.parent} has no file {path.name}")
    try:
        # Opened here: numpy leaves the file open where the archive is damaged.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
    except (BadZipFile, EOFError, OSError, ValueError, AttributeError) as error:
        raise ValueError(
            f"{path} cannot be read as plain arrays ({error}): it is damaged, no npz file, or "
            "holds Python objects, which are refused; save it anew with plain numpy arrays"
        ) from error
    missing = [key for key in needed if key not in arrays]
    if missing:
        raise ValueError(f"{path} lacks {', '.join(missing)}; it has {', '.join(sorted(arrays))}")
    return arrays


def as_tensor(array: Array, dtype: torch.dtype) -> Tensor:
    """A tensor of its own memory."""
    return torch.tensor(np.ascontiguousarray(array), dtype=dtype)


def normalise_rows(x: Tensor) -> Tensor:
    """Features (N, F) divided by the sum of their absolute values; rows of zeros stay zero."""
    total = x.abs().sum(1, keepdim=True)
    return torch.where(total > 0, x / total, x)
