"""Real image pairs with ground truth: directions, and the official matches by our scores."""

from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from torch.nn import functional as F

from isoattn.matching.data import Aloe, OxfordSequence, Pair, ResizeOptions, collate
from isoattn.matching.data.planar import read_homography
from isoattn.matching.geometry import warp_points
from isoattn.matching.metrics import accuracy_at, line_distance
from isoattn.matching.supervision import supervise


def correlation(pair: Pair) -> float:
    """Of image 0 with what image 1 shows where the ground truth says."""
    height, width = pair.image0.shape
    if pair.map0 is not None:
        places = pair.map0
    else:
        rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        points = torch.stack([columns, rows], -1).reshape(1, -1, 2).float()
        places = warp_points(points, pair.homography[None]).reshape(height, width, 2)
    size = torch.tensor([pair.image1.shape[1], pair.image1.shape[0]])
    grid = (places + 0.5) * 2 / size - 1
    inside = (grid.abs() < 1).all(-1)
    seen = F.grid_sample(pair.image1[None, None], grid.nan_to_num(9.0)[None], align_corners=False)[
        0, 0
    ]
    return float(torch.corrcoef(torch.stack([seen[inside], pair.image0[inside]]))[0, 1])


def test_graf_goes_from_the_first_image_to_the_others(real_pairs):
    quarter = ResizeOptions(shorter=240)
    data = OxfordSequence(str(real_pairs / "oxford_graf"), quarter).pairs("test", 0)
    assert len(data) == 5
    # At full size: .90 .87 .86 .84 .79.
    for index, least in enumerate((0.86, 0.83, 0.80, 0.79, 0.74)):
        pair = data[index]
        assert correlation(pair) > least
        pair.homography = torch.linalg.inv(pair.homography)
        assert correlation(pair) < least - 0.2


def test_the_homography_of_opencv_is_that_of_oxford(real_pairs):
    xml = real_pairs / "opencv_samples" / "H1to3p.xml"
    assert ElementTree.parse(xml).getroot().tag == "opencv_storage"
    oxford = read_homography(real_pairs / "oxford_graf" / "H1to3p")
    assert torch.equal(read_homography(xml), oxford)


def test_aloe(real_pairs):
    pair = Aloe(str(real_pairs / "opencv_samples"), ResizeOptions(longer=240)).pairs("test", 0)[0]
    assert correlation(pair) > 0.9
    assert len(supervise(collate([pair])).b) > 300


def stored(folder: Path, name: str) -> dict[str, torch.Tensor]:
    return torch.load(folder / "kornia_data_test" / name, weights_only=True)


def test_official_matches_on_a_planar_pair(real_pairs):
    data = stored(real_pairs, "loftr_outdoor_and_homography_data.pt")
    first, second = data["loftr_outdoor_tentatives0"], data["loftr_outdoor_tentatives1"]
    assert len(first) == 1719
    places = warp_points(first[None].double(), data["H_gt"].double().reshape(1, 3, 3))[0]
    error = (places - second).norm(dim=-1)
    shares = accuracy_at(error, torch.zeros(len(first), dtype=torch.int64), 1, (3, 8, 16))
    got = [round(100 * float(shares[t]), 1) for t in (3, 8, 16)]
    assert got == [43.4, 96.8, 99.0]


def test_the_truth_of_a_planar_pair_holds_its_points(real_pairs):
    data = stored(real_pairs, "loftr_outdoor_and_homography_data.pt")
    pair = Pair(
        data["image0"][0, 0], data["image1"][0, 0], 0, homography=data["H_gt"].reshape(3, 3).float()
    )
    truth = supervise(collate([pair]))
    assert len(truth.b) > 1000 and correlation(pair) > 0.6
    places = warp_points(data["pts0"][None].double(), data["H_gt"].double().reshape(1, 3, 3))[0]
    assert float((places - data["pts1"]).norm(dim=-1).max()) < 8


def test_official_matches_on_a_pair_with_an_epipolar_geometry(real_pairs):
    data = stored(real_pairs, "loftr_indoor_and_fundamental_data.pt")
    first, second = data["loftr_indoor_tentatives0"], data["loftr_indoor_tentatives1"]
    assert len(first) == 639
    fundamental = data["F_gt"].reshape(3, 3)
    distance = line_distance(first.double(), second.double(), fundamental.double())
    assert round(100 * float((distance <= 3).double().mean())) == 45
    turned = line_distance(first.double(), second.double(), fundamental.double().T)
    assert float((turned <= 3).double().mean()) < 0.1
    own = line_distance(data["pts0"].double(), data["pts1"].double(), fundamental.double())
    assert float(own.median()) == pytest.approx(0, abs=3)
