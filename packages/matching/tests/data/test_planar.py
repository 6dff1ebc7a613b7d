"""HPatches and Oxford sequences in their own layout."""

from pathlib import Path

import pytest
import torch

from isoattn.matching.data import HPatches, OxfordSequence, ResizeOptions, read_homography

AS_IT_IS = ResizeOptions(multiple=1)


@pytest.fixture
def hpatches(tmp_path, write_picture) -> Path:
    root = tmp_path / "hpatches"
    for number, name in enumerate(("i_dome", "v_wall", "v_talent")):
        for k in range(1, 7):
            write_picture(root / name / f"{k}.ppm", seed=10 * number + k, size=(40, 48 + k))
            if k > 1:
                (root / name / f"H_1_{k}").write_text(f"1  0 {k} \n0   1 -2\n 0 0  1 \n\n")
    (root / "README").write_text("x")
    return root


def test_sequences_and_pairs(hpatches):
    source = HPatches(str(hpatches), resize=AS_IT_IS)
    data = source.pairs("test", 0)
    assert len(data) == 2 * 5  # v_talent is one of the eight large ones
    assert source.splits == () and source.labelled
    pair = data[6]
    assert (pair.name0, pair.name1) == ("v_wall/1.ppm", "v_wall/3.ppm")
    assert pair.image0.shape == (40, 49) and pair.image1.shape == (40, 51)
    assert pair.homography.tolist() == [[1, 0, 3], [0, 1, -2], [0, 0, 1]]
    assert pair.strata == {"illumination": 0.0, "target": 3.0}
    assert data[0].strata["illumination"] == 1.0
    assert len(HPatches(str(hpatches), large=True).items) == 15
    assert len(HPatches(str(hpatches), subset="i").items) == 5
    assert len(source.files("test")) == 2 * 11


def test_the_homography_follows_the_size(hpatches):
    pair = HPatches(str(hpatches), resize=ResizeOptions(shorter=80, multiple=1)).pairs("val", 0)[0]
    assert pair.image0.shape == (80, 98) and pair.scale0 == (0.5, 0.5)
    assert float(pair.homography[0, 2]) == pytest.approx(4.0, abs=1e-5)


def test_what_is_missing_is_named(hpatches, tmp_path):
    (hpatches / "i_dome" / "H_1_4").unlink()
    with pytest.raises(FileNotFoundError, match=r"1 files are missing, such as .*i_dome/H_1_4"):
        HPatches(str(hpatches)).pairs("test", 0)
    with pytest.raises(FileNotFoundError, match=r"gone is not a folder. Unpack hpatches-seq"):
        HPatches(str(tmp_path / "gone")).pairs("test", 0)
    with pytest.raises(FileNotFoundError, match=r"has no folder i_\* or v_\*"):
        HPatches(str(hpatches / "v_wall")).pairs("test", 0)
    with pytest.raises(ValueError, match="subset must be all, i or v, got 'x'"):
        HPatches(str(hpatches), subset="x")


def test_homography_files(tmp_path):
    path = tmp_path / "H"
    path.write_text("  1e0 2   3\n\n 4 5 6\n7 8 9\n")
    assert read_homography(path).tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    path.write_text(
        '<?xml version="1.0"?>\n<opencv_storage><H13 type_id="opencv-matrix"><rows>3</rows>'
        "<cols>3</cols><dt>d</dt><data> 1 2 3\n 4 5 6 7 8 9 </data></H13></opencv_storage>"
    )
    assert read_homography(path).dtype == torch.float64
    assert read_homography(path).flatten().tolist() == list(range(1, 10))
    for text in ("1 2 3", "a b c d e f g h i", "1 2 3 4 5 6 7 8 nan"):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"H holds \d words, a homography is nine finite"):
            read_homography(path)


def test_an_oxford_sequence(tmp_path, write_picture):
    for k in (1, 2, 4):
        write_picture(tmp_path / f"img{k}.png", seed=k)
    (tmp_path / "H1to2p").write_text("1 0 0 0 1 0 0 0 1")
    with pytest.raises(FileNotFoundError, match="H1to4p"):
        OxfordSequence(str(tmp_path)).pairs("test", 0)
    (tmp_path / "H1to4p").write_text("1 0 5 0 1 0 0 0 1")
    data = OxfordSequence(str(tmp_path), resize=AS_IT_IS).pairs("test", 0)
    assert [data[k].name1 for k in range(len(data))] == ["img2.png", "img4.png"]
    assert float(data[1].homography[0, 2]) == 5.0
    (tmp_path / "img1.png").unlink()
    with pytest.raises(FileNotFoundError, match="has no img1 and img2"):
        OxfordSequence(str(tmp_path)).pairs("test", 0)
