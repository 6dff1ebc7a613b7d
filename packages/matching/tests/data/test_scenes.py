"""MegaDepth and ScanNet as LoFTR indexes them, written small: poses, depth, units, frames."""

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from PIL import Image

from isoattn.matching.data import MegaDepth, ResizeOptions, ScanNet, collate
from isoattn.matching.supervision import supervise

SIZE = (48, 64)
K = np.array([[60.0, 0, 32], [0, 60, 24], [0, 0, 1]])


def to_camera(x: float) -> np.ndarray:
    """World -> a camera at x, all looking along z."""
    pose = np.eye(4)
    pose[0, 3] = -x
    return pose


@pytest.fixture
def megadepth(tmp_path, write_picture) -> Path:
    """Five photographs of a wall 2 away, 0.1 apart: 3 pixels each."""
    names = np.empty(6, dtype=object)
    depths, cameras, poses = (np.empty(6, dtype=object) for _ in range(3))
    for k in range(5):
        names[k], depths[k] = f"images/{k}.png", f"depths/{k}.h5"
        write_picture(tmp_path / names[k], seed=k, size=SIZE)
        (tmp_path / "depths").mkdir(exist_ok=True)
        with h5py.File(tmp_path / depths[k], "w") as file:
            file["depth"] = np.full(SIZE, 2.0, dtype=np.float32)
        cameras[k], poses[k] = K, to_camera(0.1 * k)
    for part, pairs in (("0001", [(0, 1, 0.9), (1, 3, 0.5), (0, 4, 0.1)]), ("0002", [(2, 4, 0.6)])):
        infos = np.empty(len(pairs), dtype=object)
        for number, (i, j, share) in enumerate(pairs):
            infos[number] = ((i, j), share, np.zeros((2, 3)))
        (tmp_path / "index").mkdir(exist_ok=True)
        np.savez(
            tmp_path / "index" / f"{part}.npz",
            image_paths=names,
            depth_paths=depths,
            intrinsics=cameras,
            poses=poses,
            pair_infos=infos,
        )
    return tmp_path


def source_of(root: Path, **options) -> MegaDepth:
    index = str(root / "index")
    given = {"train_index": index, "val_index": str(root / "index" / "0001.npz"), **options}
    return MegaDepth(str(root), resize=ResizeOptions(multiple=8), **given)


def test_megadepth(megadepth):
    source = source_of(megadepth, min_overlap=0.2, per_scene=None)
    assert source.splits == ("train", "val")
    data = source.pairs("val", 0)
    assert len(data) == 3  # min_overlap is of training
    pair = data[1]
    assert (pair.name0, pair.name1) == ("images/1.png", "images/3.png")
    # T_0to1 = T1 T0^-1: the second camera stands 0.2 to the right.
    assert float(pair.pose[0, 3]) == pytest.approx(-0.2)
    assert pair.strata == {"overlap": 0.5}
    truth = supervise(collate([pair]))
    shift = truth.warped0_BL2[0] - torch.tensor([[0.0, 0.0]])
    assert float(shift[0, 0]) == pytest.approx(-6.0, abs=1e-3)
    assert len(source.pairs("train", 0)) == 2 + 1
    with pytest.raises(ValueError, match="MegaDepth has no index of test: set test_index"):
        source.pairs("test", 0)


def test_depth_and_cameras_follow_the_size(megadepth):
    large = ResizeOptions(longer=128)
    source = MegaDepth(
        str(megadepth), val_index=str(megadepth / "index" / "0002.npz"), resize=large
    )
    pair = source.pairs("val", 0)[0]
    assert pair.image0.shape == pair.depth0.shape == (96, 128)
    assert float(pair.intrinsics0[0, 0]) == pytest.approx(120.0)
    truth = supervise(collate([pair]))
    assert float(truth.warped0_BL2[0, 5, 0]) == pytest.approx(40 - 12.0, abs=1e-3)


def test_scenes_weigh_the_same_and_are_drawn_anew(megadepth):
    source = source_of(megadepth, per_scene=4)
    data = source.pairs("train", 5)
    assert len(data) == 8
    state = torch.get_rng_state()
    epochs = []
    for epoch in range(6):
        data.set_epoch(epoch)
        epochs.append([data[k].name1 for k in range(8)])
    assert torch.equal(torch.get_rng_state(), state)
    for names in epochs:
        assert set(names[:3]) == {"images/1.png", "images/3.png", "images/4.png"}  # none twice
        assert names[4:] == ["images/4.png"] * 4
    assert len({tuple(names) for names in epochs}) > 1
    again = source_of(megadepth, per_scene=4).pairs("train", 5)
    again.set_epoch(3)
    assert [again[k].name1 for k in (7, 2, 0)] == [epochs[3][k] for k in (7, 2, 0)]
    with pytest.raises(IndexError, match="pair 8 of 8"):
        data[8]


def test_without_depth_there_is_a_pose_to_score(megadepth):
    source = source_of(megadepth, depth=False)
    assert not source.labelled
    batch = collate([source.pairs("val", 0)[0]])
    assert "depth0" not in batch and batch["pose"].shape == (1, 4, 4)
    assert not supervise(batch).known_B.any()


