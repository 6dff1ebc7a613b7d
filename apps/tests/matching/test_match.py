"""isoattn matching match: two images, their matches, what relates them."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from isoattn.apps.matching.two_views import match_images, write_views
from isoattn.matching.data.photos import TRAIN_PHOTOS, package_file
from isoattn.matching.files import read_matches
from isoattn.matching.geometry import warp_points
from isoattn.matching.matches import Matches

HOMOGRAPHY = torch.tensor(
    [[1.1, 0.05, -30.0], [-0.04, 0.95, 12.0], [1e-5, -2e-5, 1.0]], dtype=torch.float64
)


class Known:
    """Stands for a matcher that finds the places a homography gives, and some wrong ones."""

    has_fine, threshold = True, 0.2

    def __init__(self, matrix_33, wrong=0.2):
        self.matrix_33, self.wrong = matrix_33, wrong

    def __call__(self, image0, image1, *, threshold=None):
        height, width = image0.shape[-2:]
        generator = torch.Generator().manual_seed(0)
        size = torch.tensor([width - 1.0, height - 1.0])
        points = torch.rand(200, 2, generator=generator) * size
        places = warp_points(points[None].double(), self.matrix_33[None])[0].float()
        bad = torch.rand(200, generator=generator) < self.wrong
        places[bad] = torch.rand(int(bad.sum()), 2, generator=generator) * size
        zero = torch.zeros(200, dtype=torch.int64)
        return Matches(points, places, torch.linspace(0.3, 1, 200), zero, 1)


@pytest.fixture
def images(tmp_path):
    files = []
    for name, at in (("a.png", "astronaut"), ("b.png", "camera")):
        with Image.open(package_file(*TRAIN_PHOTOS[at])) as image:
            image.resize((320, 240)).save(tmp_path / name)
        files.append(tmp_path / name)
    return tuple(files)


def test_the_homography_is_between_the_files(images, tmp_path):
    """Matched at half the size, said in pixels of the files."""
    half = torch.tensor([[0.5, 0, -0.25], [0, 0.5, -0.25], [0, 0, 1]], dtype=torch.float64)
    seen = half @ HOMOGRAPHY @ torch.linalg.inv(half)
    views = match_images(Known(seen), images, longer=160)
    assert views.geometry is not None and views.geometry.kind == "homography"
    torch.testing.assert_close(views.geometry.matrix_33, HOMOGRAPHY, rtol=1e-3, atol=2e-2)
    assert 0.75 < views.geometry.inlier_K.double().mean() < 0.9
    text = "\n".join(views.lines())
    assert "200 matches at 160 x 120" in text and "pixels of a.png -> pixels of b.png" in text
    assert write_views(tmp_path / "out", "a-b", views) == ["a-b.png", "a-b.h5", "a-b.json"]
    kept = json.loads((tmp_path / "out" / "a-b.json").read_text())
    torch.testing.assert_close(
        torch.tensor(kept["homography"]), HOMOGRAPHY.float(), atol=2e-2, rtol=1e-3
    )
    stored = read_matches(tmp_path / "out" / "a-b.h5", "a.png", "b.png")
    places = warp_points(stored.keypoints0[None].double(), HOMOGRAPHY[None])[0]
    assert float((places - stored.keypoints1).norm(dim=1).median()) < 1e-2


def test_the_pose_with_intrinsics(images):
    """A plane seen by two cameras: the homography fixes rotation and translation."""
    intrinsics = (300.0, 310.0, 160.0, 120.0)
    camera = torch.tensor([[300.0, 0, 160], [0, 310, 120], [0, 0, 1]], dtype=torch.float64)
    angle = torch.tensor(0.1, dtype=torch.float64)
    rotation = torch.tensor(
        [[angle.cos(), 0, angle.sin()], [0, 1, 0], [-angle.sin(), 0, angle.cos()]],
        dtype=torch.float64,
    )
    translation = torch.tensor([-0.3, 0.1, 0.05], dtype=torch.float64)

    class Scene(Known):
        """Points at many depths."""

        def __call__(self, image0, image1, *, threshold=None):
            generator = torch.Generator().manual_seed(1)
            size = torch.tensor([319.0, 239.0], dtype=torch.float64)
            points = torch.rand(200, 2, generator=generator, dtype=torch.float64) * size
            depth = 2 + 4 * torch.rand(200, 1, generator=generator, dtype=torch.float64)
            rays = torch.cat([points, torch.ones(200, 1)], 1) @ torch.linalg.inv(camera).T
            moved = (depth * rays) @ rotation.T + translation
            seen = moved @ camera.T
            zero = torch.zeros(200, dtype=torch.int64)
            places = (seen[:, :2] / seen[:, 2:]).float()
            return Matches(points.float(), places, torch.ones(200), zero, 1)

    views = match_images(Scene(torch.eye(3)), images, longer=320, intrinsics=(intrinsics,) * 2)
    found = views.geometry
    assert found is not None and found.kind == "pose"
    torch.testing.assert_close(found.rotation_33, rotation, atol=2e-3, rtol=0)
    direction = translation / translation.norm()
    assert abs(float(found.translation_3 @ direction)) == pytest.approx(1, abs=1e-3)
    assert found.inlier_K.double().mean() > 0.95
    assert views.lines()[1].startswith("essential matrix") and "rotation" in "".join(views.lines())


def test_nothing_in_common(images):
    class Nothing(Known):
        def __call__(self, image0, image1, *, threshold=None):
            none = torch.zeros(0)
            return Matches(torch.zeros(0, 2), torch.zeros(0, 2), none, none.long(), 1)

    views = match_images(Nothing(torch.eye(3)), images)
    assert views.geometry is None and "no geometry" in views.lines()[1]
    for intrinsics in (None, ((300.0, 300.0, 160.0, 120.0),) * 2):
        assert match_images(Nothing(torch.eye(3)), images, intrinsics=intrinsics).geometry is None


def test_the_command(isoattn, best, images):
    argv = (*images, f"--ckpt_path={best}", "--threshold=0", "--longer=64", "--out=out")
    done = isoattn("match", *argv)
    assert done.code == 0, done.err
    assert "a.png | b.png: " in done.out and "at 64 x 48" in done.out
    assert {p.name for p in Path("out").iterdir()} == {"a-b.png", "a-b.h5", "a-b.json"}
    swapped = isoattn("match", *argv, "--attention=Softmax", "--top=5")
    assert swapped.code == 0 and "a.png | b.png: 5 matches" in swapped.out


def test_published_weights(isoattn, published, images):
    argv = (*images, f"--ckpt_path={published}", "--longer=64", "--out=out")
    refused = isoattn("match", *argv)
    assert refused.code == 2 and refused.short
    assert "does not say which position encoding" in refused.err
    assert "--pe released (outdoor_ds" in refused.err
    done = isoattn("match", *argv, "--pe=released", "--threshold=0")
    assert done.code == 0, done.err


@pytest.mark.parametrize(
    "argv, text",
    [
        (("a.png", "b.png"), "isoattn matching fit"),
        (("a.png",), "IMAGE1"),
        (("a.png", "c.png", "--ckpt_path=x.ckpt"), "There is no image c.png"),
        (("a.png", "b.png", "--ckpt_path=x.ckpt"), "--ckpt_path: x.ckpt: cannot be read"),
        (("a.png", "b.png", "--ckpt_path=x.ckpt", "--attention=Sofmax"), "Softmax"),
        (("a.png", "b.png", "--ckpt_path=x.ckpt", "--intrinsics=1,2"), "FX,FY,CX,CY"),
        (("a.png", "b.png", "--ckpt_path=x.ckpt", "--threshold=1"), "in [0, 1)"),
        (("a.png", "b.png", "--ckpt=x.ckpt"), "--ckpt_path"),
    ],
)
def test_what_it_refuses(isoattn, images, argv, text):
    refused = isoattn("match", *argv)
    assert refused.code == 2 and refused.short, refused.err
    assert text in refused.err


def test_ours_with_another_position_encoding(isoattn, best, images):
    refused = isoattn("match", *images, f"--ckpt_path={best}", "--pe=released")
    assert refused.code == 2 and "was trained with pe=fixed" in refused.err
