"""Files of features: ours, TRIDENT's, CLAM's, and damaged ones."""

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from isoattn.wsi.features import FeatureFileError, read_features, write_clam
from isoattn.wsi.features.formats import stored_hash

FEATURES = np.arange(12, dtype=np.float32).reshape(4, 3)
COORDS = np.array([[0, 0], [512, 0], [0, 512], [512, 512]], dtype=np.int64)


def write(path: Path, features: np.ndarray, coords: np.ndarray, **attributes: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file.create_dataset("features", data=features)
        file.create_dataset("coords", data=coords).attrs.update(attributes)
    return path


def test_trident(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.h5", FEATURES, COORDS, patch_size=256, patch_size_level0=512, overlap=0,
        name="slide a", level0_magnification=40, target_magnification=20,
    )  # fmt: skip
    found = read_features(path)
    assert (found.layout, found.side, found.name, found.mpp) == ("trident", 512, "slide a", None)
    assert found.features_ND.tolist() == FEATURES.tolist()
    assert np.array_equal(found.coords_N2, COORDS) and found.attributes["overlap"] == 0
    assert stored_hash(path) is None


def test_a_batch_dimension_in_front(tmp_path: Path) -> None:
    path = write(tmp_path / "a.h5", FEATURES[None], COORDS, patch_size_level0=512)
    assert read_features(path).features_ND.shape == (4, 3)


@pytest.mark.parametrize(("level", "downsample", "side"), [(0, [1.0, 1.0], 256), (1, 4.0, 1024)])
def test_clam_h5(tmp_path: Path, level: int, downsample: object, side: float) -> None:
    path = write(
        tmp_path / "a.h5", FEATURES, COORDS, patch_size=256, patch_level=level,
        downsample=downsample, name="a",
    )  # fmt: skip
    found = read_features(path)
    assert (found.layout, found.side) == ("clam", side)


def test_clam_h5_of_features_has_no_size(tmp_path: Path) -> None:
    found = read_features(write(tmp_path / "slide.h5", FEATURES, COORDS.astype(np.int32)))
    assert (found.layout, found.side, found.name) == ("clam", None, "slide")
    assert found.coords_N2 is not None and found.coords_N2.dtype == np.int64


def test_clam_there_and_back(tmp_path: Path) -> None:
    source = read_features(write(tmp_path / "a.h5", FEATURES, COORDS, patch_size_level0=512))
    write_clam(tmp_path / "clam", source)
    for path in (tmp_path / "clam" / "pt_files" / "a.pt", tmp_path / "clam" / "h5_files" / "a.h5"):
        found = read_features(path)
        assert found.layout == "clam" and found.side == 512 and found.name == "a"
        assert torch.equal(found.features_ND, source.features_ND)
        assert np.array_equal(found.coords_N2, COORDS)
    bare = torch.load(tmp_path / "clam" / "pt_files" / "a.pt", weights_only=True)
    assert isinstance(bare, torch.Tensor)


def test_a_bare_pt(tmp_path: Path) -> None:
    torch.save(torch.from_numpy(FEATURES), tmp_path / "a.pt")
    found = read_features(tmp_path / "a.pt")
    assert found.coords_N2 is None and found.features_ND.shape == (4, 3)
    with pytest.raises(FeatureFileError, match="h5 of a needs coordinates"):
        write_clam(tmp_path, found)


def test_messages(tmp_path: Path) -> None:
    with pytest.raises(FeatureFileError, match="There is no file of features .*gone.h5"):
        read_features(tmp_path / "gone.h5")
    (tmp_path / "bad.h5").write_bytes(b"no h5")
    with pytest.raises(FeatureFileError, match="bad.h5 is no h5 file, or damaged"):
        read_features(tmp_path / "bad.h5")
    assert stored_hash(tmp_path / "bad.h5") is None
    (tmp_path / "bad.pt").write_bytes(b"no pt")
    with pytest.raises(FeatureFileError, match="bad.pt is no file of torch, or damaged"):
        read_features(tmp_path / "bad.pt")
    torch.save({"features": torch.zeros(2, 2)}, tmp_path / "dict.pt")
    with pytest.raises(FeatureFileError, match=r"holds a dict; CLAM's pt files hold a bare tensor"):
        read_features(tmp_path / "dict.pt")
    with h5py.File(tmp_path / "coords.h5", "w") as file:
        file.create_dataset("coords", data=COORDS)
    with pytest.raises(FeatureFileError, match="has coords; features and coords are needed"):
        read_features(tmp_path / "coords.h5")
    path = write(tmp_path / "short.h5", FEATURES, COORDS[:3])
    with pytest.raises(FeatureFileError, match=r"4 rows of features and coordinates of shape \(3,"):
        read_features(path)
    path = write(tmp_path / "flat.h5", FEATURES[0], COORDS)
    with pytest.raises(FeatureFileError, match=r"features of shape \(3,\), expected \(N, D\)"):
        read_features(path)
    spoilt = FEATURES.copy()
    spoilt[2, 1] = np.nan
    path = write(tmp_path / "nan.h5", spoilt, COORDS)
    with pytest.raises(FeatureFileError, match=r"not finite, such as in the rows \[2\]"):
        read_features(path)


def test_a_pickle_with_code_is_not_run(tmp_path: Path) -> None:
    import pickle

    class Payload:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (tmp_path / "ran",))

    (tmp_path / "evil.pt").write_bytes(pickle.dumps(Payload(), protocol=2))
    with pytest.raises(FeatureFileError, match="evil.pt is no file of torch"):
        read_features(tmp_path / "evil.pt")
    assert not (tmp_path / "ran").exists()