def test_damaged_scenes(megadepth):
    with pytest.raises(ValueError, match="lists no pair with an overlap above 0.95: lower"):
        source_of(megadepth, min_overlap=0.95).pairs("train", 0)
    (megadepth / "depths" / "3.h5").write_bytes(b"no")
    with pytest.raises(ValueError, match=r"3.h5 cannot be read as a depth map, h5 with the key"):
        source_of(megadepth).pairs("val", 0)[1]
    with pytest.raises(ValueError, match="per_scene must be 1 or more, or null for all; got 0"):
        source_of(megadepth, per_scene=0)
    with pytest.raises(FileNotFoundError, match="MegaDepth: .*gone is not a folder. Point root"):
        MegaDepth(str(megadepth / "gone"), val_index=str(megadepth / "index")).pairs("val", 0)


@pytest.fixture
def scannet(tmp_path, write_picture) -> Path:
    """Two frames of a wall 2 m away; the second camera stands 0.2 m to the right."""
    scene = tmp_path / "scans" / "scene0007_01"
    for k, x in ((0, 0.0), (10, 0.2)):
        write_picture(scene / "color" / f"{k}.jpg", seed=k, size=(96, 128))
        for part in ("depth", "pose"):
            (scene / part).mkdir(exist_ok=True)
        millimetres = np.full(SIZE, 2000, dtype=np.uint16)
        Image.fromarray(millimetres).save(scene / "depth" / f"{k}.png")
        pose = np.linalg.inv(to_camera(x))  # stored camera -> world
        np.savetxt(scene / "pose" / f"{k}.txt", pose)
    names = np.array([[7, 1, 0, 10], [7, 1, 10, 0]], dtype=np.uint16)
    np.savez(tmp_path / "test.npz", name=names)
    np.savez(tmp_path / "train.npz", name=names, score=np.array([0.3, 0.8]))
    np.savez(tmp_path / "intrinsics.npz", scene0007_01=K)
    return tmp_path


def scans(root: Path, **options) -> ScanNet:
    given = {"resize": ResizeOptions(size=SIZE), "frame": SIZE, "per_scene": None, **options}
    return ScanNet(
        str(root / "scans"),
        str(root / "intrinsics.npz"),
        train_index=str(root / "train.npz"),
        test_index=str(root / "test.npz"),
        **given,
    )


def test_scannet(scannet):
    source = scans(scannet)
    pair = source.pairs("test", 0)[0]
    assert pair.name1 == "scene0007_01/color/10.jpg" and pair.image0.shape == SIZE
    assert float(pair.depth0[5, 5]) == 2.0  # metres
    assert float(pair.pose[0, 3]) == pytest.approx(-0.2)
    torch.testing.assert_close(pair.intrinsics0.double(), torch.from_numpy(K))
    truth = supervise(collate([pair]))
    assert float(truth.warped0_BL2[0, 5, 0]) == pytest.approx(40 - 6.0, abs=1e-3)
    assert len(source.pairs("test", 0)) == 2
    [kept] = [source.pairs("train", 0)[0]]
    assert len(source.pairs("train", 0)) == 1 and kept.strata["overlap"] == pytest.approx(0.8)
    # At twice the size K doubles, and so does the shift.
    large = scans(scannet, resize=ResizeOptions(size=(96, 128))).pairs("test", 0)[0]
    moved = supervise(collate([large])).warped0_BL2[0, 5, 0]
    assert float(large.intrinsics0[0, 0]) == pytest.approx(120.0)
    assert float(moved) == pytest.approx(40 - 12.0, abs=1e-3)


def test_damaged_scans(scannet):
    scene = scannet / "scans" / "scene0007_01"
    (scene / "pose" / "10.txt").write_text("-inf " * 16)
    with pytest.raises(ValueError, match=r"10.txt is no pose of 4 x 4 finite numbers"):
        scans(scannet).pairs("test", 0)[0]
    np.savetxt(scene / "pose" / "10.txt", np.eye(4))
    Image.fromarray(np.zeros(SIZE, dtype=np.uint8)).save(scene / "depth" / "0.png")
    with pytest.raises(ValueError, match=r"0.png is uint8 .*millimetres is one channel of 16 bits"):
        scans(scannet).pairs("test", 0)[0]
    (scene / "depth" / "0.png").write_bytes(b"no")
    with pytest.raises(ValueError, match=r"0.png cannot be read as a depth map, 16-bit png"):
        scans(scannet).pairs("test", 0)[0]
    np.savez(scannet / "intrinsics.npz", other=K)
    with pytest.raises(ValueError, match="intrinsics.npz has no K of scene0007_01"):
        scans(scannet).pairs("test", 0)[0]
    (scene / "pose" / "0.txt").unlink()
    np.savez(scannet / "intrinsics.npz", scene0007_01=K)
    with pytest.raises(FileNotFoundError, match="There is no pose"):
        scans(scannet).pairs("test", 0)[0]
