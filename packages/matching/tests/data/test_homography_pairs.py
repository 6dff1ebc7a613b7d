"""Drawn pairs: a function of (seed, epoch, index), with a homography that is true."""

import pytest
import torch
from torch.nn import functional as F

from isoattn.matching.data.homography_pairs import HomographyPairs, overlap
from isoattn.matching.data.photos import builtin_photos
from isoattn.matching.data.sampling import HomographyOptions, PhotometricOptions
from isoattn.matching.geometry import warp_points

PLAIN = PhotometricOptions(contrast=0, brightness=0, gamma=1, noise=0)


def pairs(split="train", seed=0, size=(64, 80), count=40, **options) -> HomographyPairs:
    return HomographyPairs(builtin_photos(split), count, size, seed=seed, **options)


def test_the_second_view_shows_what_the_homography_says():
    data = pairs(photometric=PLAIN, homography=HomographyOptions(cover=(0.9, 1.0)), size=(96, 96))
    for index in (0, 1, 3, 8):  # astronaut, camera, china, ihc
        pair = data[index]
        rows, columns = torch.meshgrid(torch.arange(96), torch.arange(96), indexing="ij")
        points = torch.stack([columns, rows], -1).reshape(1, -1, 2).float()
        places = warp_points(points, pair.homography[None])
        inside = ((places > 2) & (places < 93)).all(-1)[0]
        grid = (places + 0.5) * 2 / 96 - 1
        seen = F.grid_sample(pair.image1[None, None], grid[None], align_corners=False)[0, 0, 0]
        both = torch.stack([seen, pair.image0.reshape(-1)])[:, inside]
        assert float(torch.corrcoef(both)[0, 1]) > 0.93, data.photos[index].name


def test_a_pair_depends_on_seed_epoch_and_index_alone():
    first, second = pairs(), pairs()
    state = torch.get_rng_state()
    for index in (17, 3, 3, 39):
        for name in ("image0", "image1", "homography"):
            assert torch.equal(getattr(first[index], name), getattr(second[index], name))
        first[index + 1 if index < 39 else 0]  # what was drawn before makes no difference
    assert torch.equal(torch.get_rng_state(), state)
    before = first[3].image0
    second.set_epoch(1)
    assert not torch.equal(second[3].image0, before)
    assert not torch.equal(pairs(seed=1)[3].image0, before)
    assert not torch.equal(first[3 + 18].image0, before)


def test_a_fixed_set_is_the_same_in_every_epoch():
    data = pairs("val", fixed=True)
    before = data[5].image1
    data.set_epoch(7)
    assert torch.equal(data[5].image1, before)


def test_strata():
    data = pairs()
    for index in range(len(data)):
        strata = data[index].strata
        assert set(strata) == {"rotation", "scale", "overlap", "texture"}
        assert 0 <= strata["rotation"] <= 30 and 1 <= strata["scale"] <= 1.6
        assert 0.1 < strata["overlap"] <= 1
        assert data.photo_of(index) == index % 18
        assert strata["texture"] == data.photos[index % 18].texture
        assert data[index].name0.startswith(data.photos[index % 18].name)


def test_every_photo_has_its_turn():
    data = pairs(count=5)
    seen = set()
    for epoch in range(4):
        data.set_epoch(epoch)
        seen |= {data.photo_of(index) for index in range(5)}
    assert seen == set(range(18))
    fixed = pairs("val", count=4, fixed=True)
    assert [fixed.photo_of(index) for index in range(4)] == [0, 4, 8, 12]


def test_overlap():
    eye = torch.eye(3, dtype=torch.float64)
    assert overlap(eye, (64, 64)) == 1.0
    half = eye.clone()
    half[0, 2] = 32
    assert overlap(half, (64, 64)) == 0.5
    small = torch.diag(torch.tensor([0.5, 0.5, 1], dtype=torch.float64))
    # All of view 0 shows in view 1, which shows four times as much.
    assert overlap(small, (64, 64)) == pytest.approx(0.25, abs=0.1)
    away = eye.clone()
    away[1, 2] = 100
    assert overlap(away, (64, 64)) == 0.0


def test_photos_are_kept_only_so_many():
    data = pairs(cache=2)
    for index in range(5):
        data[index]
    assert list(data._loaded) == [3, 4]
    with pytest.raises(IndexError, match="pair 40 of 40"):
        data[40]
