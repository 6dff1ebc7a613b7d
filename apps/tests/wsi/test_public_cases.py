"""What went wrong for users of other packages with long bags, each on a file of features.

Those about slides are in packages/wsi/tests/slides/test_public_cases.py and in test_slides.py.
"""

import csv
import json
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from isoattn.apps.base.peak import forget_peak, resident_peak
from isoattn.core import Nystrom
from isoattn.wsi.bags import FeatureFolder
from isoattn.wsi.models import TransMIL

from .conftest import BAGS, run_command

FEATURES = 8


def write_bag(folder: Path, name: str, tiles: int) -> Path:
    """Noise in TRIDENT's layout; one tile of ten stands out."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(tiles)
    features = rng.standard_normal((tiles, FEATURES), dtype=np.float32)
    features[::10, 0] += 3
    side = int(np.ceil(tiles**0.5))
    coords = np.stack([np.arange(tiles) % side, np.arange(tiles) // side], 1) * 256
    with h5py.File(folder / f"{name}.h5", "w") as file:
        file.create_dataset("features", data=features)
        file.create_dataset("coords", data=coords.astype(np.int64))
        file["coords"].attrs.update({"patch_size": 256, "patch_size_level0": 256, "name": name})
    return folder


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """A checkpoint of a narrow TransMIL whose attention is the released one, 256 landmarks."""
    root = tmp_path_factory.mktemp("released")
    argv = [token for token in BAGS if "landmarks" not in token]
    done = run_command(
        "wsi", "fit", *argv, "--model.attention=nystrom_compat", "--trainer.max_epochs=1",
        f"--run.root={root}", "--run.name=a",
    )  # fmt: skip
    assert done.code == 0, done.err
    return root / "wsi" / "a" / "checkpoints" / "best.ckpt"


def maps_of(folder, checkpoint, *argv):
    source = json.dumps({"class_path": "FeatureFolder", "init_args": {"root": str(folder)}})
    return run_command(
        "wsi", "heatmap", f"--ckpt_path={checkpoint}", f"--data.predict_source={source}",
        "--out=maps", *argv,
    )  # fmt: skip


def table(file):
    with Path(file).open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_257_tiles_and_256_landmarks(tmp_path):
    """lucidrains/nystrom-attention#5: zeros in front, cut off at the wrong end.

    Moving the features of one tile by a little moves its own row of the layer most.
    """
    bag = FeatureFolder(str(write_bag(tmp_path / "f", "a", 257))).load().reader.read(0)
    torch.manual_seed(0)
    network = TransMIL(
        lambda heads, dim: Nystrom(heads, dim, landmarks=256, compat="nystrom-attention"),
        FEATURES, 2, dim=16, heads=2, ppeg="off", value_conv=False, depth=1,
    ).double().eval()  # fmt: skip
    tokens = network.tokens(bag.features[None].double())
    layer = network.layer(0)
    with torch.no_grad():
        q, k, v = layer._project(layer.norm(tokens))
        assert q.shape[2] == 258
        matrix = layer.core.matrix(q, k)
        torch.testing.assert_close(layer.core(q, k, v), matrix @ v)
    rows = network.class_rows(bag.features.double())
    assert rows.tiles.shape == (2, 257)
    torch.testing.assert_close(rows.tiles, matrix[0, :, 0, 1:])


def test_1000_tiles_have_1000_values_in_their_order(tmp_path, monkeypatch, released):
    """szc19990412/TransMIL#2: 24 repeated tiles and 255 zeros, where is the class token?"""
    monkeypatch.chdir(tmp_path)
    folder = write_bag(tmp_path / "f", "a", 1000)
    done = maps_of(folder, released)
    assert done.code == 0, done.err
    bag = FeatureFolder(str(folder)).load().reader.read(0)
    tiles, (row,) = table("maps/a.csv"), table("maps/heatmaps.csv")
    assert [[int(t["x"]), int(t["y"])] for t in tiles] == bag.coords.tolist()
    given = np.array([float(t["score"]) for t in tiles]) / 1000
    # A tile that stands in two places has the mean of both; together with the class token and the
    # zeros that is all of the row.
    assert float(row["on_zero_tokens"]) != 0 and float(row["on_repeated_tiles"]) != 0
    from isoattn.apps.wsi.trained import trained

    model, _ = trained(released, [])
    rows = model.network.class_rows(bag.features)
    places = 1 + (np.arange(1000) < 24)
    np.testing.assert_allclose(given * places, rows.tiles.mean(0), rtol=1e-3, atol=1e-7)
    whole = (rows.tiles.sum(1) + rows.itself + rows.pads).mean()
    parts = (given * places).sum() + float(row["on_itself"]) + float(row["on_zero_tokens"])
    assert parts == pytest.approx(float(whole), rel=1e-3)


def test_20000_tiles_hold_no_square(tmp_path, monkeypatch, released):
    """zihou98/BCL#7: the whole attention takes 29 GB; one row is wanted."""
    monkeypatch.chdir(tmp_path)
    folder = write_bag(tmp_path / "f", "a", 20_000)
    forget_peak()
    before = resident_peak()
    done = maps_of(folder, released)
    assert done.code == 0, done.err
    assert len(table("maps/a.csv")) == 20_000
    square = 2 * 20_000**2 * 4  # of two heads
    assert resident_peak() - before < square / 3


def test_the_residual_of_the_inverse_is_reported(tmp_path, monkeypatch, released):
    """mlpen/Nystromformer#6: six iterations have not converged; they are an option."""
    monkeypatch.chdir(tmp_path)
    folder = write_bag(tmp_path / "f", "a", 600)
    assert maps_of(folder, released).code == 0
    (row,) = table("maps/heatmaps.csv")
    from isoattn.apps.wsi.trained import trained

    model, _ = trained(released, [])
    bag = FeatureFolder(str(folder)).load().reader.read(0)
    found = {}
    for iterations in (1, 6, 20):
        for number in (0, 1):
            model.network.layer(number).core.iterations = iterations
        found[iterations] = model.network.inverse_residual(bag.features)
    assert float(row["inverse_residual"]) == pytest.approx(found[6], rel=1e-3)
    assert found[20] < found[1] and found[1] > 0
