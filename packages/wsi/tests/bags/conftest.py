"""Feature files and tables in a folder."""

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch


@pytest.fixture
def write_h5() -> Callable[..., Path]:
    """``write_h5(path, features, coords, **attributes)``: the layout of TRIDENT."""

    def write(path: Path, features: object, coords: object = None, **attributes: object) -> Path:
        features = np.asarray(features)
        with h5py.File(path, "w") as file:
            file["features"] = features
            places = np.zeros((len(features), 2), np.int64) if coords is None else coords
            stored = file.create_dataset("coords", data=places)
            stored.attrs.update(attributes)
        return path

    return write


@pytest.fixture
def folder(tmp_path: Path, write_h5: Callable[..., Path]) -> Path:
    """24 bags of 3 to 8 tiles with 5 features, of 12 patients, with a table ``slides.csv``."""
    root = tmp_path / "features"
    root.mkdir()
    rows = ["slide_id,case,hospital,label"]
    generator = torch.Generator().manual_seed(0)
    for number in range(24):
        n = 3 + number % 6
        features = torch.randn(n, 5, generator=generator).numpy()
        side = np.arange(n)
        coords = np.stack([512 * (side % 3) + 100, 512 * (side // 3) + 40], 1)
        write_h5(
            root / f"{number:03d}.h5",
            features,
            coords,
            patch_size=256,
            patch_size_level0=512,
            overlap=0,
        )
        patient, label = number // 2, ("normal", "tumour")[number // 2 % 2]
        rows.append(f"{number:03d},P{patient:02d},H{patient % 3},{label}")
    (tmp_path / "slides.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return tmp_path
